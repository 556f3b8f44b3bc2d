// The training step on a workload that uses each part of the seam.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/dist/fault.h"
#include "runner/dist/process_group.h"
#include "runner/loop/evaluator.h"
#include "tests/runner/loop/test_step.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWordsPerBatch = 30;

struct Trained {
  std::vector<StepReport> reports;
  DataPosition position;
  std::vector<std::pair<std::string, double>> figures;  // of an evaluation at the end
  NamedTensors state;
};

// A rank of a run of the toy. Its step is made when it is first asked for, with the state of then.
struct ToyRank {
  explicit ToyRank(ProcessGroup& group_in, int64_t total_steps, std::vector<LossTerm> terms = {}) : group(group_in) {
    workload.set_terms(std::move(terms));
    config.training.lr = 0.05;
    config.training.optimizer = OptimizerKind::kAdamw;
    config.training.ema_decays = {0.9, 0.5};
    state.emplace(workload, config.training);
    state->counters.batch = {.global_batch = kWordsPerBatch, .micro_batch_max = 11, .declared_world_size = 1};
    source = *workload.batches({.seed = config.training.seed, .global_batch = kWordsPerBatch});
    steps = total_steps;
  }

  struct Toy final : ToyWorkload {
    void set_terms(std::vector<LossTerm> terms) {
      if (!terms.empty()) info_.loss_terms = std::move(terms);
    }
    [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
      Result<HostBatch> batch = ToyWorkload::fetch(share);
      if (batch.ok() && share.step == weightless_step) batch->weights[1] = 0.0;
      return batch;
    }
    int64_t weightless_step = -1;  // in which no sentence counts for the second term
  };

  TestStep& parts() {
    if (!parts_) {
      parts_ = std::make_unique<TestStep>(TestStepOptions{.training = config.training,
                                                          .workload = workload,
                                                          .state = *state,
                                                          .group = group,
                                                          .source = *source,
                                                          .steps = steps});
    }
    return *parts_;
  }
  TrainStep& step() { return parts().step; }

  Trained train() {
    Trained trained;
    while (state->counters.step < steps) {
      for (const StepReport& report : step().run({}).reports) trained.reports.push_back(report);
    }
    for (const StepReport& report : step().flush()) trained.reports.push_back(report);
    const StopToken stop;
    trained.figures = evaluate_on_all_ranks(group, {.rank = parts().rank, .samples_at_once = 5, .stop = stop}).metrics;
    trained.position = state->counters.position;
    for (const NamedTensor& t : state->all_tensors()) trained.state.push_back({t.name, t.tensor.detach().clone()});
    return trained;
  }

  ProcessGroup& group;
  RunConfig config;
  Toy workload;
  std::optional<TrainingState> state;
  std::unique_ptr<BatchSource> source;
  int64_t steps = 0;

 private:
  std::unique_ptr<TestStep> parts_;
};

Trained train(int world_size, int64_t steps, const std::vector<LossTerm>& terms = {}, int64_t weightless_step = -1) {
  Trained of_rank_0;
  on_ranks(world_size, [&](ProcessGroup& group) {
    ToyRank rank(group, steps, terms);
    rank.workload.weightless_step = weightless_step;
    Trained trained = rank.train();
    if (group.rank() == 0) of_rank_0 = std::move(trained);
  });
  return of_rank_0;
}

constexpr int64_t kSteps = 14;  // over two ends of an epoch

TEST(ToyTraining, of_packed_batches_and_two_terms_is_the_same_for_every_world_size) {
  constexpr int64_t kManySteps = 50;
  const Trained alone = train(1, kManySteps);
  ASSERT_EQ(alone.reports.size(), static_cast<size_t>(kManySteps));
  EXPECT_GT(alone.position.epoch, 1) << "the test is to go through epochs of different lengths";
  for (const int world_size : {2, 3, 4, 5}) {  // with 5, batches of few sentences leave ranks without one
    const Trained shared = train(world_size, kManySteps);
    EXPECT_EQ(shared.position, alone.position);
    EXPECT_NEAR(shared.reports.at(0).grad_norm, alone.reports[0].grad_norm, 1e-4 * alone.reports[0].grad_norm);
    for (size_t i = 0; i < alone.reports.size(); ++i) {
      const StepReport& a = alone.reports[i];
      const StepReport& b = shared.reports.at(i);
      EXPECT_EQ(b.epoch, a.epoch);
      EXPECT_EQ(b.samples, a.samples);
      EXPECT_NEAR(b.loss, a.loss, 1e-5 * a.loss) << "step " << i << ", W " << world_size;
      ASSERT_EQ(b.terms.size(), 2U);
      for (size_t term = 0; term < 2; ++term) {
        EXPECT_NEAR(b.terms[term].second, a.terms[term].second, 2e-5 * a.loss) << "step " << i << ", W " << world_size;
      }
    }
    ASSERT_EQ(shared.figures.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(shared.figures[i].first, alone.figures[i].first);
      EXPECT_NEAR(shared.figures[i].second, alone.figures[i].second, 1e-4) << alone.figures[i].first;
    }
  }
}

