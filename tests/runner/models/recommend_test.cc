#include "runner/models/sasrec/recommend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNone = -std::numeric_limits<float>::infinity();

TEST(BestIndices, are_the_highest_first_and_of_equal_ones_the_lowest) {
  const std::vector<float> scores = {0.5F, 2.0F, -1.0F, 2.0F, 0.5F, 3.0F, 0.5F};
  EXPECT_THAT(best_indices(scores, 3), ElementsAre(5, 1, 3));
  EXPECT_THAT(best_indices(scores, 5), ElementsAre(5, 1, 3, 0, 4));
  EXPECT_THAT(best_indices(scores, 100), ElementsAre(5, 1, 3, 0, 4, 6, 2));
}

TEST(BestIndices, are_fewer_where_there_are_fewer_candidates) {
  EXPECT_THAT(best_indices(std::vector<float>{kNone, 1.0F, kNone, -5.0F}, 3), ElementsAre(1, 3));
  EXPECT_THAT(best_indices(std::vector<float>{kNone, kNone}, 1), IsEmpty());
  EXPECT_THAT(best_indices(std::vector<float>{}, 1), IsEmpty());
  EXPECT_THAT(best_indices(std::vector<float>{1.0F}, 0), IsEmpty());
}

TEST(BestIndices, are_those_of_a_full_sort) {
  std::mt19937 draw(7);
  std::vector<float> scores(500);
  for (float& score : scores) score = static_cast<float>(draw() % 40);
  std::vector<int32_t> sorted(scores.size());
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = static_cast<int32_t>(i);
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  for (const int64_t k : {1, 2, 10, 499, 500}) {
    EXPECT_EQ(best_indices(scores, k), std::vector<int32_t>(sorted.begin(), sorted.begin() + k)) << k;
  }
}

}  // namespace
}  // namespace lockstep
