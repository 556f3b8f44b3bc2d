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

int64_t step_at_same_place(int64_t step, const BatchPlan& from, const BatchPlan& to) {
  const int64_t epoch = step / from.batches_per_epoch();
  const int64_t seen = std::min(step % from.batches_per_epoch() * from.global_batch, from.num_samples);
  // Below 2^64: an epoch has fewer than 2^32 samples.
  const auto as_many = static_cast<int64_t>(static_cast<uint64_t>(seen) * static_cast<uint64_t>(to.num_samples) /
                                            static_cast<uint64_t>(from.num_samples));
  return epoch * to.batches_per_epoch() + std::min(as_many / to.global_batch, to.batches_per_epoch() - 1);
}

std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t num_samples) {
  LOCKSTEP_CHECK(num_samples >= 0 && num_samples <= std::numeric_limits<uint32_t>::max(),
                 "checked by BatchPlan::check");
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPlace::kOrder), static_cast<uint32_t>(epoch), 0};
  Philox4 words{};
  for (size_t left = order.size(), draw = 0; left > 1; --left, ++draw) {
    if (draw % 4 == 0) words = stream.block(static_cast<uint32_t>(draw / 4));
    const uint64_t picked = (static_cast<uint64_t>(words.x[draw % 4]) * left) >> 32;
    std::swap(order[left - 1], order[picked]);
  }
  return order;
}

SlotRange share_of(int rank, int world_size, int64_t n) {
  LOCKSTEP_CHECK(world_size > 0 && rank >= 0 && rank < world_size && n >= 0, "a rank of the world, a size");
  const int64_t each = n / world_size;
  const int64_t larger = n % world_size;  // ranks that take one more
  const int64_t begin = each * rank + std::min<int64_t>(rank, larger);
  return {begin, begin + each + (rank < larger ? 1 : 0)};
}

std::vector<SlotRange> micro_batches(SlotRange share, int64_t micro_batch_max) {
  LOCKSTEP_CHECK(share.size() >= 0 && micro_batch_max > 0, "a share and a positive limit");
  const int64_t parts = std::max<int64_t>(1, (share.size() + micro_batch_max - 1) / micro_batch_max);
  const int64_t each = share.size() / parts;
  const int64_t larger = share.size() % parts;
  std::vector<SlotRange> ranges;
  int64_t begin = share.begin;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t end = begin + each + (part < larger ? 1 : 0);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

Sampler::Sampler(const BatchPlan& plan) : plan_(plan) {
  LOCKSTEP_CHECK(plan.check().ok(), "a Sampler needs a plan that passes check()");
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

}  // namespace lockstep
