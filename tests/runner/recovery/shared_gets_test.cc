#include "runner/recovery/shared_gets.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

StoreRequest get(uint64_t id, std::vector<std::string> keys, uint64_t generation = 1) {
  return {.id = id, .generation = generation, .op = StoreOp::kGet, .keys = std::move(keys)};
}

TEST(SharedGets, asks_once_for_the_same_keys_and_answers_all) {
  SharedGets gets;
  EXPECT_FALSE(gets.joins(0, get(7, {"a", "b"})));
  EXPECT_TRUE(gets.joins(1, get(3, {"a", "b"})));
  EXPECT_TRUE(gets.joins(2, get(7, {"a", "b"})));
  EXPECT_FALSE(gets.joins(3, get(1, {"a", "c"})));
  EXPECT_TRUE(gets.pop_others({.local_rank = 3, .id = 1}).empty());
  const auto others = gets.pop_others({.local_rank = 0, .id = 7});
  ASSERT_EQ(others.size(), 2U);
  EXPECT_EQ(others[0].local_rank, 1);
  EXPECT_EQ(others[0].id, 3U);
  EXPECT_EQ(others[1].local_rank, 2);
  EXPECT_EQ(others[1].id, 7U);
  // What is asked after the answer is asked again: the values may have changed.
  EXPECT_FALSE(gets.joins(1, get(4, {"a", "b"})));
}

TEST(SharedGets, leaves_alone_what_is_not_a_get_of_several_keys) {
  SharedGets gets;
  StoreRequest wait = get(1, {"a", "b"});
  wait.op = StoreOp::kWait;
  for (int local_rank = 0; local_rank < 2; ++local_rank) {
    EXPECT_FALSE(gets.joins(local_rank, wait));
    EXPECT_FALSE(gets.joins(local_rank, get(1, {"a"})));
  }
}

TEST(SharedGets, shares_nothing_with_a_generation_that_has_ended) {
  SharedGets gets;
  EXPECT_FALSE(gets.joins(0, get(1, {"a", "b"}, 1)));
  EXPECT_FALSE(gets.joins(1, get(1, {"a", "b"}, 2)));
  EXPECT_TRUE(gets.joins(0, get(2, {"a", "b"}, 2)));
  EXPECT_TRUE(gets.pop_others({.local_rank = 0, .id = 1}).empty());
  EXPECT_EQ(gets.pop_others({.local_rank = 1, .id = 1}).size(), 1U);
}

}  // namespace
}  // namespace lockstep
