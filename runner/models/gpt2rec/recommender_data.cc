#include "runner/models/gpt2rec/recommender_data.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/philox.h"
#include "runner/data/sampler.h"

namespace lockstep {
namespace {

// The split uses the order of this epoch, which is never trained. (split_order would give another split: a run that is
// resumed would then validate on ratings that it was trained on.)
constexpr int64_t kEpochOfSplit = -1;

// Random draws of a negative before the films are tried one after the other.
constexpr uint32_t kNegativeTries = 64;

// ⌊share · count⌋, computed as in the guide.
int64_t rounded_count(double fraction, size_t count) {
  return static_cast<int64_t>(std::floor(fraction * static_cast<double>(count)));
}

}  // namespace

ItemsOfUsers::ItemsOfUsers(int64_t num_users, std::vector<Rating> ratings) {
  std::sort(ratings.begin(), ratings.end(),
            [](const Rating& a, const Rating& b) { return std::pair(a.user, a.item) < std::pair(b.user, b.item); });
  offsets_.reserve(static_cast<size_t>(num_users) + 1);
  items_.reserve(ratings.size());
  size_t at = 0;
  for (int64_t user = 0; user < num_users; ++user) {
    const size_t before = items_.size();
    for (; at < ratings.size() && ratings[at].user == user; ++at) {
      if (items_.size() == before || items_.back() != ratings[at].item) items_.push_back(ratings[at].item);
    }
    if (items_.size() > before) users_.push_back(user);
    offsets_.push_back(static_cast<int64_t>(items_.size()));
  }
}

std::span<const int32_t> ItemsOfUsers::items_of(int64_t user) const {
  const auto u = static_cast<size_t>(user);
  return {items_.data() + offsets_[u], static_cast<size_t>(offsets_[u + 1] - offsets_[u])};
}

bool ItemsOfUsers::has(int64_t user, int32_t item) const {
  const std::span<const int32_t> items = items_of(user);
  return std::binary_search(items.begin(), items.end(), item);
}

RatingSplit split_ratings(const RatingData& data, const SplitRatio& ratio, uint64_t seed) {
  RatingSplit split;
  std::vector<Rating> shuffled;
  std::vector<Rating> kept_back;
  const std::vector<int64_t> order = epoch_order(seed, kEpochOfSplit, static_cast<int64_t>(data.ratings.size()));
  for (const int64_t row : order) {
    const Rating& rating = data.ratings[static_cast<size_t>(row)];
    const bool is_kept_back = !data.is_kept_back.empty() && data.is_kept_back[static_cast<size_t>(rating.item)];
    (is_kept_back ? kept_back : shuffled).push_back(rating);
  }
  const auto count = static_cast<int64_t>(shuffled.size());
  const int64_t train_end = std::min(count, rounded_count(ratio.train, shuffled.size()));
  const int64_t of_valid = rounded_count(ratio.valid, shuffled.size()) + 1;
  const int64_t valid_end = ratio.test > 0.0 ? std::min(count, train_end + of_valid) : count;
  split.train.assign(shuffled.begin(), shuffled.begin() + train_end);
  std::vector<bool> is_trained_on(data.users.size(), false);
  for (const Rating& rating : split.train) is_trained_on[static_cast<size_t>(rating.user)] = true;
  const auto take = [&](const Rating& rating, std::vector<Rating>& part) {
    if (is_trained_on[static_cast<size_t>(rating.user)]) {
      part.push_back(rating);
    } else {
      ++split.dropped;
    }
  };
  for (int64_t i = train_end; i < count; ++i) {
    take(shuffled[static_cast<size_t>(i)], i < valid_end ? split.valid : split.test);
  }
  for (const Rating& rating : kept_back) take(rating, split.test);
  return split;
}

Result<RecommenderData> RecommenderData::create(const RatingData& data, const SplitRatio& ratio, uint64_t seed) {
  RatingSplit split = split_ratings(data, ratio, seed);
  RecommenderData made;
  made.num_users_ = static_cast<int64_t>(data.users.size());
  made.num_items_ = static_cast<int64_t>(data.films.size());
  made.valid_ratings_ = static_cast<int64_t>(split.valid.size());
  made.test_ratings_ = static_cast<int64_t>(split.test.size());
  made.dropped_ratings_ = split.dropped;
  std::vector<bool> is_known(data.films.size(), false);
  made.is_cold_.assign(data.films.size(), false);
  for (const Rating& rating : split.train) is_known[static_cast<size_t>(rating.item)] = true;
  for (int32_t item = 0; item < made.num_items_; ++item) {
    if (is_known[static_cast<size_t>(item)]) made.train_items_.push_back(item);
  }
  for (const Rating& rating : split.valid) is_known[static_cast<size_t>(rating.item)] = true;
  for (const Rating& rating : split.test) {
    made.is_cold_[static_cast<size_t>(rating.item)] = !is_known[static_cast<size_t>(rating.item)];
  }
  made.trained_ = ItemsOfUsers(made.num_users_, split.train);
  made.validated_ = ItemsOfUsers(made.num_users_, std::move(split.valid));
  made.tested_ = ItemsOfUsers(made.num_users_, std::move(split.test));
  // Leave out the ratings of users who have rated all films: there is no negative for them.
  const size_t all = made.train_items_.size();
  std::copy_if(split.train.begin(), split.train.end(), std::back_inserter(made.train_),
               [&](const Rating& rating) { return made.trained_.items_of(rating.user).size() < all; });
  const auto nothing_for = [&](const std::string& part) {
    return Error{ErrorCode::kInvalid, data.path + ": --split_ratio leaves none of the " +
                                          std::to_string(data.ratings.size()) + " ratings for " + part +
                                          "; give a larger data set or a larger share"};
  };
  if (split.train.empty()) return nothing_for("training");
  if (made.train_.empty()) {
    return Error{ErrorCode::kInvalid,
                 data.path + ": nothing to train on: every user has rated all " + std::to_string(all) +
                     " films, so there is no film to compare a rating with; expected a larger data set"};
  }
  if (made.validated_.users().empty()) {
    return nothing_for("validation (those of users without a training rating do not count)");
  }
  return made;
}

int32_t RecommenderData::negative(int64_t sample, int64_t index, NegativeDraw draw, uint64_t seed,
                                  int64_t epoch) const {
  const int32_t user = train_[static_cast<size_t>(sample)].user;
  const auto films = static_cast<uint32_t>(train_items_.size());
  const uint32_t step = draw == NegativeDraw::kStatic ? 0 : static_cast<uint32_t>(epoch) + 1;
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPurpose::kNegatives), step,
                            static_cast<uint32_t>(sample)};
  uint32_t at = 0;
  Philox4 words{};
  for (uint32_t draws = 0; draws < kNegativeTries; ++draws) {
    if (draws % 4 == 0) words = stream.block((static_cast<uint32_t>(index) * kNegativeTries + draws) / 4);
    at = static_cast<uint32_t>((static_cast<uint64_t>(words.x[draws % 4]) * films) >> 32);
    if (!trained_.has(user, train_items_[at])) return train_items_[at];
  }
  // So many draws fail only for users who have rated nearly all films: take the next film that the user has not rated.
  while (trained_.has(user, train_items_[at])) at = (at + 1) % films;
  return train_items_[at];
}

}  // namespace lockstep
