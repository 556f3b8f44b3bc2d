#include "runner/loop/evaluator.h"

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "runner/contract/beat_page.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/loop/training_state.h"
#include "runner/telemetry/phase_clock.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

// Does what it is told in place of an evaluation.
class ToldWorkload final : public ToyWorkload {
 public:
  explicit ToldWorkload(std::function<void(const EvaluationShard&)> what) : what_(std::move(what)) {}
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override {
    what_(shard);
    return std::vector<MetricSum>{{.name = "score", .sum = static_cast<double>(shard.rank), .count = 1.0}};
  }

 private:
  std::function<void(const EvaluationShard&)> what_;
};

// The default evaluation of a workload whose batches depend on the phase.
class PhasedWorkload final : public ToyWorkload {
 public:
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    phases_.push_back(share.phase);
    return ToyWorkload::fetch(share);
  }
  [[nodiscard]] const std::vector<int64_t>& phases() const { return phases_; }
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override { return Workload::evaluate(shard); }

 private:
  mutable std::vector<int64_t> phases_;
};

EvaluationOutcome evaluate(Workload& workload, ProcessGroup& group, PhaseClock& clock, const StopToken& stop = {},
                           int64_t phase = 0) {
  const RunConfig config;
  PosixFileSystem fs;
  const auto stream = make_device_stream(at::kCPU);
  const RankContext rank{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
  return evaluate_on_all_ranks(group, {.rank = rank, .phase = phase, .samples_at_once = 8, .stop = stop});
}

TEST(Evaluator, fetches_the_batches_of_the_phase_that_the_run_is_in) {
  for (const int64_t phase : {0, 1}) {
    PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
    PhasedWorkload workload;
    workload.initialize(1);
    const auto group = ProcessGroup::solo({.assignment = assigned(0, 1), .network_interface = ""});
    evaluate(workload, *group, clock, {}, phase);
    ASSERT_FALSE(workload.phases().empty());
    for (const int64_t fetched : workload.phases()) EXPECT_EQ(fetched, phase);
  }
}

// A loss of 0 would be the best one for ever, and the patience of early stopping would run out.
TEST(Evaluator, of_nothing_has_no_figure_and_is_never_the_best) {
  const ToyWorkload workload;
  const EvaluationMetrics figures = workload.Workload::figures({{.name = "valid_loss", .sum = 0.0, .count = 0.0}});
  ASSERT_EQ(figures.size(), 1U);
  EXPECT_TRUE(std::isnan(figures[0].second));
  for (const Direction direction : {Direction::kLower, Direction::kHigher}) {
    const WorkloadInfo info{.best = {.name = "valid_loss", .direction = direction}};
    Counters counters;
    EXPECT_EQ(count_evaluation(counters, info, TrainingOptions{}, figures), false);
    EXPECT_EQ(count_evaluation(counters, info, TrainingOptions{}, {{"valid_loss", 3.0}}), true);
    EXPECT_EQ(count_evaluation(counters, info, TrainingOptions{}, figures), false);
  }
}

TEST(Evaluator, shows_the_progress_of_a_long_evaluation) {
  auto now = std::chrono::steady_clock::now();
  BeatPage page;
  PhaseClock clock(Phase::kValidation, now, [&now] { return now; });
  clock.show_on(page);
  ToldWorkload workload([&](const EvaluationShard& shard) {
    for (int chunk = 0; chunk < 3; ++chunk) {
      now += std::chrono::hours(1);
      EXPECT_TRUE(shard.goes_on());
      EXPECT_EQ(page.changed_ns, std::chrono::nanoseconds(now.time_since_epoch()).count());
      EXPECT_EQ(page.phase, Phase::kValidation);
    }
  });
  const auto group = ProcessGroup::solo({.assignment = assigned(0, 1), .network_interface = ""});
  evaluate(workload, *group, clock);
  EXPECT_EQ(clock.phase(), Phase::kValidation);
}

// The rank that is late is to blame, not the one that waits for its values.
TEST(Evaluator, tells_a_rank_that_waits_from_one_that_evaluates) {
  std::array<BeatPage, 2> pages;
  on_ranks(2, [&](ProcessGroup& group) {
    BeatPage& page = pages[static_cast<size_t>(group.rank())];
    PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
    clock.show_on(page);
    ToldWorkload workload([&](const EvaluationShard& shard) {
      if (shard.rank == 0) return;
      while (pages[0].phase != Phase::kWaiting) std::this_thread::yield();
      EXPECT_EQ(page.phase, Phase::kValidation);
    });
    const EvaluationOutcome outcome = evaluate(workload, group, clock);
    EXPECT_TRUE(outcome.is_complete);
    EXPECT_FALSE(outcome.requests.any());
    ASSERT_EQ(outcome.metrics.size(), 1U);
    EXPECT_EQ(outcome.metrics[0].second, 0.5);
  });
}

// Of several ranks, one without bytes of its own.
TEST(Evaluator, brings_the_parts_of_all_ranks_to_rank_0_in_their_order) {
  on_ranks(3, [&](ProcessGroup& group) {
    PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
    ToldWorkload workload([&](const EvaluationShard& shard) {
      const std::string rank = std::to_string(shard.rank);
      shard.give_part("list.txt", shard.rank == 1 ? std::string() : "a" + rank + "\n");
      shard.give_part("list.txt", shard.rank == 1 ? std::string() : "b" + rank + "\n");
      shard.give_part("bytes", std::string(static_cast<size_t>(shard.rank) * 1000, '\0'));
    });
    const EvaluationOutcome outcome = evaluate(workload, group, clock);
    ASSERT_EQ(outcome.parts.size(), 2U);
    const bool has_them = group.rank() == 0;
    EXPECT_EQ(outcome.parts.at("list.txt"), has_them ? "a0\nb0\na2\nb2\n" : "");
    EXPECT_EQ(outcome.parts.at("bytes").size(), has_them ? 3000U : 0U);
    EXPECT_EQ(outcome.metrics[0].second, 1.0) << "the mean of 0, 1 and 2";
  });
}

// A token whose requests are `asked` from the moment that `is_asked` is set.
StopToken token_of(const std::atomic<bool>& is_asked, const StepRequests& asked) {
  StopToken stop;
  stop.requests = [&is_asked, asked] { return is_asked ? asked : StepRequests{}; };
  return stop;
}

// Rank 1 is asked in the middle of an evaluation that would never end; rank 0 has done its share and waits for it.
TEST(Evaluator, a_rank_that_is_stopped_leaves_and_all_ranks_discard_the_evaluation_together) {
  for (const StepRequests asked :
       {StepRequests{.stop_code = 143}, StepRequests{.stop_code = 130}, StepRequests{.leave_together = true}}) {
    on_ranks(2, [&](ProcessGroup& group) {
      PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
      std::atomic<bool> is_asked = false;
      ToldWorkload workload([&](const EvaluationShard& shard) {
        EXPECT_TRUE(shard.goes_on());
        if (shard.rank == 0) return;
        is_asked = true;
        while (shard.goes_on()) std::this_thread::yield();
      });
      const StopToken stop = token_of(is_asked, asked);
      const EvaluationOutcome outcome = evaluate(workload, group, clock, stop);
      EXPECT_FALSE(outcome.is_complete);
      EXPECT_TRUE(outcome.metrics.empty());
      EXPECT_EQ(outcome.requests.stop_code, asked.stop_code);
      EXPECT_EQ(outcome.requests.leave_together, asked.leave_together);
    });
  }
}

TEST(Evaluator, a_stop_that_comes_when_the_share_is_done_costs_no_figures) {
  on_ranks(2, [&](ProcessGroup& group) {
    PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
    std::atomic<bool> is_asked = false;
    ToldWorkload workload([&](const EvaluationShard& shard) { is_asked = shard.rank == 1; });
    const StopToken stop = token_of(is_asked, {.stop_code = 143});
    const EvaluationOutcome outcome = evaluate(workload, group, clock, stop);
    EXPECT_TRUE(outcome.is_complete);
    EXPECT_EQ(outcome.requests.stop_code, 143);
    ASSERT_EQ(outcome.metrics.size(), 1U);
    EXPECT_EQ(outcome.metrics[0].second, 0.5);
  });
}

// Its peers are gone: there is nobody to enter a reduction with.
TEST(Evaluator, a_rank_whose_group_is_cut_leaves_at_once_as_from_a_lost_peer) {
  PhaseClock clock(Phase::kValidation, std::chrono::steady_clock::now());
  std::atomic<bool> is_cut = false;
  ToldWorkload workload([&](const EvaluationShard& shard) {
    is_cut = true;
    while (shard.goes_on()) std::this_thread::yield();
  });
  StopToken stop;
  stop.is_cut = [&] { return is_cut.load(); };
  const auto group = ProcessGroup::solo({.assignment = assigned(0, 1), .network_interface = ""});
  try {
    evaluate(workload, *group, clock, stop);
    ADD_FAILURE() << "it did not leave";
  } catch (const c10::Error& e) {
    EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost);
    EXPECT_EQ(classify_fault(e).message, "the group was cut during an evaluation");
  }
}

}  // namespace
}  // namespace lockstep
