// Sampler: which samples make up which global batch, and who takes which share of it.
//
// Role: the order of a run as a pure function of (seed, epoch): the same on every rank, for every world size, on every
// machine. The position in the data is the step number; nothing else needs saving.
// Threads: the functions are pure; a Sampler caches one epoch and belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// What becomes of the rest of an epoch that fills no whole batch.
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

// The step at which a run with the plan `to` is as far as one with `from` is after `step` steps: in the same epoch, and
// there at the same share of the samples, rounded down to a whole batch: of the same data a few may be seen again, none
// is left out.
int64_t step_at_same_place(int64_t step, const BatchPlan& from, const BatchPlan& to);

// The order of one epoch: a permutation of 0 … num_samples-1 (Fisher–Yates on Philox, RandomPlace::kOrder).
std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t num_samples);

// Contiguous shares whose sizes differ by at most one, the larger ones first; with n < world_size the last are empty.
SlotRange share_of(int rank, int world_size, int64_t n);

// A share as parts of at most micro_batch_max slots, sizes differing by at most one. An empty share gives one empty
// part: its rank still runs a (zero-weight) backward, so that the collectives stay matched.
std::vector<SlotRange> micro_batches(SlotRange share, int64_t micro_batch_max);

class Sampler {
 public:
  // `plan` has passed check().
  explicit Sampler(const BatchPlan& plan);

  [[nodiscard]] const BatchPlan& plan() const { return plan_; }
  // The samples of global batch `index` in [0, batches_per_epoch()) of `epoch`, in slot order.
  std::vector<int64_t> batch(int64_t epoch, int64_t index);

 private:
  BatchPlan plan_;
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace lockstep
