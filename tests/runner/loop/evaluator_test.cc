#include "runner/loop/evaluator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "runner/contract/beat_page.h"
#include "runner/loop/stop_signals.h"
#include "runner/telemetry/phase_clock.h"
#include "tests/runner/loop/line_workload.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

// Does what it is told in place of an evaluation.
class ToldWorkload final : public LineWorkload {
 public:
  explicit ToldWorkload(std::function<void(const EvaluationShard&)> what) : LineWorkload(8), what_(std::move(what)) {}
  std::vector<MetricSum> evaluate(const EvaluationShard& shard) override {
    what_(shard);
    return {{.name = "score", .sum = static_cast<double>(shard.rank), .count = 1.0}};
  }

 private:
  std::function<void(const EvaluationShard&)> what_;
};

TEST(Evaluator, shows_the_progress_of_a_long_evaluation) {
  auto now = std::chrono::steady_clock::now();
  BeatPage page;
  PhaseClock clock(Phase::kValidation, now, [&now] { return now; });
  clock.show_on(page);
  ToldWorkload workload([&](const EvaluationShard& shard) {
    for (int chunk = 0; chunk < 3; ++chunk) {
      now += std::chrono::hours(1);
      shard.on_progress();
      EXPECT_EQ(page.changed_ns, std::chrono::nanoseconds(now.time_since_epoch()).count());
      EXPECT_EQ(page.phase, Phase::kValidation);
    }
  });
  const StopSignals signals;
  const auto group = ProcessGroup::solo({.world = world_of(0, 1), .network_interface = ""});
  evaluate_on_all_ranks(workload, *group, 1, signals, clock);
  EXPECT_EQ(clock.phase(), Phase::kValidation);
}

// Who is late is to blame, and not who waits for its figures.
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
    const StopSignals signals;
    const EvaluationFigures figures = evaluate_on_all_ranks(workload, group, 1, signals, clock);
    ASSERT_EQ(figures.metrics.size(), 1U);
    EXPECT_EQ(figures.metrics[0].second, 0.5);
  });
}

}  // namespace
}  // namespace lockstep