TEST(ToyTraining, turns_the_sums_of_an_evaluation_into_a_value_of_which_more_is_better) {
  const Trained trained = train(2, 2);
  EXPECT_EQ(metric_value(trained.figures, ToyWorkload::kLikelihood),
            std::exp(-metric_value(trained.figures, "valid_sign")));
}

TEST(ToyTraining, adds_its_terms_up_by_their_coefficients_and_denominators) {
  const StepReport report = train(2, 1).reports.at(0);
  EXPECT_EQ(report.terms[0].first, "number");
  const double penalty = ToyWorkload().regularization().item<double>();
  EXPECT_GT(penalty, 0.0);
  EXPECT_NEAR(report.loss, report.terms[0].second + 0.5 * report.terms[1].second + penalty, 1e-9);
  // By hand, from the workload's own sums.
  const ToyWorkload workload;
  const auto source = *workload.batches({.seed = RunConfig().training.seed, .global_batch = kWordsPerBatch});
  const BatchShare share{.seed = RunConfig().training.seed, .samples = source->batch(0, 0)};
  const HostBatch batch = *workload.fetch(share);
  ToyWorkload fresh;
  const auto sums = fresh.loss({.share = share, .tensors = fresh.upload(batch, at::kCPU)});
  EXPECT_NEAR(report.terms[0].second, sums[0].item<double>() / batch.weights[0], 1e-5);
  EXPECT_NEAR(report.terms[1].second, sums[1].item<double>() / 20.0, 1e-5);
}

TEST(ToyTraining, learns_nothing_from_a_term_with_coefficient_0) {
  const Trained figure_only =
      train(2, 4, {{.name = "number"}, {.name = "sign", .coefficient = 0.0, .denominator = 20.0}});
  EXPECT_EQ(figure_only.reports[3].terms[1].first, "sign");
  EXPECT_GT(figure_only.reports[3].terms[1].second, 0.0);
  const double penalty = ToyWorkload().regularization().item<double>();
  EXPECT_NEAR(figure_only.reports[0].loss, figure_only.reports[0].terms[0].second + penalty, 1e-9);
  const auto moment = [&](const std::string& name) {
    for (const NamedTensor& t : figure_only.state) {
      if (t.name == "optimizer.exp_avg." + name) return t.tensor.abs().sum().item<double>();
    }
    return -1.0;
  };
  EXPECT_EQ(moment("sign"), 0.0);
  EXPECT_GT(moment("number"), 0.0);
}

TEST(ToyTraining, adds_and_reports_nothing_of_a_term_whose_weights_are_all_0_in_a_step) {
  // A term that is divided by the sum of its weights, and one that has a denominator of its own.
  for (const std::optional<double>& denominator : {std::optional<double>(), std::optional<double>(20.0)}) {
    const auto terms = [&](double coefficient) {
      return std::vector<LossTerm>{{.name = "number"},
                                   {.name = "sign", .coefficient = coefficient, .denominator = denominator}};
    };
    for (const int world_size : {1, 2}) {
      const Trained without = train(world_size, 1, terms(0.0));
      const Trained weightless = train(world_size, 1, terms(0.5), /*weightless_step=*/0);
      const StepReport& report = weightless.reports.at(0);
      ASSERT_EQ(report.terms.size(), 1U);
      EXPECT_EQ(report.terms[0], without.reports.at(0).terms.at(0));
      EXPECT_EQ(report.loss, without.reports[0].loss);
      EXPECT_EQ(report.grad_norm, without.reports[0].grad_norm);
      ASSERT_EQ(weightless.state.size(), without.state.size());
      for (size_t i = 0; i < without.state.size(); ++i) {  // with the moments, which are the gradients' at this step
        EXPECT_TRUE(torch::equal(weightless.state[i].tensor, without.state[i].tensor)) << without.state[i].name;
      }
      const Trained goes_on = train(world_size, 2, terms(0.5), /*weightless_step=*/0);
      EXPECT_EQ(goes_on.reports.at(1).terms.size(), 2U) << "its next step has weights";
    }
  }
}

