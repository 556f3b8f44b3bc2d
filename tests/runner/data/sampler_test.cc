#include "runner/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> zero_to(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

std::vector<int64_t> sorted(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(Sampler, covers_every_sample_once_per_epoch_for_every_world_size) {
  for (const int world_size : {1, 2, 3, 4}) {
    std::vector<int64_t> seen;
    for (int rank = 0; rank < world_size; ++rank) {
      Sampler sampler({.seed = 42, .num_samples = 103, .global_batch = 10});
      for (int64_t index = 0; index < sampler.steps(0); ++index) {
        const std::vector<int64_t> batch = sampler.batch(3, index);
        const SlotRange share = share_of(rank, world_size, static_cast<int64_t>(batch.size()));
        seen.insert(seen.end(), batch.begin() + share.begin, batch.begin() + share.end);
      }
    }
    EXPECT_EQ(sorted(seen), zero_to(103)) << world_size << " ranks";
  }
}

TEST(Sampler, changes_the_order_with_the_epoch_and_the_seed) {
  const std::vector<int64_t> order = epoch_order(1, 0, 100);
  EXPECT_EQ(sorted(order), zero_to(100));
  EXPECT_NE(order, zero_to(100));
  EXPECT_NE(order, epoch_order(1, 1, 100));
  EXPECT_NE(order, split_order(1, 100));
  EXPECT_NE(order, epoch_order(2, 0, 100));
  EXPECT_EQ(order, epoch_order(1, 0, 100));
}

// The order is part of a checkpoint's meaning: a resumed run must find it unchanged.
TEST(Sampler, keeps_its_order_from_version_to_version) {
  EXPECT_THAT(epoch_order(42, 0, 10), ElementsAre(7, 3, 4, 6, 9, 0, 8, 2, 5, 1));
}

TEST(Sampler, puts_every_sample_at_every_place_about_equally_often) {
  constexpr int64_t kSamples = 5;
  constexpr int64_t kEpochs = 5000;
  std::vector<int64_t> first_counts(kSamples, 0);
  std::vector<int64_t> last_counts(kSamples, 0);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = epoch_order(9, epoch, kSamples);
    ++first_counts[static_cast<size_t>(order.front())];
    ++last_counts[static_cast<size_t>(order.back())];
  }
  for (const int64_t count : first_counts) EXPECT_NEAR(static_cast<double>(count), 1000.0, 150.0);
  for (const int64_t count : last_counts) EXPECT_NEAR(static_cast<double>(count), 1000.0, 150.0);
}

TEST(Sampler, gives_the_same_batch_in_any_order_of_asking) {
  Sampler one({.seed = 7, .num_samples = 50, .global_batch = 8});
  Sampler other({.seed = 7, .num_samples = 50, .global_batch = 8});
  const std::vector<int64_t> late = one.batch(5, 2);
  for (const DataPosition& position : {DataPosition{0, 0}, DataPosition{5, 6}, DataPosition{4, 2}}) {
    EXPECT_NE(other.batch(position.epoch, position.index), late);
  }
  EXPECT_EQ(other.batch(5, 2), late);
}

TEST(Sampler, ends_an_epoch_as_its_plan_says) {
  const auto last_size = [](LastBatch policy) {
    Sampler sampler({.seed = 1, .num_samples = 10, .global_batch = 4, .last_batch = policy});
    return std::pair(sampler.steps(0), sampler.batch(0, sampler.steps(0) - 1).size());
  };
  EXPECT_EQ(last_size(LastBatch::kShort), std::pair(int64_t{3}, size_t{2}));
  EXPECT_EQ(last_size(LastBatch::kDrop), std::pair(int64_t{2}, size_t{4}));
  EXPECT_EQ(last_size(LastBatch::kWrap), std::pair(int64_t{3}, size_t{4}));
}

TEST(Sampler, wraps_to_the_beginning_of_the_same_epoch) {
  Sampler sampler({.seed = 1, .num_samples = 10, .global_batch = 4, .last_batch = LastBatch::kWrap});
  const std::vector<int64_t> order = epoch_order(1, 6, 10);
  EXPECT_THAT(sampler.batch(6, 2), ElementsAre(order[8], order[9], order[0], order[1]));
  Sampler tiny({.seed = 1, .num_samples = 2, .global_batch = 5, .last_batch = LastBatch::kWrap});
  EXPECT_EQ(tiny.batch(0, 0).size(), 5U);
}

TEST(Sampler, has_no_extra_batch_when_the_epoch_divides) {
  for (const LastBatch policy : {LastBatch::kShort, LastBatch::kDrop, LastBatch::kWrap}) {
    const BatchPlan plan{.seed = 1, .num_samples = 12, .global_batch = 4, .last_batch = policy};
    EXPECT_EQ(plan.batches_per_epoch(), 3);
  }
}

