#include "runner/data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/philox.h"

namespace lockstep {

Status BatchPlan::check() const {
  if (num_samples < 1 || num_samples > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::kInvalid, "an epoch has " + std::to_string(num_samples) +
                                          " samples; expected 1 to 4294967295: is the data set the right one?"};
  }
  if (global_batch < 1) {
    return Error{ErrorCode::kInvalid, "the global batch is " + std::to_string(global_batch) + "; expected at least 1"};
  }
  if (last_batch == LastBatch::kDrop && num_samples < global_batch) {
    return Error{ErrorCode::kInvalid, "an epoch has " + std::to_string(num_samples) +
                                          " samples, less than one batch of " + std::to_string(global_batch) +
                                          ", and incomplete batches are dropped: choose a smaller --batch_size"};
  }
  return {};
}

int64_t BatchPlan::batches_per_epoch() const {
  const int64_t whole = num_samples / global_batch;
  const bool rest = num_samples % global_batch != 0;
  return whole + (rest && last_batch != LastBatch::kDrop ? 1 : 0);
}

namespace {

// Fisher-Yates.
std::vector<int64_t> permutation(const PhiloxStream& stream, int64_t num_samples) {
  LOCKSTEP_CHECK(num_samples >= 0 && num_samples <= std::numeric_limits<uint32_t>::max(),
                 "checked by BatchPlan::check");
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  Philox4 words{};
  for (size_t left = order.size(), draw = 0; left > 1; --left, ++draw) {
    if (draw % 4 == 0) words = stream.block(static_cast<uint32_t>(draw / 4));
    const uint64_t picked = (static_cast<uint64_t>(words.x[draw % 4]) * left) >> 32;
    std::swap(order[left - 1], order[picked]);
  }
  return order;
}

}  // namespace

std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t num_samples) {
  return permutation({seed, static_cast<uint32_t>(RandomPurpose::kOrder), static_cast<uint32_t>(epoch), 0},
                     num_samples);
}

std::vector<int64_t> split_order(uint64_t seed, int64_t num_samples) {
  return permutation({seed, static_cast<uint32_t>(RandomPurpose::kSplit), 0, 0}, num_samples);
}

SlotRange share_of(int rank, int world_size, int64_t n) {
  LOCKSTEP_CHECK(world_size > 0 && rank >= 0 && rank < world_size && n >= 0, "a rank of the world, a size");
  const int64_t each = n / world_size;
  const int64_t larger = n % world_size;  // ranks that take one more
  const int64_t begin = each * rank + std::min<int64_t>(rank, larger);
  return {begin, begin + each + (rank < larger ? 1 : 0)};
}

namespace {

// The end of the first of `parts` parts of the slots that are left, whose total cost is `cost_left`.
int64_t end_of_first_part(std::span<const int64_t> costs, SlotRange left, int64_t cost_left, int64_t parts,
                          int64_t cost_max) {
  int64_t taken = 0;
  int64_t end = left.begin;
  while (end < left.end && taken * parts < cost_left) {
    const int64_t cost = costs[static_cast<size_t>(end)];
    if (end > left.begin && taken + cost > cost_max) break;
    taken += cost;
    ++end;
  }
  return end;
}

int64_t cost_of(std::span<const int64_t> costs, SlotRange slots) {
  return std::accumulate(costs.begin() + slots.begin, costs.begin() + slots.end, int64_t{0});
}

}  // namespace

SlotRange share_by_cost(int rank, int world_size, std::span<const int64_t> costs) {
  LOCKSTEP_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "a rank of the world");
  SlotRange left{0, static_cast<int64_t>(costs.size())};
  int64_t cost_left = cost_of(costs, left);
  for (int before = 0;; ++before) {
    const int64_t end =
        end_of_first_part(costs, left, cost_left, world_size - before, std::numeric_limits<int64_t>::max());
    if (before == rank) return {left.begin, end};
    cost_left -= cost_of(costs, {left.begin, end});
    left.begin = end;
  }
}

std::vector<SlotRange> micro_batches(SlotRange share, std::span<const int64_t> costs, int64_t cost_max) {
  LOCKSTEP_CHECK(share.size() >= 0 && cost_max > 0, "a share and a positive limit");
  int64_t cost_left = cost_of(costs, share);
  std::vector<SlotRange> parts;
  SlotRange left = share;
  do {
    // The fewest parts that the limit allows; since slots are not divided, it may become one more.
    const int64_t parts_left = std::max<int64_t>(1, (cost_left + cost_max - 1) / cost_max);
    const int64_t end = end_of_first_part(costs, left, cost_left, parts_left, cost_max);
    parts.push_back({left.begin, end});
    cost_left -= cost_of(costs, parts.back());
    left.begin = end;
  } while (left.size() > 0);
  return parts;
}

Sampler::Sampler(const BatchPlan& plan) : plan_(plan) {
  LOCKSTEP_CHECK(plan.check().ok(), "a Sampler needs a plan that passes check()");
}

Result<std::unique_ptr<BatchSource>> Sampler::create(const BatchPlan& plan) {
  TRY(plan.check());
  return std::unique_ptr<BatchSource>(std::make_unique<Sampler>(plan));
}

std::vector<int64_t> Sampler::batch(int64_t epoch, int64_t index) {
  LOCKSTEP_CHECK(epoch >= 0 && index >= 0 && index < plan_.batches_per_epoch(), "a batch of an epoch");
  if (epoch != cached_epoch_) {
    order_ = epoch_order(plan_.seed, epoch, plan_.num_samples);
    cached_epoch_ = epoch;
  }
  const int64_t begin = index * plan_.global_batch;
  const bool wrap = plan_.last_batch == LastBatch::kWrap;
  const int64_t end = wrap ? begin + plan_.global_batch : std::min(begin + plan_.global_batch, plan_.num_samples);
  std::vector<int64_t> samples;
  samples.reserve(static_cast<size_t>(end - begin));
  for (int64_t slot = begin; slot < end; ++slot)
    samples.push_back(order_[static_cast<size_t>(slot % plan_.num_samples)]);
  return samples;
}

Result<std::unique_ptr<BatchSource>> InOrder::create(const SampleRange& range) {
  TRY(BatchPlan({.num_samples = range.num_samples, .global_batch = range.global_batch}).check());
  return std::unique_ptr<BatchSource>(new InOrder(range));
}

int64_t InOrder::steps(int64_t /*epoch*/) {
  return (range_.num_samples + range_.global_batch - 1) / range_.global_batch;
}

std::vector<int64_t> InOrder::batch(int64_t /*epoch*/, int64_t index) {
  const int64_t begin = index * range_.global_batch;
  LOCKSTEP_CHECK(index >= 0 && begin < range_.num_samples, "a batch of an epoch");
  std::vector<int64_t> samples(static_cast<size_t>(std::min(range_.global_batch, range_.num_samples - begin)));
  std::iota(samples.begin(), samples.end(), range_.first + begin);
  return samples;
}

}  // namespace lockstep
