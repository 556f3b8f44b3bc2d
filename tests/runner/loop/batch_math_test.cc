#include "runner/loop/batch_math.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TrainingOptions total(int64_t batch, int64_t accumulation = 1) {
  TrainingOptions options;
  options.batch_size = batch;
  options.grad_accum_steps = accumulation;
  return options;
}

TEST(BatchShape, of_a_total_batch_does_not_depend_on_the_world_size) {
  for (const int world_size : {1, 2, 3, 4}) EXPECT_EQ(batch_shape(total(128), world_size)->global_batch, 128);
  EXPECT_EQ(batch_shape(total(128), 3)->micro_batch_max, 43);
  EXPECT_EQ(batch_shape(total(128, 4), 2)->micro_batch_max, 16);
}

TEST(BatchShape, per_device_counts_ranks_and_accumulation) {
  TrainingOptions options = total(8, 3);
  options.batch_scope = BatchScope::kPerDevice;
  const Result<BatchShape> shape = batch_shape(options, 4);
  EXPECT_EQ(shape->global_batch, 96);
  EXPECT_EQ(shape->micro_batch_max, 8);
}

TEST(BatchShape, refuses_fewer_samples_than_ranks_and_names_both) {
  const Result<BatchShape> shape = batch_shape(total(3), 4);
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().code, ErrorCode::kInvalid);
  EXPECT_NE(shape.error().message.find("--batch_size 3"), std::string::npos);
  EXPECT_NE(shape.error().message.find("4"), std::string::npos);
}

TEST(MicroBatches, cover_every_slot_once_for_every_world_size) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    const BatchShape shape{.global_batch = 50, .micro_batch_max = 6, .declared_world_size = 4};
    int64_t next = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      for (const SlotRange& part : micro_batches_of_rank(shape, std::vector<int64_t>(50, 1), rank, world_size)) {
        EXPECT_EQ(part.begin, next);
        EXPECT_LE(part.size(), shape.micro_batch_max);
        next = part.end;
      }
    }
    EXPECT_EQ(next, 50);
  }
}

TEST(MicroBatches, of_dear_samples_hold_fewer_of_them) {
  const BatchShape shape{.global_batch = 6, .micro_batch_max = 100, .declared_world_size = 2};
  const std::vector<int64_t> tokens = {90, 30, 30, 40, 60, 50};
  EXPECT_EQ(micro_batches_of_rank(shape, tokens, 0, 2), (std::vector<SlotRange>{{0, 1}, {1, 3}}));
  EXPECT_EQ(micro_batches_of_rank(shape, tokens, 1, 2), (std::vector<SlotRange>{{3, 5}, {5, 6}}));
}

TEST(MicroBatches, of_fewer_ranks_become_accumulation) {
  const BatchShape shape = *batch_shape(total(64), 4);
  EXPECT_EQ(accumulation_steps(shape, 4), 1);
  EXPECT_EQ(accumulation_steps(shape, 2), 2);
  EXPECT_EQ(accumulation_steps(shape, 1), 4);
}

TEST(MicroBatches, of_an_empty_share_are_one_empty_range) {
  const BatchShape shape{.global_batch = 8, .micro_batch_max = 2, .declared_world_size = 4};
  const auto parts = micro_batches_of_rank(shape, std::vector<int64_t>{1, 1}, /*rank=*/3, /*world_size=*/4);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].size(), 0);
}

}  // namespace
}  // namespace lockstep
