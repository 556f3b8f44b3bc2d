#include "runner/models/gpt2rec/gpt2rec_evaluation.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>

#include "runner/base/mutex.h"
#include "runner/models/best_scores.h"

namespace lockstep {
namespace {

constexpr std::array<int64_t, 3> kCutoffs = {10, 20, 50};

double on_grid(double value) {
  constexpr double kGrid = 1073741824.0;  // 2^30: sums of a million users stay exact in a double
  return std::round(value * kGrid) / kGrid;
}

double discount(int64_t place) { return 1.0 / std::log2(static_cast<double>(place) + 2.0); }

RankingFigures& operator+=(RankingFigures& sums, const RankingFigures& figures) {
  sums.ndcg += figures.ndcg;
  sums.recall += figures.recall;
  sums.precision += figures.precision;
  sums.hit += figures.hit;
  return sums;
}

class RankingSums {
 public:
  RankingSums(const RecommenderData& data, bool valid_seen)
      : data_(data), valid_seen_(valid_seen), is_candidate_(static_cast<size_t>(data.num_items()), true) {}

  void add_user(int64_t user, std::span<const float> scores) {
    const std::span<const int32_t> valid = data_.validated().items_of(user);
    const std::span<const int32_t> test = data_.tested().items_of(user);
    if (!valid.empty()) {
      if (!valid_seen_) set_candidates(data_.trained().items_of(user), false);
      const std::vector<int32_t> ranking =
          best_scores(scores, kTopCount, [&](size_t item) { return is_candidate_[item]; });
      if (!valid_seen_) set_candidates(data_.trained().items_of(user), true);
      for (size_t i = 0; i < kCutoffs.size(); ++i) valid_[i] += ranking_figures(ranking, valid, kCutoffs[i]);
      valid_users_ += 1.0;
    }
    if (test.empty()) return;
    add_test(user, scores, test, valid);
  }

  void add(const RankingSums& other) {
    for (size_t i = 0; i < kCutoffs.size(); ++i) {
      valid_[i] += other.valid_[i];
      test_[i] += other.test_[i];
    }
    valid_users_ += other.valid_users_;
    test_users_ += other.test_users_;
    cold_ndcg_ += other.cold_ndcg_;
    cold_users_ += other.cold_users_;
  }

  // The same names on every rank.
  [[nodiscard]] std::vector<MetricSum> result() const {
    std::vector<MetricSum> list;
    for (size_t i = 0; i < kCutoffs.size(); ++i) {
      const std::string at = "@" + std::to_string(kCutoffs[i]);
      list.push_back({"valid_ndcg" + at, valid_[i].ndcg, valid_users_});
      list.push_back({"valid_hr" + at, valid_[i].hit, valid_users_});
    }
    for (size_t i = 0; i < kCutoffs.size(); ++i) {
      const std::string at = "@" + std::to_string(kCutoffs[i]);
      list.push_back({"test_recall" + at, test_[i].recall, test_users_});
      list.push_back({"test_precision" + at, test_[i].precision, test_users_});
      list.push_back({"test_ndcg" + at, test_[i].ndcg, test_users_});
    }
    list.push_back({"test_cold_ndcg@10", cold_ndcg_, cold_users_});
    return list;
  }

 private:
  void set_candidates(std::span<const int32_t> items, bool value) {
    for (const int32_t item : items) is_candidate_[static_cast<size_t>(item)] = value;
  }

  void add_test(int64_t user, std::span<const float> scores, std::span<const int32_t> test,
                std::span<const int32_t> valid) {
    const std::span<const int32_t> trained = data_.trained().items_of(user);
    set_candidates(trained, false);
    set_candidates(valid, false);
    const std::vector<int32_t> ranking =
        best_scores(scores, kTopCount, [&](size_t item) { return is_candidate_[item]; });
    set_candidates(trained, true);
    set_candidates(valid, true);
    for (size_t i = 0; i < kCutoffs.size(); ++i) test_[i] += ranking_figures(ranking, test, kCutoffs[i]);
    test_users_ += 1.0;

    std::vector<int32_t> cold;
    std::copy_if(test.begin(), test.end(), std::back_inserter(cold),
                 [&](int32_t item) { return data_.cold_in_test()[static_cast<size_t>(item)]; });
    if (cold.empty()) return;
    const std::vector<int32_t> among_cold =
        best_scores(scores, kCutoffs[0], [&](size_t item) { return data_.cold_in_test()[item]; });
    cold_ndcg_ += ranking_figures(among_cold, cold, kCutoffs[0]).ndcg;
    cold_users_ += 1.0;
  }

