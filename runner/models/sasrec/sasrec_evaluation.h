// Evaluation of SASRec: where the held-out item ranks, among 100 drawn candidates and among all items.
//
// Role: one pass of the encoder and one product with the item table per chunk of users serve both rankings.
// Figures do not depend on which rank evaluates a user: users are evaluated in fixed chunks of the whole list, a rank
// takes whole chunks, and every summand is a multiple of 2^-30, so that sums are exact in any order. A chunk has as
// many users as a micro-batch of the run, but at most kUsersPerChunk. The micro-batch follows from the number of ranks
// at the first start; runs that were started with another number have other chunks, and the rounding of their matrix
// products may decide a tie of two scores differently. Memory: the scores (fp32) of one chunk's users for all items.
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runner/models/sasrec/sasrec_data.h"
#include "runner/models/sasrec/sequence_model.h"
#include "runner/models/workload.h"

namespace lockstep {

// Writes a user's items, and their times (empty: they have none), as SasrecData's fill_… functions do.
using FillRow = std::function<void(int64_t user, std::span<int64_t> seq, std::span<int64_t> times)>;
// Returns scores_BI on the host: [users, I + 1], fp32.
at::Tensor score_all_items(const SequenceModel& model, const SasrecData& data, std::span<const int64_t> users,
                           int64_t maxlen, const FillRow& fill_row);

inline constexpr int64_t kUsersPerChunk = 64;  // at most
inline constexpr int64_t kTopK = 10;

struct SasrecEvaluationOptions {
  int64_t maxlen = 0;
  int64_t users_max = 0;  // 0 = all
  int64_t candidates = 100;
  bool full_ranking = true;
};

// Returns valid_ndcg@10, valid_hr@10, test_ndcg@10, test_hr@10, and with full_ranking the same with the prefix "full_".
// The candidates are drawn with `shard.seed`. The full ranking leaves out the user's training items, and in the test
// pass also the validation item. Ties favour the held-out item; a score that is NaN counts against it.
std::vector<MetricSum> evaluate_sasrec(const SequenceModel& model, const SasrecData& data,
                                       const SasrecEvaluationOptions& options, const EvaluationShard& shard);

// 1 / log2(rank + 2), rounded to a multiple of 2^-30, if rank < kTopK; else 0. `rank` counts from 0.
double ndcg_at_10(int64_t rank);

}  // namespace lockstep
