// RecommenderData: ratings split into training, validation and test, and the negatives that are drawn for training.
//
// Role: prepares what becomes the tensors of batches and evaluations. The split and all draws are pure functions of the
// seed, the same on every rank.
// The split is the guide's: all ratings in a random order; the first ⌊train · N⌋ train, the ⌊valid · N⌋ + 1 that follow
// validate (pandas' ranges of rows include their end), the others test. Validation and test ratings of users without a
// training rating are dropped. Ratings of films that are kept back (RatingData) go to the test.
// Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/gpt2rec/data/movielens.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"

namespace lockstep {

// The items of each user, distinct and ascending.
class ItemsOfUsers {
 public:
  ItemsOfUsers() = default;
  ItemsOfUsers(int64_t num_users, std::vector<Rating> ratings);

  [[nodiscard]] std::span<const int32_t> items_of(int64_t user) const;
  [[nodiscard]] bool has(int64_t user, int32_t item) const;
  // The users that have items, ascending.
  [[nodiscard]] const std::vector<int64_t>& users() const { return users_; }

 private:
  std::vector<int64_t> offsets_ = {0};
  std::vector<int32_t> items_;
  std::vector<int64_t> users_;
};

struct RatingSplit {
  std::vector<Rating> train;
  std::vector<Rating> valid;
  std::vector<Rating> test;
  int64_t dropped = 0;  // ratings of users without a training rating
};
RatingSplit split_ratings(const RatingData& data, const SplitRatio& ratio, uint64_t seed);

class RecommenderData {
 public:
  // kInvalid: there is no training rating for which a negative can be drawn.
  static Result<RecommenderData> create(const RatingData& data, const SplitRatio& ratio, uint64_t seed);

  [[nodiscard]] int64_t num_users() const { return num_users_; }  // ids from 0, those without ratings too
  [[nodiscard]] int64_t num_items() const { return num_items_; }
  [[nodiscard]] std::span<const Rating> train() const { return train_; }
  [[nodiscard]] const ItemsOfUsers& trained() const { return trained_; }
  [[nodiscard]] const ItemsOfUsers& validated() const { return validated_; }
  [[nodiscard]] const ItemsOfUsers& tested() const { return tested_; }
  [[nodiscard]] int64_t valid_ratings() const { return valid_ratings_; }
  [[nodiscard]] int64_t test_ratings() const { return test_ratings_; }
  [[nodiscard]] int64_t dropped_ratings() const { return dropped_ratings_; }
  // The films that have training ratings, ascending. Negatives are drawn from these.
  [[nodiscard]] std::span<const int32_t> train_items() const { return train_items_; }
  // By film: does it have test ratings, but none in training and validation?
  [[nodiscard]] const std::vector<bool>& cold_in_test() const { return is_cold_; }

  // Negative number `index` of training rating `sample`: a random film of train_items() that has no training rating of
  // the same user. Two negatives of a rating may be the same film. kStatic: the same film in every epoch.
  [[nodiscard]] int32_t negative(int64_t sample, int64_t index, NegativeDraw draw, uint64_t seed, int64_t epoch) const;

 private:
  int64_t num_users_ = 0;
  int64_t num_items_ = 0;
  std::vector<Rating> train_;
  ItemsOfUsers trained_;
  ItemsOfUsers validated_;
  ItemsOfUsers tested_;
  int64_t valid_ratings_ = 0;
  int64_t test_ratings_ = 0;
  int64_t dropped_ratings_ = 0;
  std::vector<int32_t> train_items_;
  std::vector<bool> is_cold_;
};

}  // namespace lockstep
