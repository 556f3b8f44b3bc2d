#include "runner/loop/evaluator.h"

#include <torch/types.h>

#include <utility>

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "runner/dist/process_group.h"
#include "runner/loop/device.h"
#include "runner/loop/injected_faults.h"
#include "runner/loop/joint_work.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {
namespace {

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
  JointWork work(group, parts.stop, parts.clock, "during an evaluation");
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
                               parts.faults.work_here(Fault::kSlowEvaluation, [&] { return work.goes_on(); });
                               return work.goes_on();
                             },
                         .device = parts.device,
                         .samples_at_once = parts.samples_at_once,
                         .loss = loss});
  if (!mine.ok()) throw RunFault(ExitCode::kData, mine.error().message);
  const JointEnd end = work.end();
  EvaluationOutcome outcome{.is_complete = end.is_complete, .metrics = {}, .requests = end.requests};
  if (!end.is_complete) return outcome;
  const PhaseScope waiting(parts.clock, Phase::kWaiting);
  outcome.metrics = workload.figures(totals_of(std::move(*mine), group));
  return outcome;
}

}  // namespace lockstep
