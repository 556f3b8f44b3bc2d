#include "runner/models/protein/token_batches.h"

#include <algorithm>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/philox.h"
#include "runner/data/sampler.h"

namespace lockstep {

std::vector<std::vector<int64_t>> pack_by_length(std::vector<PackedSample> samples, const PackLimits& limits) {
  std::sort(samples.begin(), samples.end(), [](const PackedSample& a, const PackedSample& b) {
    return std::pair(a.length, a.sample) < std::pair(b.length, b.sample);
  });
  std::vector<std::vector<int64_t>> batches;
  for (const PackedSample& sample : samples) {
    // Samples come in ascending length, so that all others of the batch are padded to this one.
    const int64_t with_this = batches.empty() ? 1 : static_cast<int64_t>(batches.back().size()) + 1;
    if (with_this == 1 || with_this > limits.samples_max || sample.length * with_this > limits.tokens_max) {
      batches.emplace_back();
    }
    batches.back().push_back(sample.sample);
  }
  return batches;
}

TokenBatches::TokenBatches(const TokenBatchOptions& options, std::vector<PackedSample> samples)
    : options_(options), samples_(std::move(samples)), first_sample_(0) {
  LOCKSTEP_CHECK(!samples_.empty() && options.tokens_max > 0 && options.samples_max > 0, "there is nothing to pack");
  const auto by_sample = [](const PackedSample& a, const PackedSample& b) { return a.sample < b.sample; };
  const auto [least, greatest] = std::minmax_element(samples_.begin(), samples_.end(), by_sample);
  first_sample_ = least->sample;
  lengths_.assign(static_cast<size_t>(greatest->sample - first_sample_ + 1), 1);
  for (size_t i = 0; i < samples_.size(); ++i) {
    lengths_[static_cast<size_t>(samples_[i].sample - first_sample_)] = std::max<int64_t>(1, samples_[i].length);
    if (i == 0 || samples_[i].cluster != samples_[i - 1].cluster) clusters_.push_back(i);
  }
  clusters_.push_back(samples_.size());
}

int64_t TokenBatches::steps(int64_t epoch) { return static_cast<int64_t>(packed(epoch).size()); }

std::vector<int64_t> TokenBatches::batch(int64_t epoch, int64_t index) {
  return packed(epoch).at(static_cast<size_t>(index));
}

int64_t TokenBatches::cost(int64_t sample) const { return lengths_.at(static_cast<size_t>(sample - first_sample_)); }

// Draws one sample of each cluster; of only samples_max clusters when there are more.
std::vector<PackedSample> TokenBatches::drawn(int64_t epoch) const {
  const auto num_clusters = static_cast<int64_t>(clusters_.size()) - 1;
  std::vector<int64_t> order = epoch_order(options_.seed, epoch, num_clusters);
  order.resize(static_cast<size_t>(std::min(num_clusters, options_.samples_max)));
  std::vector<PackedSample> drawn;
  drawn.reserve(order.size());
  for (const int64_t cluster : order) {
    const size_t begin = clusters_[static_cast<size_t>(cluster)];
    const auto members = static_cast<uint32_t>(clusters_[static_cast<size_t>(cluster) + 1] - begin);
    const PhiloxStream stream{options_.seed, static_cast<uint32_t>(RandomPlace::kClusterMember),
                              static_cast<uint32_t>(epoch), static_cast<uint32_t>(cluster)};
    drawn.push_back(samples_[begin + stream.below(0, members)]);
  }
  return drawn;
}

const std::vector<std::vector<int64_t>>& TokenBatches::packed(int64_t epoch) {
  if (epoch == packed_epoch_) return batches_;
  std::vector<std::vector<int64_t>> packed = pack_by_length(drawn(epoch), {.tokens_max = options_.tokens_max});
  batches_.clear();
  for (const int64_t index : epoch_order(options_.seed, epoch, static_cast<int64_t>(packed.size()))) {
    batches_.push_back(std::move(packed[static_cast<size_t>(index)]));
  }
  packed_epoch_ = epoch;
  return batches_;
}

}  // namespace lockstep
