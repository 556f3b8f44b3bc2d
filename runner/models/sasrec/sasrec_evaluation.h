// Evaluation of SASRec: where the held-out item ranks, among 100 drawn candidates and among all items.
//
// Role: one pass of the encoder and one product with the item table per chunk of users serve both rankings.
// Figures do not depend on the world size: users are evaluated in fixed chunks of the whole list, a rank takes whole
// chunks, and every summand is a multiple of 2^-30, so that sums are exact in any order. A chunk has as many users as a
// micro-batch of the run, which stays the same when other ranks go on with it, and kUsersPerChunk at most.
// Memory: users of a chunk × items scores (fp32) at a time.
// Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/models/sasrec/sasrec_data.h"
#include "runner/models/sasrec/sequence_model.h"
#include "runner/models/workload.h"

namespace lockstep {

inline constexpr int64_t kUsersPerChunk = 64;  // at most
inline constexpr int64_t kTopK = 10;

struct SasrecEvaluationOptions {
  int64_t maxlen = 0;
  int64_t users_max = 0;  // 0 = all
  int64_t candidates = 100;
  bool full_ranking = true;
};

// valid_ndcg@10, valid_hr@10, test_ndcg@10, test_hr@10, and with full_ranking the same with "full_" in front.
// The candidates come from `shard.seed`. In full ranking the items trained on are left out, in the test pass the
// validation item too. Ties favour the held-out item; a score that is not a number counts against it.
std::vector<MetricSum> evaluate_sasrec(const SequenceModel& model, const SasrecData& data,
                                       const SasrecEvaluationOptions& options, const EvaluationShard& shard);

// 1 / log2(rank + 2) below kTopK, rounded to a multiple of 2^-30, else 0. `rank` counts from 0.
double ndcg_at_10(int64_t rank);

}  // namespace lockstep
