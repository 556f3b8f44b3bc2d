// TokenBatches: packs samples of different lengths into batches, each with a limited number of tokens including
// padding.
//
// Role: the batch source of models whose samples are sequences. An epoch draws one member of each cluster and one of
// its samples, packs samples of about the same length together (pack_by_length), and shuffles the batches. The batches
// of one epoch are cached. The number of batches of an epoch that is not reached yet is counted without packing it.
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "runner/data/batch_source.h"

namespace lockstep {

// A sample that can be packed into a batch.
struct PackedSample {
  int64_t sample = 0;
  int64_t length = 1;   // tokens
  int64_t cluster = 0;  // samples of a cluster are similar; an epoch takes one of them
  // Samples of a cluster with the same member show the same chain (in several assemblies of its entry): each member is
  // drawn with the same probability, and then one of its samples.
  int64_t member = 0;
};

// Limits of one batch.
struct PackLimits {
  int64_t tokens_max = 0;  // including padding; a longer sample is a batch by itself
  int64_t samples_max = std::numeric_limits<int64_t>::max();
};

// Sorts the samples by length and fills one batch after the other up to the limits. Returns the samples of each batch.
std::vector<std::vector<int64_t>> pack_by_length(std::vector<PackedSample> samples, const PackLimits& limits);

struct TokenBatchOptions {
  uint64_t seed = 0;
  int64_t tokens_max = 0;   // in a batch, including padding; a longer sample is a batch by itself
  int64_t samples_max = 0;  // in an epoch
};

class TokenBatches final : public BatchSource {
 public:
  // `samples`: at least one, sorted by cluster and member.
  TokenBatches(const TokenBatchOptions& options, std::vector<PackedSample> samples);

  [[nodiscard]] int64_t steps(int64_t epoch) override;
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override;
  [[nodiscard]] int64_t cost(int64_t sample) const override;

 private:
  // The index in samples_ of the sample of a cluster that an epoch takes.
  [[nodiscard]] size_t drawn_of(int64_t cluster, int64_t epoch) const;
  // The clusters of an epoch, in any order.
  [[nodiscard]] std::vector<int64_t> clusters_in(int64_t epoch) const;
  [[nodiscard]] std::vector<PackedSample> drawn(int64_t epoch) const;
  [[nodiscard]] int64_t count_steps(int64_t epoch) const;
  const std::vector<std::vector<int64_t>>& packed(int64_t epoch);

  TokenBatchOptions options_;
  std::vector<PackedSample> samples_;
  std::vector<size_t> members_;     // the index in samples_ where each member begins, and at last samples_.size()
  std::vector<size_t> clusters_;    // the index in members_ where each cluster begins, and at last that of its end
  bool is_always_the_same_ = true;  // each epoch has all samples
  int64_t first_sample_;
  std::vector<int64_t> lengths_;  // indexed by sample - first_sample_
  std::vector<int64_t> steps_;    // by epoch; 0: not counted yet
  int64_t packed_epoch_ = -1;
  std::vector<std::vector<int64_t>> batches_;
};

}  // namespace lockstep
