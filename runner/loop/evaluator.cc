#include "runner/loop/evaluator.h"

#include <torch/types.h>

#include <array>
#include <utility>

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "runner/dist/process_group.h"
#include "runner/loop/device.h"
#include "runner/loop/injected_faults.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {
namespace {

constexpr int kTerminated = static_cast<int>(ExitCode::kTerminated);
constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

// Slots of the first reduction. The figures have one of their own: a rank that was stopped has none to add.
enum Slot : size_t { kIncomplete, kTerminates, kInterrupts, kLeaves, kSlots };

std::vector<MetricSum> totals_of(std::vector<MetricSum> mine, ProcessGroup& group) {
  std::vector<double> row;
  for (const MetricSum& m : mine) {
    row.push_back(m.sum);
    row.push_back(m.count);
  }
  const std::vector<double> totals = sum_over_ranks(group, row);
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i].sum = totals[2 * i];
    mine[i].count = totals[2 * i + 1];
  }
  return mine;
}

}  // namespace

EvaluationOutcome evaluate_on_all_ranks(Workload& workload, ProcessGroup& group, const EvaluationParts& parts) {
  bool is_complete = true;
  const auto goes_on = [&] {
    parts.clock.progress();
    is_complete = is_complete && !parts.stop.is_cut() && !parts.stop.requests().any();
    return is_complete;
  };
  const auto loss = [&](const DeviceBatch& batch) {
    const AutocastScope autocast(parts.precision, parts.device);
    return workload.loss(batch);
  };
  const torch::NoGradGuard no_grad;
  Result<std::vector<MetricSum>> mine =
      workload.evaluate({.rank = group.rank(),
                         .world_size = group.world_size(),
                         .seed = parts.seed,
                         .goes_on =
                             [&] {
                               parts.faults.work_here(Fault::kSlowEvaluation, goes_on);
                               return goes_on();
                             },
                         .device = parts.device,
                         .samples_at_once = parts.samples_at_once,
                         .loss = loss});
  if (!mine.ok()) throw RunFault(ExitCode::kData, mine.error().message);
  if (parts.stop.is_cut()) leave_group("the group was cut during an evaluation");

  const StepRequests asked = parts.stop.requests();
  const std::array<double, kSlots> row{is_complete ? 0.0 : 1.0, asked.stop_code == kTerminated ? 1.0 : 0.0,
                                       asked.stop_code == kInterrupted ? 1.0 : 0.0, asked.leave_together ? 1.0 : 0.0};
  const PhaseScope waiting(parts.clock, Phase::kWaiting);
  const std::vector<double> totals = sum_over_ranks(group, row);
  EvaluationOutcome outcome;
  outcome.is_complete = totals[kIncomplete] == 0.0;
  if (totals[kTerminates] > 0.0) {
    outcome.requests.stop_code = kTerminated;
  } else if (totals[kInterrupts] > 0.0) {
    outcome.requests.stop_code = kInterrupted;
  }
  outcome.requests.leave_together = totals[kLeaves] > 0.0;
  if (outcome.is_complete) outcome.metrics = workload.figures(totals_of(std::move(*mine), group));
  return outcome;
}

}  // namespace lockstep
