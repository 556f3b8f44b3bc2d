// TokenBatches: batches of samples of different lengths, packed so that none has more padded tokens than it may.
//
// Role: how samples of about the same length come together (pack_by_length), and the batch source of models whose
// samples are sequences. An epoch takes one member of each cluster, packs them, and shuffles the batches.
// Threads: one; the packed batches of one epoch are kept.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "runner/data/batch_source.h"

namespace lockstep {

// What a batch can be made of.
struct PackedSample {
  int64_t sample = 0;
  int64_t length = 1;   // tokens
  int64_t cluster = 0;  // samples of a cluster are alike: an epoch takes one of them
};

// Of one batch.
struct PackLimits {
  int64_t tokens_max = 0;  // padding counted; a longer sample is a batch by itself
  int64_t samples_max = std::numeric_limits<int64_t>::max();
};

// Sorts by length and puts neighbours together, as many as the limits allow: the samples of each batch.
std::vector<std::vector<int64_t>> pack_by_length(std::vector<PackedSample> samples, const PackLimits& limits);

struct TokenBatchOptions {
  uint64_t seed = 0;
  int64_t tokens_max = 0;   // of a batch, padding counted; a longer sample is a batch by itself
  int64_t samples_max = 0;  // of an epoch
};

class TokenBatches final : public BatchSource {
 public:
  // At least one sample; sorted by cluster.
  TokenBatches(const TokenBatchOptions& options, std::vector<PackedSample> samples);

  [[nodiscard]] int64_t steps(int64_t epoch) override;
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override;
  [[nodiscard]] int64_t cost(int64_t sample) const override;

 private:
  [[nodiscard]] std::vector<PackedSample> drawn(int64_t epoch) const;
  const std::vector<std::vector<int64_t>>& packed(int64_t epoch);

  TokenBatchOptions options_;
  std::vector<PackedSample> samples_;
  std::vector<size_t> clusters_;  // where each one begins in samples_, and the end
  int64_t first_sample_;
  std::vector<int64_t> lengths_;  // by sample - first_sample_
  int64_t packed_epoch_ = -1;
  std::vector<std::vector<int64_t>> batches_;
};

}  // namespace lockstep
