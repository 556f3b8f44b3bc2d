#include "runner/models/gpt2rec/recommender_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "runner/models/gpt2rec/data/generated_movies.h"

namespace lockstep {
namespace {

// `users` users who have all rated the films 1 to `films`, each a different number of them.
RatingData ratings_of(int32_t users, int32_t films) {
  RatingData data{.path = "made",
                  .form = "",
                  .ratings = {},
                  .users = std::vector<UserProfile>(static_cast<size_t>(users) + 1),
                  .films = std::vector<Film>(static_cast<size_t>(films) + 1),
                  .is_kept_back = {}};
  for (int32_t user = 1; user <= users; ++user) {
    for (int32_t film = 1; film <= films - user % 5; ++film) data.ratings.push_back({user, film});
  }
  return data;
}

using Pairs = std::multiset<std::pair<int32_t, int32_t>>;

Pairs pairs_of(const std::vector<Rating>& ratings) {
  Pairs pairs;
  for (const Rating& rating : ratings) pairs.emplace(rating.user, rating.item);
  return pairs;
}

TEST(RatingSplit, has_the_sizes_of_pandas_ranges_which_include_their_end) {
  const RatingData data = ratings_of(20, 23);
  const auto count = static_cast<double>(data.ratings.size());  // 420
  const RatingSplit split = split_ratings(data, {}, 42);
  EXPECT_EQ(split.train.size(), static_cast<size_t>(0.8 * count));
  EXPECT_EQ(split.valid.size(), static_cast<size_t>(0.1 * count) + 1);
  EXPECT_EQ(split.dropped, 0);
  Pairs all = pairs_of(split.train);
  all.merge(pairs_of(split.valid));
  all.merge(pairs_of(split.test));
  EXPECT_EQ(all, pairs_of(data.ratings));
}

TEST(RatingSplit, follows_the_seed_and_nothing_else) {
  const RatingData data = ratings_of(20, 23);
  EXPECT_EQ(pairs_of(split_ratings(data, {}, 42).test), pairs_of(split_ratings(data, {}, 42).test));
  EXPECT_NE(pairs_of(split_ratings(data, {}, 42).test), pairs_of(split_ratings(data, {}, 43).test));
}

TEST(RatingSplit, without_a_test_share_all_is_for_training_and_validation) {
  const RatingData data = ratings_of(20, 23);
  const RatingSplit no_test = split_ratings(data, {.train = 0.9, .valid = 0.1, .test = 0.0}, 42);
  EXPECT_TRUE(no_test.test.empty());
  EXPECT_EQ(no_test.train.size() + no_test.valid.size(), data.ratings.size());
}

TEST(RatingSplit, drops_who_is_not_trained_on_and_keeps_films_back_for_the_test) {
  RatingData data = ratings_of(400, 2);  // many have a single rating
  const RatingSplit split = split_ratings(data, {.train = 0.4, .valid = 0.3, .test = 0.3}, 42);
  std::set<int32_t> trained;
  for (const Rating& rating : split.train) trained.insert(rating.user);
  EXPECT_GT(split.dropped, 0);
  for (const auto* part : {&split.valid, &split.test}) {
    for (const Rating& rating : *part) EXPECT_TRUE(trained.contains(rating.user));
  }
  data = ratings_of(30, 20);
  data.is_kept_back.assign(data.films.size(), false);
  data.is_kept_back[3] = true;
  const RatingSplit kept = split_ratings(data, {}, 42);
  const auto has_film = [](const std::vector<Rating>& part) {
    return std::any_of(part.begin(), part.end(), [](const Rating& rating) { return rating.item == 3; });
  };
  EXPECT_FALSE(has_film(kept.train));
  EXPECT_FALSE(has_film(kept.valid));
  EXPECT_TRUE(has_film(kept.test));
}

TEST(RecommenderData, negatives_are_trained_films_that_the_user_does_not_train_on) {
  const RecommenderData data = *RecommenderData::create(generated_movies(), {}, 7);
  const std::span<const int32_t> films = data.train_items();
  std::map<int32_t, int> drawn;
  for (int64_t sample = 0; sample < static_cast<int64_t>(data.train().size()); ++sample) {
    const int32_t film = data.negative(sample, 0, NegativeDraw::kStatic, 7, 0);
    EXPECT_FALSE(data.trained().has(data.train()[static_cast<size_t>(sample)].user, film));
    EXPECT_TRUE(std::binary_search(films.begin(), films.end(), film));
    ++drawn[film];
  }
  EXPECT_EQ(drawn.size(), films.size());  // each is drawn now and then
}

TEST(RecommenderData, static_negatives_stay_and_resampled_ones_change_with_the_epoch) {
  const RecommenderData data = *RecommenderData::create(generated_movies(), {}, 7);
  int same = 0;
  int equal = 0;
  for (int64_t sample = 0; sample < 1'000; ++sample) {
    const auto drawn = [&](NegativeDraw draw, int64_t epoch) { return data.negative(sample, 0, draw, 7, epoch); };
    EXPECT_EQ(drawn(NegativeDraw::kStatic, 0), drawn(NegativeDraw::kStatic, 5));
    same += drawn(NegativeDraw::kResample, 0) == drawn(NegativeDraw::kResample, 1) ? 1 : 0;
    equal += drawn(NegativeDraw::kStatic, 0) == data.negative(sample, 1, NegativeDraw::kStatic, 7, 0) ? 1 : 0;
  }
  EXPECT_LT(same, 50);
  EXPECT_LT(equal, 50);  // the negatives of one rating
}

TEST(RecommenderData, a_user_who_has_seen_all_films_but_one_gets_that_one_as_negative) {
  RatingData data = ratings_of(5, 100);
  data.films.resize(102);
  data.ratings.clear();
  // So often that the split leaves some of each for training.
  for (int copy = 0; copy < 50; ++copy) {
    for (int32_t film = 1; film <= 100; ++film) data.ratings.push_back({1, film});
    data.ratings.push_back({2, 101});
  }
  const RecommenderData made = *RecommenderData::create(data, {.train = 0.9, .valid = 0.1, .test = 0.0}, 3);
  ASSERT_EQ(made.trained().items_of(1).size(), 100U);
  ASSERT_EQ(made.trained().items_of(2).size(), 1U);
  for (int64_t sample = 0; sample < static_cast<int64_t>(made.train().size()); ++sample) {
    if (made.train()[static_cast<size_t>(sample)].user == 1) {
      EXPECT_EQ(made.negative(sample, 0, NegativeDraw::kStatic, 3, 0), 101);
    }
  }
}

TEST(RecommenderData, a_data_set_that_leaves_nothing_to_do_is_refused) {
  const auto refusal = [](const RatingData& data, const SplitRatio& ratio) {
    const Result<RecommenderData> made = RecommenderData::create(data, ratio, 3);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_THAT(refusal(ratings_of(1, 10), {}), ::testing::HasSubstr("nothing to train on: every user has rated all"));
  EXPECT_THAT(refusal(ratings_of(1, 2), {}),
              ::testing::HasSubstr("--split_ratio leaves none of the 1 ratings for training"));
  // With some seed the rating of the validation is that of user 3, who has no other one.
  RatingData data = ratings_of(3, 4);
  data.ratings = {{1, 1}, {1, 2}, {2, 3}, {3, 4}};
  std::string message;
  for (uint64_t seed = 0; seed < 20 && message.empty(); ++seed) {
    const Result<RecommenderData> made =
        RecommenderData::create(data, {.train = 0.75, .valid = 0.25, .test = 0.0}, seed);
    message = made.ok() ? "" : made.error().message;
  }
  EXPECT_THAT(message, ::testing::HasSubstr("--split_ratio leaves none of the 4 ratings for validation"));
}

TEST(RecommenderData, films_of_the_test_alone_are_cold) {
  const RatingData movies = generated_movies();
  std::set<int32_t> rated;
  for (const Rating& rating : movies.ratings) rated.insert(rating.item);
  const RecommenderData data = *RecommenderData::create(movies, {}, 7);
  int64_t cold = 0;
  for (size_t film = 1; film < data.cold_in_test().size(); ++film) {
    const bool is_kept_back = film % 7 == 0;
    EXPECT_EQ(data.cold_in_test()[film], is_kept_back && rated.contains(static_cast<int32_t>(film))) << film;
    cold += data.cold_in_test()[film] ? 1 : 0;
  }
  EXPECT_GT(cold, 50);
  EXPECT_FALSE(data.cold_in_test()[0]);  // nobody's
}

}  // namespace
}  // namespace lockstep
