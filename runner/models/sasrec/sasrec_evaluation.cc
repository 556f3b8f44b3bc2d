#include "runner/models/sasrec/sasrec_evaluation.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

namespace lockstep {
namespace {

// Does `score` rank above `target`? True also if one of them is NaN.
bool beats(float score, float target) { return !(score <= target); }

int64_t rank_among(std::span<const float> scores, float target, std::span<const int64_t> candidates) {
  return std::count_if(candidates.begin(), candidates.end(),
                       [&](int64_t item) { return beats(scores[static_cast<size_t>(item)], target); });
}

// The rank of the target among all items except padding, the items trained on, and `also_masked` (0: none).
int64_t rank_among_all(std::span<const float> scores, float target, std::span<const int32_t> trained,
                       int32_t also_masked) {
  int64_t rank = 0;
  for (const float score : scores.subspan(1)) rank += beats(score, target) ? 1 : 0;
  for (const int32_t item : trained) rank -= beats(scores[static_cast<size_t>(item)], target) ? 1 : 0;
  const bool counted = also_masked != 0 && !std::binary_search(trained.begin(), trained.end(), also_masked);
  if (counted && beats(scores[static_cast<size_t>(also_masked)], target)) --rank;
  return rank;
}

struct RankSums {
  double ndcg = 0.0;
  double hits = 0.0;

  void add(int64_t rank) {
    ndcg += ndcg_at_10(rank);
    hits += rank < kTopK ? 1.0 : 0.0;
  }
};

struct PassSums {
  RankSums drawn;  // among the drawn candidates
  RankSums full;
};

class ShardEvaluation {
 public:
  ShardEvaluation(const SequenceModel& model, const SasrecData& data, const SasrecEvaluationOptions& options,
                  uint64_t seed)
      : model_(model),
        data_(data),
        options_(options),
        seed_(seed),
        candidates_(static_cast<size_t>(options.candidates)) {}

  void add_chunk(std::span<const int64_t> users, EvaluationPass pass, PassSums& sums) {
    const at::Tensor scores_BI =
        score_all_items(model_, data_, users, options_.maxlen,
                        [&](int64_t user, auto seq, auto times) { data_.fill_evaluation_row(user, pass, seq, times); });
    const auto items = static_cast<size_t>(scores_BI.size(1));
    for (size_t i = 0; i < users.size(); ++i) {
      const std::span<const float> row(scores_BI.const_data_ptr<float>() + i * items, items);
      const int64_t user = users[i];
      const UserSplit split = data_.split(user);
      const bool is_test = pass == EvaluationPass::kTest;
      const float target = row[static_cast<size_t>(is_test ? split.test : split.valid)];
      data_.draw_candidates(user, pass, seed_, candidates_);
      sums.drawn.add(rank_among(row, target, candidates_));
      if (options_.full_ranking) {
        sums.full.add(rank_among_all(row, target, data_.trained_on(user), is_test ? split.valid : 0));
      }
    }
  }

 private:
  const SequenceModel& model_;
  const SasrecData& data_;
  SasrecEvaluationOptions options_;
  uint64_t seed_;
  std::vector<int64_t> candidates_;
};

}  // namespace

double ndcg_at_10(int64_t rank) {
  constexpr double kGrain = 1073741824.0;  // 2^30: sums of a million users stay exact in a double
  if (rank >= kTopK) return 0.0;
  return std::round(kGrain / std::log2(static_cast<double>(rank) + 2.0)) / kGrain;
}

at::Tensor score_all_items(const SequenceModel& model, const SasrecData& data, std::span<const int64_t> users,
                           int64_t maxlen, const FillRow& fill_row) {
  const auto b = static_cast<int64_t>(users.size());
  const int64_t t = maxlen;
  const bool has_times = data.has_times();
  const at::Tensor rows_RBT = at::empty({has_times ? 2 : 1, b, t}, at::kLong);
  const auto row = [&](int64_t role, int64_t i) {
    return std::span<int64_t>(rows_RBT.mutable_data_ptr<int64_t>() + (role * b + i) * t, static_cast<size_t>(t));
  };
  for (int64_t i = 0; i < b; ++i) {
    fill_row(users[static_cast<size_t>(i)], row(0, i), has_times ? row(1, i) : std::span<int64_t>());
  }
  const at::Tensor& item_emb = model.item_embedding();
  const at::Tensor here_RBT = rows_RBT.to(item_emb.device());
  const at::Tensor h_BD = model.encode(here_RBT[0], has_times ? here_RBT[1] : at::Tensor()).select(1, t - 1);
  return at::mm(h_BD.to(item_emb.scalar_type()), item_emb.t()).to(at::kCPU, at::kFloat).contiguous();
}

std::vector<MetricSum> evaluate_sasrec(const SequenceModel& model, const SasrecData& data,
                                       const SasrecEvaluationOptions& options, const EvaluationShard& shard) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> users = data.evaluation_users(options.users_max, shard.seed);
  const auto total = static_cast<int64_t>(users.size());
  ShardEvaluation evaluation(model, data, options, shard.seed);
  PassSums valid;
  PassSums test;
  double count = 0.0;
  // A chunk of this size fits into memory, because a micro-batch does in training, where more is kept for the backward.
  const int64_t users_per_chunk = std::min(kUsersPerChunk, shard.samples_at_once);
  for (int64_t begin = shard.rank * users_per_chunk; begin < total; begin += shard.world_size * users_per_chunk) {
    const int64_t n = std::min(users_per_chunk, total - begin);
    const std::span<const int64_t> chunk(users.data() + begin, static_cast<size_t>(n));
    evaluation.add_chunk(chunk, EvaluationPass::kValid, valid);
    if (!shard.goes_on()) break;
    evaluation.add_chunk(chunk, EvaluationPass::kTest, test);
    count += static_cast<double>(n);
    if (!shard.goes_on()) break;
  }
  std::vector<MetricSum> sums;
  const auto report = [&](const std::string& prefix, const RankSums& ranking) {
    sums.push_back({prefix + "_ndcg@10", ranking.ndcg, count});
    sums.push_back({prefix + "_hr@10", ranking.hits, count});
  };
  report("valid", valid.drawn);
  report("test", test.drawn);
  if (options.full_ranking) {
    report("full_valid", valid.full);
    report("full_test", test.full);
  }
  return sums;
}

}  // namespace lockstep