TEST(ToyTraining, keeps_two_averages_and_a_count_for_each_group) {
  const NamedTensors state = train(1, 3).state;
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& t : state) by_name[t.name] = t.tensor;
  for (const char* const name : {"optimizer.step.trunk", "optimizer.step.heads"}) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_EQ(by_name[name].item<float>(), 3.0F);
  }
  ASSERT_TRUE(by_name.contains("ema.0.9.trunk") && by_name.contains("ema.0.5.trunk"));
  const auto distance = [&](const std::string& name) {
    return (by_name[name] - by_name["model.trunk"]).abs().sum().item<double>();
  };
  EXPECT_GT(distance("ema.0.9.trunk"), distance("ema.0.5.trunk")) << "the slower average is further behind";
  EXPECT_GT(distance("ema.0.5.trunk"), 0.0);
}

// What is computed and what is on its way, by step.
struct WatchedToy final : ToyWorkload {
  using ToyWorkload::ToyWorkload;
  [[nodiscard]] NamedTensors upload(const HostBatch& batch, at::Device device) const override {
    order.emplace_back("upload");
    return ToyWorkload::upload(batch, device);
  }
  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    order.push_back("forward of " + std::to_string(batch.share.step));
    trunk().register_hook([this](const at::Tensor&) { order.emplace_back("backward"); });
    return ToyWorkload::loss(batch);
  }
  [[nodiscard]] at::Tensor trunk() const { return groups()[0].parameters[0].tensor; }
  mutable std::vector<std::string> order;
};

TEST(ToyTraining, has_the_next_micro_batch_on_its_way_before_the_gradients_of_one_are_taken) {
  on_ranks(1, [&](ProcessGroup& group) {
    ToyRank rank(group, 2);
    WatchedToy watched({.phase_epochs = 0});
    TrainingState state(watched, rank.config.training);
    state.counters.batch = {.global_batch = kWordsPerBatch, .micro_batch_max = 20, .declared_world_size = 1};
    TestStep parts({.training = rank.config.training,
                    .workload = watched,
                    .state = state,
                    .group = group,
                    .source = *rank.source,
                    .steps = 2,
                    .fetch_threads = 0});
    static_cast<void>(parts.step.run({}));
    static_cast<void>(parts.step.run({}));
    // Two micro-batches a step, each hook fires at the backward passes after it was set.
    std::vector<std::string> order = watched.order;
    order.erase(std::unique(order.begin(), order.end()), order.end());
    EXPECT_THAT(order,
                ::testing::ElementsAre("upload", "forward of 0", "upload", "backward", "forward of 0", "upload",
                                       "backward", "forward of 1", "upload", "backward", "forward of 1", "backward"));
  });
}

TEST(ToyTraining, that_goes_on_in_a_new_group_takes_the_steps_of_one_that_was_not_interrupted) {
  const Trained whole = train(2, kSteps);
  on_ranks(2, [&](ProcessGroup& group) {
    ToyRank first(group, kSteps);
    std::vector<StepReport> reports;
    for (int64_t step = 0; step < 5; ++step) {
      for (const StepReport& report : first.step().run({}).reports) reports.push_back(report);
    }
    // Another group begins with the state of the last commit, and with nothing fetched.
    ToyRank second(group, kSteps);
    const NamedTensors from = first.state->all_tensors();
    const NamedTensors to = second.state->all_tensors();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i].tensor).copy_(from[i].tensor);
    second.state->counters = first.state->counters;
    const torch::AutoGradMode grad(true);
    for (const StepReport& report : second.train().reports) reports.push_back(report);
    ASSERT_EQ(reports.size(), whole.reports.size());
    for (size_t i = 0; i < reports.size(); ++i) EXPECT_EQ(reports[i].loss, whole.reports[i].loss) << "step " << i;
  });
}

TEST(ToyTraining, ends_with_the_datas_code_at_the_step_whose_batch_cannot_be_fetched) {
  on_ranks(1, [&](ProcessGroup& group) {
    ToyRank rank(group, kSteps);
    rank.workload.unreadable_sample = rank.source->batch(0, 2).front();
    static_cast<void>(rank.step().run({}));
    static_cast<void>(rank.step().run({}));
    EXPECT_EQ(rank.state->counters.step, 2) << "what was whole is trained on";
    try {
      static_cast<void>(rank.step().run({}));
      FAIL() << "a batch that cannot be read is trained on";
    } catch (const std::exception& e) {
      EXPECT_EQ(classify_fault(e).code, ExitCode::kData);
      EXPECT_THAT(e.what(), HasSubstr("sentence 13 is torn"));
    }
  });
}

}  // namespace
}  // namespace lockstep
