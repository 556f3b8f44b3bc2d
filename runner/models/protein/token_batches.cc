#include "runner/models/protein/token_batches.h"

#include <algorithm>
#include <map>
#include <numeric>
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
    const bool begins_cluster = i == 0 || samples_[i].cluster != samples_[i - 1].cluster;
    if (begins_cluster) clusters_.push_back(members_.size());
    if (begins_cluster || samples_[i].member != samples_[i - 1].member) members_.push_back(i);
  }
  clusters_.push_back(members_.size());
  members_.push_back(samples_.size());
  const auto num_clusters = static_cast<int64_t>(clusters_.size()) - 1;
  is_always_the_same_ = num_clusters == static_cast<int64_t>(samples_.size()) && num_clusters <= options_.samples_max;
}

// A run asks for the steps of all its epochs whenever it begins or goes on, so they are only counted, and once.
int64_t TokenBatches::steps(int64_t epoch) {
  const auto at = is_always_the_same_ ? size_t{0} : static_cast<size_t>(epoch);
  if (steps_.size() <= at) steps_.resize(at + 1, 0);
  if (steps_[at] == 0) steps_[at] = count_steps(epoch);
  return steps_[at];
}

std::vector<int64_t> TokenBatches::batch(int64_t epoch, int64_t index) {
  return packed(epoch).at(static_cast<size_t>(index));
}

int64_t TokenBatches::cost(int64_t sample) const { return lengths_.at(static_cast<size_t>(sample - first_sample_)); }

size_t TokenBatches::drawn_of(int64_t cluster, int64_t epoch) const {
  const size_t first = clusters_[static_cast<size_t>(cluster)];
  const size_t members = clusters_[static_cast<size_t>(cluster) + 1] - first;
  const size_t begin = members_[first];
  if (members_[first + members] - begin == 1) return begin;
  const PhiloxStream stream{options_.seed, static_cast<uint32_t>(RandomPurpose::kClusterMember),
                            static_cast<uint32_t>(epoch), static_cast<uint32_t>(cluster)};
  const size_t member = first + stream.below(0, static_cast<uint32_t>(members));
  const size_t samples = members_[member + 1] - members_[member];
  return members_[member] + (samples == 1 ? 0 : stream.below(1, static_cast<uint32_t>(samples)));
}

// Only samples_max of them when there are more.
std::vector<int64_t> TokenBatches::clusters_in(int64_t epoch) const {
  const auto num_clusters = static_cast<int64_t>(clusters_.size()) - 1;
  if (num_clusters > options_.samples_max) {
    std::vector<int64_t> order = epoch_order(options_.seed, epoch, num_clusters);
    order.resize(static_cast<size_t>(options_.samples_max));
    return order;
  }
  std::vector<int64_t> all(static_cast<size_t>(num_clusters));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

std::vector<PackedSample> TokenBatches::drawn(int64_t epoch) const {
  std::vector<PackedSample> drawn;
  for (const int64_t cluster : clusters_in(epoch)) drawn.push_back(samples_[drawn_of(cluster, epoch)]);
  return drawn;
}

// As pack_by_length, by the numbers of samples of each length.
int64_t TokenBatches::count_steps(int64_t epoch) const {
  std::map<int64_t, int64_t> counts;
  for (const int64_t cluster : clusters_in(epoch)) ++counts[samples_[drawn_of(cluster, epoch)].length];
  int64_t steps = 0;
  int64_t in_batch = 0;  // samples of the last batch
  for (auto [length, left] : counts) {
    const int64_t fit = length > 0 ? std::max<int64_t>(1, options_.tokens_max / length)
                                   : std::numeric_limits<int64_t>::max();  // in a batch of this length
    steps = std::max<int64_t>(steps, 1);
    const int64_t joined = std::clamp<int64_t>(fit - in_batch, 0, left);
    in_batch += joined;
    left -= joined;
    if (left == 0) continue;
    const int64_t batches = (left + fit - 1) / fit;
    steps += batches;
    in_batch = left - (batches - 1) * fit;
  }
  return steps;
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
