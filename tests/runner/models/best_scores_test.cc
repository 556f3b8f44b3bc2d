#include "runner/models/best_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool anyone(size_t /*index*/) { return true; }

TEST(BestScores, come_highest_first_and_of_equal_ones_the_lowest_index_first) {
  const std::vector<float> scores = {0.5F, 2.0F, -1.0F, 2.0F, 0.5F, 3.0F, 0.5F};
  EXPECT_THAT(best_scores(scores, 3, anyone), ElementsAre(5, 1, 3));
  EXPECT_THAT(best_scores(scores, 5, anyone), ElementsAre(5, 1, 3, 0, 4));
  EXPECT_THAT(best_scores(scores, 100, anyone), ElementsAre(5, 1, 3, 0, 4, 6, 2));
}

TEST(BestScores, are_fewer_where_there_are_fewer_candidates) {
  const std::vector<float> scores = {4.0F, 1.0F, 3.0F, -5.0F};
  const auto is_odd = [](size_t index) { return index % 2 == 1; };
  EXPECT_THAT(best_scores(scores, 1, is_odd), ElementsAre(1));
  EXPECT_THAT(best_scores(scores, 3, is_odd), ElementsAre(1, 3));
  EXPECT_THAT(best_scores(scores, 3, [](size_t) { return false; }), IsEmpty());
  EXPECT_THAT(best_scores(scores, 0, anyone), IsEmpty());
  EXPECT_THAT(best_scores(std::vector<float>{}, 1, anyone), IsEmpty());
}

TEST(BestScores, leave_out_what_is_not_a_number) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(best_scores(std::vector<float>{nan, 1.0F, nan, 2.0F}, 3, anyone), ElementsAre(3, 1));
}

TEST(BestScores, are_those_of_a_full_sort) {
  std::mt19937 draw(7);
  std::vector<float> scores(500);
  for (float& score : scores) score = static_cast<float>(draw() % 40);
  std::vector<int32_t> sorted(scores.size());
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = static_cast<int32_t>(i);
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  for (const int64_t k : {1, 2, 10, 499, 500}) {
    EXPECT_EQ(best_scores(scores, k, anyone), std::vector<int32_t>(sorted.begin(), sorted.begin() + k)) << k;
  }
}

}  // namespace
}  // namespace lockstep
