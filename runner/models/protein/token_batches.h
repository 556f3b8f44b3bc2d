// TokenBatches: packs samples of different lengths into batches, each with a limited number of tokens including
// padding.
//
// Role: the batch source of models whose samples are sequences. An epoch draws one sample of each cluster, packs
// samples of about the same length together (pack_by_length), and shuffles the batches. The batches of one epoch are
// cached.
// Threads: one.
#pragma once

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
  // `samples`: at least one, sorted by cluster.
  TokenBatches(const TokenBatchOptions& options, std::vector<PackedSample> samples);

  [[nodiscard]] int64_t steps(int64_t epoch) override;
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override;
  [[nodiscard]] int64_t cost(int64_t sample) const override;

 private:
  [[nodiscard]] std::vector<PackedSample> drawn(int64_t epoch) const;
  const std::vector<std::vector<int64_t>>& packed(int64_t epoch);

  TokenBatchOptions options_;
  std::vector<PackedSample> samples_;
  std::vector<size_t> clusters_;  // the index in samples_ where each cluster begins, and at last samples_.size()
  int64_t first_sample_;
  std::vector<int64_t> lengths_;  // indexed by sample - first_sample_
  int64_t packed_epoch_ = -1;
  std::vector<std::vector<int64_t>> batches_;
};

}  // namespace lockstep