  const RecommenderData& data_;
  bool valid_seen_;
  std::vector<bool> is_candidate_;                     // all true between two users
  std::array<RankingFigures, kCutoffs.size()> valid_;  // summed over users
  std::array<RankingFigures, kCutoffs.size()> test_;
  double valid_users_ = 0.0;
  double test_users_ = 0.0;
  double cold_ndcg_ = 0.0;
  double cold_users_ = 0.0;
};

// The users with films in the validation or the test, ascending.
std::vector<int64_t> evaluated_users(const RecommenderData& data) {
  std::vector<int64_t> users;
  std::set_union(data.validated().users().begin(), data.validated().users().end(), data.tested().users().begin(),
                 data.tested().users().end(), std::back_inserter(users));
  return users;
}

}  // namespace

RankingFigures ranking_figures(std::span<const int32_t> ranking, std::span<const int32_t> wanted, int64_t k) {
  double gained = 0.0;
  int64_t hits = 0;
  const int64_t places = std::min(k, static_cast<int64_t>(ranking.size()));
  for (int64_t place = 0; place < places; ++place) {
    if (!std::binary_search(wanted.begin(), wanted.end(), ranking[static_cast<size_t>(place)])) continue;
    gained += discount(place);
    ++hits;
  }
  double best = 0.0;
  for (int64_t place = 0; place < std::min(k, static_cast<int64_t>(wanted.size())); ++place) best += discount(place);
  return {.ndcg = on_grid(gained / best),
          .recall = on_grid(static_cast<double>(hits) / static_cast<double>(wanted.size())),
          .precision = on_grid(static_cast<double>(hits) / static_cast<double>(k)),
          .hit = hits > 0 ? 1.0 : 0.0};
}

std::vector<MetricSum> evaluate_rankings(const RecommenderModel& model, const RecommenderData& data,
                                         const at::Tensor& user_terms_UH, const at::Tensor& item_terms_IH,
                                         bool valid_seen, const EvaluationShard& shard) {
  const torch::NoGradGuard no_grad;
  const std::vector<int64_t> users = evaluated_users(data);
  const auto total = static_cast<int64_t>(users.size());
  RankingSums sums(data, valid_seen);
  const auto films = static_cast<size_t>(item_terms_IH.size(0));
  for (int64_t begin = shard.rank * kUsersAtOnce; begin < total && shard.goes_on();
       begin += shard.world_size * kUsersAtOnce) {
    const int64_t n = std::min(kUsersAtOnce, total - begin);
    const at::Tensor chunk_U = at::empty({n}, at::kLong);
    std::copy_n(users.begin() + begin, n, chunk_U.mutable_data_ptr<int64_t>());
    const at::Tensor scores_UI =
        model.scores(user_terms_UH.index_select(0, chunk_U.to(user_terms_UH.device())), item_terms_IH).to(at::kCPU);
    Mutex mutex;
    at::parallel_for(0, n, /*grain_size=*/1, [&](int64_t first, int64_t end) {
      RankingSums part(data, valid_seen);
      for (int64_t i = first; i < end; ++i) {
        const float* const scores_I = scores_UI.const_data_ptr<float>() + static_cast<size_t>(i) * films;
        part.add_user(users[static_cast<size_t>(begin + i)], {scores_I, films});
      }
      const MutexLock lock(mutex);
      sums.add(part);
    });
  }
  return sums.result();
}

}  // namespace lockstep
