#include "runner/agent/program_metrics.h"

#include <cmath>
#include <string>
#include <utility>

namespace lockstep {
namespace {

using Labels = std::map<std::string, std::string>;

class Families {
 public:
  explicit Families(int rank) : rank_(std::to_string(rank)) {}

  void add(const MetricName& name, double value, Labels labels = {}) {
    if (families_.empty() || families_.back().name != name.name) {
      families_.push_back(
          {.name = std::string(name.name), .help = std::string(name.help), .type = name.type, .metrics = {}});
    }
    labels["rank"] = rank_;
    MetricSample sample;
    sample.labels = std::move(labels);
    sample.value = value;
    families_.back().metrics.push_back(std::move(sample));
  }
  void add_if_known(const MetricName& name, double value, Labels labels = {}) {
    if (std::isfinite(value) && value >= 0) add(name, value, std::move(labels));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  std::string rank_;
  std::vector<MetricFamily> families_;
};

}  // namespace

std::vector<MetricFamily> program_metrics(const ProgramFigures& figures) {
  Families families(figures.rank);
  families.add(metric::kSteps, static_cast<double>(figures.steps_of_process));
  families.add(metric::kStep, static_cast<double>(figures.step));
  families.add(metric::kLastStepTimestamp, figures.last_step_unix);
  if (figures.progress != nullptr) {
    const Progress& progress = *figures.progress;
    if (progress.total_steps > 0) {
      families.add(metric::kTargetSteps, static_cast<double>(progress.total_steps));
      families.add(metric::kProgress, static_cast<double>(progress.step) / static_cast<double>(progress.total_steps));
    }
    families.add_if_known(metric::kEstimatedRemaining, progress.eta_seconds);
    if (std::isfinite(progress.loss)) families.add(metric::kLoss, progress.loss, {{"split", "train"}});
    families.add_if_known(metric::kLearningRate, progress.lr);
    families.add_if_known(metric::kGradientNorm, progress.grad_norm);
    families.add_if_known(metric::kSamplesPerSecond, progress.samples_per_second);
  }
  if (figures.others != nullptr) {
    for (const auto& [name, value] : *figures.others) families.add(metric::kEvaluationValue, value, {{"metric", name}});
  }
  return families.take();
}

}  // namespace lockstep
