#include "runner/loop/phases.h"

#include <algorithm>
#include <cstdio>

#include "runner/base/plural.h"

namespace lockstep {

std::vector<TrainingPhase> phases_of(const WorkloadInfo& info, const TrainingOptions& training) {
  if (!info.phases.empty()) return info.phases;
  TrainingPhase only;
  only.num_epochs = training.num_epochs;
  only.epochs_flag = "num_epochs";
  return {only};
}

TrainingOptions options_in(const TrainingPhase& phase, const TrainingOptions& training) {
  TrainingOptions options = training;
  options.lr = phase.lr.value_or(training.lr);
  options.clip_grad_norm = phase.clip_grad_norm.value_or(training.clip_grad_norm);
  return options;
}

PhaseSteps phase_steps(const std::vector<TrainingPhase>& phases, const Counters& counters, int64_t max_steps,
                       BatchSource& source) {
  PhaseSteps steps;
  steps.begin = steps_before(counters.phase_epoch, source);
  int64_t counted_epoch = counters.position.epoch;  // steps.total counts the steps before it
  steps.total = counters.step - counters.position.index;
  int64_t end_epoch = counters.phase_epoch;
  for (auto phase = static_cast<size_t>(counters.phase); phase < phases.size(); ++phase) {
    end_epoch += phases[phase].num_epochs;
    for (; counted_epoch < end_epoch; ++counted_epoch) steps.total += source.steps(counted_epoch);
    if (phase == static_cast<size_t>(counters.phase)) steps.end = steps.total;
  }
  if (max_steps > 0) steps.total = std::min(steps.total, max_steps);
  steps.end = std::min(steps.end, steps.total);
  return steps;
}

LrScheduleOptions lr_schedule_in(const TrainingOptions& training, const Counters& counters, const PhaseSteps& steps,
                                 BatchSource& source) {
  int64_t warmup_steps = training.warmup_steps;
  if (training.warmup_epochs > 0) {
    warmup_steps = steps_before(counters.phase_epoch + training.warmup_epochs, source) - steps.begin;
  }
  const BatchShape& batch = counters.batch;
  const double lr = scaled_lr(training.lr, training.lr_scaling, batch.declared_world_size, batch.global_batch);
  return lr_schedule_options(training, lr, warmup_steps, steps.end - steps.begin);
}

void begin_next_phase(Counters& counters) {
  ++counters.phase;
  counters.phase_epoch = counters.position.epoch;
  counters.plateau = {};
  counters.evaluations_without_best = 0;
}

std::string describe_phases(const std::vector<TrainingPhase>& phases) {
  const auto number = [](double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", value);
    return std::string(buffer);
  };
  std::string text;
  for (const TrainingPhase& phase : phases) {
    text += (text.empty() ? "" : "; ") + phase.name + ": " + plural(phase.num_epochs, "epoch");
    if (phase.lr) text += ", lr " + number(*phase.lr);
    if (phase.clip_grad_norm) text += ", clip " + number(*phase.clip_grad_norm);
    for (const std::string& group : phase.frozen) {
      text += (&group == phase.frozen.data() ? ", without " : " and ") + group;
    }
  }
  return text;
}

std::string needed_to_continue(const WorkloadInfo& info, const TrainingOptions& training, int64_t steps_done) {
  if (training.max_steps > 0 && steps_done >= training.max_steps) return "a higher --max_steps";
  const TrainingPhase last = phases_of(info, training).back();
  return last.epochs_flag.empty() ? "more epochs of " + last.name : "a higher --" + last.epochs_flag;
}

Status check_phase(const std::vector<TrainingPhase>& phases, const Counters& counters, const std::string& checkpoint) {
  if (counters.phase < static_cast<int64_t>(phases.size())) return {};
  return Error{ErrorCode::kInvalid, checkpoint + " is in phase " + std::to_string(counters.phase + 1) +
                                        " of its run, and this run has " + std::to_string(phases.size()) +
                                        "; give the flags of that run, or take its weights alone with "
                                        "--state_dict_path"};
}

}  // namespace lockstep
