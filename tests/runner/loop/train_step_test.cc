#include "runner/loop/train_step.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "runner/dist/process_group.h"
#include "tests/runner/loop/test_step.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

struct RankResult {
  std::vector<StepReport> reports;
  at::Tensor w;
  int64_t skipped = 0;
  int stop_code = 0;
};

struct Setup {
  int world_size = 1;
  int64_t samples = 10;
  int64_t batch = 4;
  int64_t accumulation = 1;
  int64_t steps = 6;
  int64_t poisoned_sample = -1;
  int terminated_rank = -1;  // asks to stop at the second step
  int leaving_rank = -1;     // asks to leave together at the second step
  Precision precision = Precision::kFp32;
  int64_t fetch_threads = 2;
};

RankResult run_rank(const Setup& setup, ProcessGroup& group) {
  RunConfig config;
  config.training.batch_size = setup.batch;
  config.training.grad_accum_steps = setup.accumulation;
  config.training.lr = 0.05;
  ToyWorkload workload({.samples = setup.samples, .phase_epochs = 0});
  workload.poisoned_sample = setup.poisoned_sample;
  TrainingState state(workload, config.training);
  state.counters.batch = *batch_shape(config.training, setup.world_size);
  Sampler sampler({.seed = config.training.seed, .num_samples = setup.samples, .global_batch = setup.batch});
  TestStep parts({.training = config.training,
                  .workload = workload,
                  .state = state,
                  .group = group,
                  .source = sampler,
                  .steps = setup.steps,
                  .fetch_threads = setup.fetch_threads,
                  .precision = setup.precision});
  TrainStep& step = parts.step;
  RankResult result;
  for (int64_t i = 0; i < setup.steps; ++i) {
    const bool asks = i == 1 && group.rank() == setup.terminated_rank;
    const bool leaves = i == 1 && group.rank() == setup.leaving_rank;
    StepOutcome outcome = step.run({.stop_code = asks ? 143 : 0, .leave_together = leaves});
    result.reports.insert(result.reports.end(), outcome.reports.begin(), outcome.reports.end());
    if (outcome.requests.stop_code != 0) {
      result.stop_code = outcome.requests.stop_code;
      break;
    }
    if (outcome.requests.leave_together) break;
  }
  for (const StepReport& r : step.flush()) result.reports.push_back(r);
  result.w = state.parameters()[0].tensor.detach().clone();
  result.skipped = state.counters.skipped_total;
  return result;
}

std::vector<RankResult> run(const Setup& setup) {
  std::vector<RankResult> results(static_cast<size_t>(setup.world_size));
  on_ranks(setup.world_size,
           [&](ProcessGroup& group) { results[static_cast<size_t>(group.rank())] = run_rank(setup, group); });
  return results;
}

TEST(TrainStep, reports_every_step_once_and_in_order_on_every_rank) {
  for (const RankResult& rank : run({.world_size = 2})) {
    ASSERT_EQ(rank.reports.size(), 6U);
    for (size_t i = 0; i < rank.reports.size(); ++i) EXPECT_EQ(rank.reports[i].step, static_cast<int64_t>(i));
  }
}

TEST(TrainStep, gives_the_same_losses_for_every_world_size_with_uneven_weights_and_empty_shares) {
  // Batches of 4, 4 and 2 samples: with 3 and 4 ranks the last one leaves ranks without a sample.
  const std::vector<StepReport> alone = run({.world_size = 1})[0].reports;
  for (const int world_size : {2, 3, 4}) {
    for (const RankResult& rank : run({.world_size = world_size})) {
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_NEAR(rank.reports[i].loss, alone[i].loss, 1e-5 * alone[i].loss) << "step " << i << ", W " << world_size;
        EXPECT_NEAR(rank.reports[i].grad_norm, alone[i].grad_norm, 1e-4 * alone[i].grad_norm);
      }
    }
  }
}

TEST(TrainStep, says_the_loss_scale_of_each_step_where_there_is_one) {
  const std::vector<StepReport> plain = run({})[0].reports;
  ASSERT_EQ(plain.size(), 6U);
  EXPECT_FALSE(plain.front().loss_scale.has_value());
  const std::vector<StepReport> scaled = run({.precision = Precision::kFp16})[0].reports;
  ASSERT_EQ(scaled.size(), 6U);
  EXPECT_EQ(scaled.front().loss_scale, LossScale().scale);
}

TEST(TrainStep, accumulation_changes_no_loss) {
  const std::vector<StepReport> whole = run({.world_size = 2, .batch = 8})[0].reports;
  const std::vector<StepReport> parts = run({.world_size = 2, .batch = 8, .accumulation = 3})[0].reports;
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i].loss, whole[i].loss, 1e-5 * whole[i].loss);
}

