// Sampler: the batches of a data set whose samples all cost the same, and the division of a batch among ranks.
//
// Role: the order of a run as a pure function of (seed, epoch), and the arithmetic of shares.
// Threads: the functions are pure; a Sampler caches one epoch and belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/batch_source.h"

namespace lockstep {

// What to do with the samples at the end of an epoch that do not fill a batch.
enum class LastBatch {
  kShort,  // one smaller batch
  kDrop,   // left out of this epoch
  kWrap,   // filled up from the beginning of the same epoch's order
};

// Half-open range of slots in a global batch.
struct SlotRange {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  friend bool operator==(const SlotRange&, const SlotRange&) = default;
};

struct BatchPlan {
  uint64_t seed = 0;
  int64_t num_samples = 0;   // per epoch
  int64_t global_batch = 0;  // samples of one optimizer step, over all ranks
  LastBatch last_batch = LastBatch::kShort;

  // kInvalid when no batch can be made: no samples, more than 2^32 - 1 of them, global_batch below 1, or kDrop with
  // fewer samples than one batch. The functions below hold only for a plan that passes.
  [[nodiscard]] Status check() const;
  [[nodiscard]] int64_t batches_per_epoch() const;
};

// The order of one epoch: a permutation of 0 … num_samples-1 (Fisher–Yates on Philox, RandomPurpose::kOrder).
std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t num_samples);
// The order by which samples are divided into those that train and those that validate (RandomPurpose::kSplit).
std::vector<int64_t> split_order(uint64_t seed, int64_t num_samples);

// Contiguous shares whose sizes differ by at most one, the larger ones first; with n < world_size the last are empty.
SlotRange share_of(int rank, int world_size, int64_t n);

// Contiguous shares of about equal cost of slots with these costs; shares of higher cost come first. The same as
// share_of when all costs are 1. The last shares may be empty.
SlotRange share_by_cost(int rank, int world_size, std::span<const int64_t> costs);

// Divides a share into parts of about equal cost, each at most cost_max unless it is a single slot that costs more.
// `costs`: of all slots of the batch. An empty share gives one empty part, because its rank must still run a backward
// (with weight zero) to take part in the collectives.
std::vector<SlotRange> micro_batches(SlotRange share, std::span<const int64_t> costs, int64_t cost_max);

// Global batches of the same number of samples, cut from a permutation of each epoch.
class Sampler final : public BatchSource {
 public:
  // `plan` has passed check().
  explicit Sampler(const BatchPlan& plan);
  // Errors: as BatchPlan::check.
  static Result<std::unique_ptr<BatchSource>> create(const BatchPlan& plan);

  [[nodiscard]] int64_t steps(int64_t /*epoch*/) override { return plan_.batches_per_epoch(); }
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override;

 private:
  BatchPlan plan_;
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> order_;
};

struct SampleRange {
  int64_t first = 0;
  int64_t num_samples = 0;
  int64_t global_batch = 0;
};

// The samples first … first + num_samples - 1 in order, the same in every epoch: for a validation split.
class InOrder final : public BatchSource {
 public:
  // Errors: as BatchPlan::check.
  static Result<std::unique_ptr<BatchSource>> create(const SampleRange& range);

  [[nodiscard]] int64_t steps(int64_t epoch) override;
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override;

 private:
  explicit InOrder(const SampleRange& range) : range_(range) {}

  SampleRange range_;
};

}  // namespace lockstep
