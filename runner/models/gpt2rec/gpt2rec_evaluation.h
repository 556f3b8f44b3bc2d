// Evaluation of the recommender: scores all films for each user, and compares the 50 best with the user's films.
//
// Role: the guide's two evaluations, from the same scores.
//   validation  all ids are candidates, also the films that the user trained on, unless --valid_seen false leaves them
//               out; NDCG and HR (1 if there is any hit)
//   test        candidates are all ids but the user's training and validation films; Recall, Precision and NDCG
// NDCG@k is the DCG divided by the highest DCG that the user's films can reach in k places. Films that are in the test
// alone are cold: "test_cold_ndcg@10" ranks these among themselves.
// Figures do not depend on the world size: users are scored in fixed chunks of the whole list, a rank takes whole
// chunks, and every summand is a multiple of 2^-30, so that sums are exact in any order.
// Threads: called by one; on a CPU it splits the users of a chunk over ATen's threads.
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
inline constexpr int64_t kTopCount = 50;

struct RankingFigures {
  double ndcg = 0.0;
  double recall = 0.0;
  double precision = 0.0;
  double hit = 0.0;  // 0 or 1
};
// The figures of the first `k` places of a ranking, each rounded to a multiple of 2^-30. `wanted`: the user's films,
// ascending, at least one.
RankingFigures ranking_figures(std::span<const int32_t> ranking, std::span<const int32_t> wanted, int64_t k);

// user_terms_UH, item_terms_IH: those of all users and all films.
std::vector<MetricSum> evaluate_rankings(const RecommenderModel& model, const RecommenderData& data,
                                         const at::Tensor& user_terms_UH, const at::Tensor& item_terms_IH,
                                         bool valid_seen, const EvaluationShard& shard);

}  // namespace lockstep