TEST(TrainStep, a_nan_on_one_rank_makes_all_ranks_skip_that_step_and_no_other) {
  const std::vector<RankResult> ranks = run({.world_size = 2, .steps = 3, .poisoned_sample = 7});
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.skipped, 1);
    EXPECT_TRUE(rank.w.isfinite().all().item<bool>());
    EXPECT_TRUE(rank.w.equal(ranks[0].w));
    for (size_t i = 0; i < rank.reports.size(); ++i) EXPECT_EQ(rank.reports[i].skipped, ranks[0].reports[i].skipped);
  }
}

TEST(TrainStep, one_rank_that_is_to_leave_makes_all_leave_after_the_same_step) {
  for (const RankResult& rank : run({.world_size = 3, .leaving_rank = 1})) {
    EXPECT_EQ(rank.stop_code, 0);
    EXPECT_EQ(rank.reports.size(), 2U);
  }
}

TEST(TrainStep, the_report_of_a_step_is_known_when_it_is_committed) {
  for (const RankResult& rank : run({.world_size = 2, .steps = 1})) ASSERT_EQ(rank.reports.size(), 1U);
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const NamedTensor& t : tensors) copies.push_back({t.name, t.tensor.detach().clone()});
  return copies;
}

// The last moment at which a cut may come: one rank has the sums of all gradients, and has not committed them.
TEST(TrainStep, a_cut_between_the_sum_of_the_gradients_and_the_commit_leaves_the_state_of_the_step_before) {
  constexpr int64_t kCutStep = 2;
  on_ranks(2, [&](ProcessGroup& group) {
    RunConfig config;
    config.training.ema_decays = {0.5};
    ToyWorkload workload({.phase_epochs = 0});
    TrainingState state(workload, config.training);
    state.counters.batch = {.global_batch = 30, .micro_batch_max = 30, .declared_world_size = 2};
    const auto source = *workload.batches({.seed = config.training.seed, .global_batch = 30});
    TestStep* watched = nullptr;
    // The step looks at the clock when backward, and with it the all-reduce, is over.
    const auto cut_before_the_commit = [&] {
      const bool is_between = watched != nullptr && watched->clock.phase() == Phase::kBackward;
      if (is_between && group.rank() == 1 && state.counters.step == kCutStep) watched->gate.shut();
      return TimePoint{};
    };
    TestStep parts({.training = config.training,
                    .workload = workload,
                    .state = state,
                    .group = group,
                    .source = *source,
                    .steps = 6,
                    .fetch_threads = 0,
                    .now = cut_before_the_commit});
    watched = &parts;
    TrainStep& step = parts.step;
    for (int64_t i = 0; i < kCutStep; ++i) static_cast<void>(step.run({}));
    const NamedTensors before = copied(state.all_tensors());
    const DataPosition position = state.counters.position;
    if (group.rank() == 0) {
      EXPECT_EQ(step.run({}).reports.size(), 1U) << "it has committed";
      EXPECT_EQ(state.counters.step, kCutStep + 1);
      return;
    }
    EXPECT_THROW(static_cast<void>(step.run({})), c10::DistError);
    EXPECT_TRUE(step.abandon().empty());
    EXPECT_EQ(state.counters.step, kCutStep);
    EXPECT_EQ(state.counters.position, position);
    const NamedTensors after = state.all_tensors();
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(after[i].tensor.equal(before[i].tensor)) << after[i].name;
    }
  });
}

// The ranks take turns in being late: each begins its step only when the other one has the gradients of the same step.
// Were anything before them waited for, neither would come further. (A group's first step sums its weights up front.)
TEST(TrainStep, has_its_gradients_before_it_waits_for_any_peer) {
  constexpr int64_t kSteps = 4;
  std::array<std::atomic<int64_t>, 2> gradients{};  // of how many steps each rank has had them
  on_ranks(2, [&](ProcessGroup& group) {
    const RunConfig config;
    ToyWorkload workload({.phase_epochs = 0});
    TrainingState state(workload, config.training);
    state.counters.batch = {.global_batch = 30, .micro_batch_max = 8, .declared_world_size = 2};
    const auto source = *workload.batches({.seed = config.training.seed, .global_batch = 30});
    const auto rank = static_cast<size_t>(group.rank());
    TestStep parts({.training = config.training,
                    .workload = workload,
                    .state = state,
                    .group = group,
                    .source = *source,
                    .steps = kSteps,
                    .on_last_gradient = [&] { ++gradients[rank]; }});
    for (int64_t step = 0; step < kSteps; ++step) {
      const bool is_late = step > 0 && step % 2 == group.rank();
      const auto peer_has_them = [&] { return gradients[1 - rank] > step; };
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (is_late && !peer_has_them() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_TRUE(!is_late || peer_has_them()) << "its peer waits for rank " << rank << " in step " << step;
      static_cast<void>(parts.step.run({}));
    }
  });
}

TEST(TrainStep, a_stop_asked_of_one_rank_stops_all_at_the_same_step) {
  for (const RankResult& rank : run({.world_size = 3, .terminated_rank = 2})) {
    EXPECT_EQ(rank.stop_code, 143);
    EXPECT_EQ(rank.reports.size(), 2U);
  }
}

}  // namespace
}  // namespace lockstep
