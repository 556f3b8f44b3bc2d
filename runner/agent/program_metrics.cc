#include "runner/agent/program_metrics.h"

#include <cmath>

#include "runner/contract/metric_families.h"

namespace lockstep {

std::vector<MetricFamily> program_metrics(const ProgramFigures& figures) {
  MetricFamilies families;
  const auto set_if_known = [&](const MetricName& name, double value) {
    if (std::isfinite(value) && value >= 0) families.set(name, value);
  };
  families.set(metric::kSteps, static_cast<double>(figures.steps_of_process));
  families.set(metric::kStep, static_cast<double>(figures.step));
  families.set(metric::kLastStepTimestamp, figures.last_step_unix);
  if (figures.progress != nullptr) {
    const Progress& progress = *figures.progress;
    if (progress.total_steps > 0) {
      families.set(metric::kTargetSteps, static_cast<double>(progress.total_steps));
      families.set(metric::kProgress, static_cast<double>(progress.step) / static_cast<double>(progress.total_steps));
    }
    set_if_known(metric::kEstimatedRemaining, progress.eta_seconds);
    if (std::isfinite(progress.loss)) families.set(metric::kLoss, progress.loss, {{"split", "train"}});
    set_if_known(metric::kLearningRate, progress.lr);
    set_if_known(metric::kGradientNorm, progress.grad_norm);
    set_if_known(metric::kSamplesPerSecond, progress.samples_per_second);
  }
  if (figures.others != nullptr) {
    for (const auto& [name, value] : *figures.others) families.set(metric::kEvaluationValue, value, {{"metric", name}});
  }
  return families.of_rank(figures.rank);
}

}  // namespace lockstep
