// RecommenderData: ratings split for training, validation and test, and the films that are drawn against them.
//
// Role: everything of a batch or an evaluation that happens before tensors. The split and all draws are pure functions
// of the seed, the same on every rank.
// The split is the guide's: all ratings in a random order; the first ⌊train · N⌋ train, the ⌊valid · N⌋ + 1 that follow
// validate (pandas' ranges of rows include their end), the others test. What a user who is not trained on rates in the
// validation or the test is dropped. Ratings of films that are kept back (RatingData) come to the test.
// Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/gpt2rec/movielens.h"

namespace lockstep {

// Items by user, each user's ascending and distinct.
class ItemsOfUsers {
 public:
  ItemsOfUsers() = default;
  ItemsOfUsers(int64_t num_users, std::vector<Rating> ratings);

  [[nodiscard]] std::span<const int32_t> of(int64_t user) const;
  [[nodiscard]] bool has(int64_t user, int32_t item) const;
  // Those who have any, ascending.
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
  int64_t dropped = 0;  // of users who are not trained on
};
RatingSplit split_ratings(const RatingData& data, const SplitRatio& ratio, uint64_t seed);

class RecommenderData {
 public:
  // kInvalid: nothing to train on, or no film to draw against.
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
  // Films that are trained on, ascending: what negatives are drawn from.
  [[nodiscard]] std::span<const int32_t> train_items() const { return train_items_; }
  // By film: is it in the test and never trained on or validated?
  [[nodiscard]] const std::vector<bool>& cold_in_test() const { return is_cold_; }

  // A film of train_items() that the user of rating `sample` does not train on. kStatic: the same in every epoch.
  [[nodiscard]] int32_t negative(int64_t sample, NegativeDraw draw, uint64_t seed, int64_t epoch) const;

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
