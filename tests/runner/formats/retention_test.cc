#include "runner/formats/retention.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Indices = std::vector<size_t>;

TEST(Retention, keeps_the_newest_n_in_the_order_of_generation_then_step) {
  const std::vector<RetentionItem> items = {{{0, 2}, 100}, {{0, 1}, 300}, {{0, 1}, 200}, {{0, 2}, 200}};
  EXPECT_EQ(select_for_removal(items, {.keep_last = 2}), (Indices{2, 1}));
}

// A TrainJob that was made again: its generations are low, and its steps may be.
TEST(Retention, counts_a_later_run_for_newer_whatever_its_generation_and_step) {
  const std::vector<RetentionItem> items = {{{200, 1}, 50}, {{100, 9}, 300}, {{100, 9}, 200}, {{200, 1}, 40}};
  EXPECT_EQ(select_for_removal(items, {.keep_last = 2}), (Indices{2, 1}));
}

TEST(Retention, keeps_every_mth_and_the_best) {
  const std::vector<RetentionItem> items = {
      {{0, 1}, 100, true}, {{0, 1}, 200, true}, {{0, 1}, 300}, {{0, 1}, 400}, {{0, 1}, 500}};
  EXPECT_EQ(select_for_removal(items, {.keep_last = 1, .keep_every = 400}), (Indices{0, 2}));
  EXPECT_EQ(select_for_removal(items, {.keep_last = 1, .keep_every = 0, .keep_best = false}), (Indices{0, 1, 2, 3}));
}

TEST(Retention, never_removes_the_newest) {
  EXPECT_EQ(select_for_removal({{{0, 1}, 100}}, {.keep_last = 0}), Indices{});
  EXPECT_EQ(select_for_removal({}, {.keep_last = 3}), Indices{});
}

}  // namespace
}  // namespace lockstep
