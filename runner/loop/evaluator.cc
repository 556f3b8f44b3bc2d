#include "runner/loop/evaluator.h"

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/process_group.h"
#include "runner/loop/stop_signals.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

EvaluationFigures evaluate_on_all_ranks(Workload& workload, ProcessGroup& group, uint64_t seed,
                                        const StopSignals& signals, PhaseClock& clock) {
  const std::vector<MetricSum> mine =
      workload.evaluate({.rank = group.rank(), .world_size = group.world_size(), .seed = seed, .on_progress = [&clock] {
                           clock.progress();
                         }});
  const int requested = signals.requested();
  std::vector<double> row{requested == static_cast<int>(ExitCode::kTerminated) ? 1.0 : 0.0,
                          requested == static_cast<int>(ExitCode::kInterrupted) ? 1.0 : 0.0};
  for (const MetricSum& m : mine) {
    row.push_back(m.sum);
    row.push_back(m.count);
  }
  std::vector<double> totals;
  {
    const PhaseScope waiting(clock, Phase::kWaiting);
    totals = sum_over_ranks(group, row);
  }

  EvaluationFigures figures;
  if (totals[0] > 0.0) {
    figures.stop_code = static_cast<int>(ExitCode::kTerminated);
  } else if (totals[1] > 0.0) {
    figures.stop_code = static_cast<int>(ExitCode::kInterrupted);
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    const double sum = totals[2 + 2 * i];
    const double count = totals[3 + 2 * i];
    figures.metrics.emplace_back(mine[i].name, count > 0.0 ? sum / count : 0.0);
  }
  return figures;
}

}  // namespace lockstep
