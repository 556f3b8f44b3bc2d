#include "runner/models/sasrec/sasrec_evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/runner/models/sasrec_fixture.h"

namespace lockstep {
namespace {

using Sums = std::map<std::string, std::pair<double, double>>;

Sums evaluate_with(SasrecWorkload& workload, int world_size) {
  Sums sums;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const MetricSum& part :
         evaluate(workload, {.rank = rank, .world_size = world_size, .seed = 5, .samples_at_once = kUsersPerChunk})) {
      sums[part.name].first += part.sum;
      sums[part.name].second += part.count;
    }
  }
  return sums;
}

TEST(SasrecEvaluation, figures_are_equal_to_the_last_bit_for_one_to_four_ranks) {
  const auto workload = make_small(small_config());
  const Sums alone = evaluate_with(*workload, 1);
  EXPECT_EQ(alone.size(), 8U);
  for (const auto& [name, sum] : alone) {
    EXPECT_EQ(sum.second, static_cast<double>(workload->data().evaluable_users())) << name;
  }
  for (const int world_size : {2, 3, 4, 7}) EXPECT_EQ(evaluate_with(*workload, world_size), alone) << world_size;
}

// Remembers how many samples it was given at once.
class CountingModel final : public SequenceModel {
 public:
  CountingModel(const SasrecOptions& options, int64_t num_items) : SequenceModel(options, num_items, at::kCPU) {
    const at::NoGradGuard no_grad;
    item_emb_.zero_();
  }

  [[nodiscard]] at::Tensor embedding_penalty() const override { return {}; }

  mutable int64_t samples_max = 0;

 private:
  [[nodiscard]] at::Tensor encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                           const at::Tensor& /*times_BT*/, Dropouts& /*dropouts*/) const override {
    samples_max = std::max(samples_max, items_BT.size(0));
    return items_BTD;
  }
  [[nodiscard]] at::Tensor initial_value(const std::string& /*name*/, at::IntArrayRef sizes,
                                         const InitialValues& /*values*/) const override {
    return at::zeros(sizes);
  }
};

TEST(SasrecEvaluation, takes_no_more_users_at_once_than_training_does_and_64_at_most) {
  const auto workload = make_small(small_config());
  for (const auto& [micro_batch, users_at_once] : std::map<int64_t, int64_t>{{10, 10}, {64, 64}, {500, 64}}) {
    const CountingModel model({.maxlen = 12}, workload->data().num_items());
    const std::vector<MetricSum> sums =
        evaluate_sasrec(model, workload->data(), {.maxlen = 12}, {.seed = 5, .samples_at_once = micro_batch});
    EXPECT_EQ(model.samples_max, users_at_once) << micro_batch;
    EXPECT_EQ(sums.at(0).count, static_cast<double>(workload->data().evaluable_users())) << micro_batch;
  }
}

TEST(SasrecEvaluation, ends_at_the_next_look_when_it_is_stopped) {
  const auto workload = make_small(small_config());
  int looks = 0;
  EvaluationShard shard{.seed = 5};
  shard.goes_on = [&looks] {
    ++looks;
    return true;
  };
  evaluate(*workload, shard);
  const int all = std::exchange(looks, 0);
  ASSERT_GT(all, 2);
  for (const int last : {1, 2}) {
    shard.goes_on = [&looks, last] { return ++looks < last; };
    evaluate(*workload, shard);
    EXPECT_EQ(std::exchange(looks, 0), last);
  }
}

TEST(SasrecEvaluation, every_rank_reports_the_same_names_even_without_users) {
  const auto workload = make_small(small_config());
  const auto on_rank = [&](int rank) {
    return evaluate(*workload, {.rank = rank, .world_size = 9, .seed = 5, .samples_at_once = kUsersPerChunk});
  };
  const auto first = on_rank(0);
  const auto idle = on_rank(8);
  ASSERT_EQ(first.size(), idle.size());
  for (size_t i = 0; i < idle.size(); ++i) {
    EXPECT_EQ(idle[i].name, first[i].name);
    EXPECT_EQ(idle[i].count, 0.0);
  }
  EXPECT_EQ(first[0].name, workload->info().best.name);
}

TEST(SasrecEvaluation, ranking_agrees_with_one_user_and_one_item_at_a_time) {
  const auto workload = make_small(small_config());
  const SasrecData& data = workload->data();
  const at::NoGradGuard no_grad;
  double full_hits = 0;
  double drawn_hits = 0;
  for (const int64_t user : data.evaluation_users(0, 5)) {
    const at::Tensor seq = at::empty({1, 12}, at::kLong);
    data.fill_evaluation_row(user, EvaluationPass::kTest, {seq.data_ptr<int64_t>(), 12});
    const at::Tensor h = workload->model().encode(seq, {})[0][11];
    const at::Tensor scores = at::mv(workload->model().item_embedding(), h);
    const UserSplit split = data.split(user);
    const float target = scores[split.test].item<float>();
    std::set<int64_t> masked(split.train.begin(), split.train.end());
    masked.insert(split.valid);
    int64_t above = 0;
    for (int64_t item = 1; item <= data.num_items(); ++item) {
      if (!masked.contains(item) && item != split.test && scores[item].item<float>() > target) ++above;
    }
    full_hits += above < 10 ? 1 : 0;
    std::vector<int64_t> candidates(100);
    data.draw_candidates(user, EvaluationPass::kTest, 5, candidates);
    above = 0;
    for (const int64_t item : candidates) {
      if (item != split.test && scores[item].item<float>() > target) ++above;
    }
    drawn_hits += above < 10 ? 1 : 0;
  }
  const Sums sums = evaluate_with(*workload, 1);
  EXPECT_NEAR(sums.at("full_test_hr@10").first, full_hits, 1);  // one product against two: a tie may turn
  EXPECT_NEAR(sums.at("test_hr@10").first, drawn_hits, 1);
  EXPECT_GT(full_hits, 0);
}

TEST(SasrecEvaluation, ties_favour_the_held_out_item) {
  const auto workload = make_small(small_config());
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters_of(*workload)) parameter.tensor.zero_();
  for (const auto& [name, sum] : evaluate_with(*workload, 1)) EXPECT_EQ(sum.first, sum.second) << name;
}

TEST(SasrecEvaluation, a_model_that_is_not_finite_scores_zero) {
  const auto workload = make_small(small_config());
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters_of(*workload)) {
    parameter.tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  for (const auto& [name, sum] : evaluate_with(*workload, 1)) EXPECT_EQ(sum.first, 0.0) << name;
}

TEST(SasrecEvaluation, a_limit_on_users_is_the_exact_count) {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).eval_users = 70;
  options_of<SasrecOptions>(config).full_ranking = false;
  const auto workload = make_small(config);
  const Sums sums = evaluate_with(*workload, 3);
  EXPECT_EQ(sums.size(), 4U);
  EXPECT_EQ(sums.at("valid_hr@10").second, 70.0);
}

TEST(SasrecEvaluation, ndcg_falls_with_the_rank_and_ends_at_ten) {
  EXPECT_EQ(ndcg_at_10(0), 1.0);
  EXPECT_NEAR(ndcg_at_10(1), 1.0 / std::log2(3.0), 1e-9);
  EXPECT_NEAR(ndcg_at_10(9), 1.0 / std::log2(11.0), 1e-9);
  EXPECT_EQ(ndcg_at_10(10), 0.0);
}

}  // namespace
}  // namespace lockstep
