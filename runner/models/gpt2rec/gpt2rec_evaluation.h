// Evaluation of the recommender: all films are scored for each user, and the best 50 are looked at.
//
// Role: the guide's two evaluations from one pass of scores.
//   validation  all ids are candidates, the films trained on too; NDCG and HR (any hit)
//   test        candidates are all ids but those of the user's training and validation; Recall, Precision and NDCG
// NDCG@k divides by the best that min(k, number of the user's films) can reach. Where films are in the test alone
// (cold), "test_cold_ndcg@10" ranks them among themselves.
// Figures do not depend on the world size: users are scored in fixed chunks of the whole list, a rank takes whole
// chunks, and every summand is a multiple of 2^-30, so that sums are exact in any order.
// Memory: kUsersAtOnce × kFilmsAtOnce × 128 values at a time.
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runner/models/gpt2rec/recommender_data.h"
#include "runner/models/gpt2rec/recommender_model.h"
#include "runner/models/workload.h"

namespace lockstep {

inline constexpr int64_t kUsersAtOnce = 16;
inline constexpr int64_t kFilmsAtOnce = 4096;
inline constexpr int64_t kTopCount = 50;

// The `count` best of `scores` where `is_candidate` holds (empty: everywhere), the best first; of equal scores the one
// with the lower index. A score that is not a number is the worst.
std::vector<int32_t> best_scores(std::span<const float> scores, const std::vector<bool>& is_candidate, int64_t count);

struct RankingFigures {
  double ndcg = 0.0;
  double recall = 0.0;
  double precision = 0.0;
  double hit = 0.0;  // 0 or 1
};
// Of the first `k` of a ranking; `wanted`: ascending, at least one. Each rounded to a multiple of 2^-30.
RankingFigures ranking_figures(std::span<const int32_t> ranking, std::span<const int32_t> wanted, int64_t k);

// All films' scores [U, I] on the CPU, for the users whose parts of the first layer these are.
at::Tensor all_scores(const RecommenderModel& model, const at::Tensor& user_parts_UH, const at::Tensor& item_parts_IH);

// `user_parts`, `item_parts`: of all users and films (RecommenderModel::user_part).
std::vector<MetricSum> evaluate_rankings(const RecommenderModel& model, const RecommenderData& data,
                                         const at::Tensor& user_parts, const at::Tensor& item_parts,
                                         const EvaluationShard& shard);

}  // namespace lockstep