TEST(BatchPlan, refuses_what_gives_no_batch) {
  EXPECT_FALSE((BatchPlan{.num_samples = 0, .global_batch = 4}.check().ok()));
  EXPECT_FALSE((BatchPlan{.num_samples = 5, .global_batch = 0}.check().ok()));
  const Status dropped = BatchPlan{.num_samples = 3, .global_batch = 4, .last_batch = LastBatch::kDrop}.check();
  ASSERT_FALSE(dropped.ok());
  EXPECT_THAT(dropped.error().message, AllOf(HasSubstr("3 samples"), HasSubstr("batch of 4")));
  EXPECT_TRUE((BatchPlan{.num_samples = 3, .global_batch = 4}.check().ok()));
}

TEST(Shares, differ_by_at_most_one_and_follow_each_other) {
  for (int world_size = 1; world_size <= 7; ++world_size) {
    for (int64_t n = 0; n <= 20; ++n) {
      int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const SlotRange share = share_of(rank, world_size, n);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.size(), n / world_size);
        EXPECT_LE(share.size(), (n + world_size - 1) / world_size);
        next = share.end;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(Place, moves_on_through_epochs_of_different_lengths) {
  struct Growing final : BatchSource {
    int64_t steps(int64_t epoch) override { return epoch + 1; }
    std::vector<int64_t> batch(int64_t epoch, int64_t index) override { return {epoch, index}; }
  } source;  // epochs of 1, 2, 3 … batches
  EXPECT_EQ(position_after({0, 0}, 0, source), (DataPosition{0, 0}));
  EXPECT_EQ(position_after({0, 0}, 1, source), (DataPosition{1, 0}));
  EXPECT_EQ(position_after({0, 0}, 5, source), (DataPosition{2, 2}));
  EXPECT_EQ(position_after({1, 1}, 4, source), (DataPosition{3, 0}));
  EXPECT_EQ(steps_before(4, source), 10);
}

TEST(Shares, by_cost_are_those_by_number_where_all_cost_the_same) {
  for (int world_size = 1; world_size <= 7; ++world_size) {
    for (int64_t n = 0; n <= 20; ++n) {
      const std::vector<int64_t> costs(static_cast<size_t>(n), 1);
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT_EQ(share_by_cost(rank, world_size, costs), share_of(rank, world_size, n));
      }
    }
  }
}

TEST(Shares, by_cost_balance_what_differs_and_follow_each_other) {
  const std::vector<int64_t> costs = {100, 10, 10, 10, 10, 60, 100, 50, 50};
  int64_t next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const SlotRange share = share_by_cost(rank, 4, costs);
    EXPECT_EQ(share.begin, next);
    next = share.end;
    int64_t cost = 0;
    for (int64_t slot = share.begin; slot < share.end; ++slot) cost += costs[static_cast<size_t>(slot)];
    EXPECT_GE(cost, 90);
    EXPECT_LE(cost, 110);
  }
  EXPECT_EQ(next, 9);
}

TEST(Shares, of_a_batch_smaller_than_the_world_are_empty_at_the_end) {
  EXPECT_EQ(share_of(1, 4, 2).size(), 1);
  EXPECT_EQ(share_of(2, 4, 2), (SlotRange{2, 2}));
  EXPECT_EQ(share_of(3, 4, 2).size(), 0);
}

TEST(InOrder, gives_a_range_in_order_with_a_smaller_last_batch) {
  const auto source = InOrder::create({.first = 10, .num_samples = 5, .global_batch = 2});
  ASSERT_TRUE(source.ok());
  ASSERT_EQ((*source)->steps(0), 3);
  EXPECT_THAT((*source)->batch(0, 0), ElementsAre(10, 11));
  EXPECT_THAT((*source)->batch(7, 2), ElementsAre(14));
  EXPECT_FALSE(InOrder::create({.first = 10, .num_samples = 0, .global_batch = 2}).ok());
}

const std::vector<int64_t> kOnes(20, 1);

TEST(MicroBatches, cover_the_share_in_even_parts_below_the_limit) {
  EXPECT_THAT(micro_batches({10, 20}, kOnes, 4), ElementsAre(SlotRange{10, 14}, SlotRange{14, 17}, SlotRange{17, 20}));
  EXPECT_THAT(micro_batches({0, 8}, kOnes, 8), ElementsAre(SlotRange{0, 8}));
  EXPECT_THAT(micro_batches({0, 2}, kOnes, 1), ElementsAre(SlotRange{0, 1}, SlotRange{1, 2}));
}

TEST(MicroBatches, stay_below_the_limit_of_cost_except_for_one_dear_sample) {
  const std::vector<int64_t> costs = {5, 5, 9, 2, 30, 1};
  EXPECT_THAT(micro_batches({0, 6}, costs, 10),
              ElementsAre(SlotRange{0, 2}, SlotRange{2, 3}, SlotRange{3, 4}, SlotRange{4, 5}, SlotRange{5, 6}));
}

TEST(MicroBatches, of_an_empty_share_are_one_empty_part) {
  EXPECT_THAT(micro_batches({5, 5}, kOnes, 4), ElementsAre(SlotRange{5, 5}));
}

}  // namespace
}  // namespace lockstep
