#include "runner/loop/train_step.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <array>
#include <limits>
#include <utility>

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/process_group.h"
#include "runner/kernels/commit_gate.h"
#include "runner/loop/device.h"
#include "runner/loop/injected_faults.h"
#include "runner/optim/grad_clip.h"

namespace lockstep {
namespace {

// Slots of the small all-reduce.
enum Slot : size_t { kWeight, kTerminates, kInterrupts, kLeaves, kSlots };

// Columns of a step's figures.
enum Figure : int64_t { kLoss, kRegularization, kGradNorm, kFoundInf, kCommitted };

}  // namespace

// A step whose figures have not been reported.
struct TrainStep::Pending {
  StepReport report;
  double loss_scale = 1.0;
  DeviceStream::Reading figures;  // [5] by Figure, fp64
};

TrainStep::TrainStep(const Parts& parts)
    : parts_(parts),
      first_step_(parts.state.counters.step),
      gate_at_first_(parts.gate.committed()),
      schedule_(lr_schedule_options(parts.config.training, parts.state.counters.batch.declared_world_size,
                                    parts.total_steps)) {}

TrainStep::~TrainStep() = default;

StepOutcome TrainStep::run(const StepRequests& requests) {
  Counters& counters = parts_.state.counters;
  const TrainingOptions& training = parts_.config.training;
  PhaseClock& clock = parts_.clock;
  const int64_t step = counters.step;

  clock.enter(Phase::kDataWait);
  parts_.faults.stall_here(Fault::kStallData);
  Pending now;
  now.report = {.step = step, .epoch = step / parts_.sampler.plan().batches_per_epoch()};
  const MicroBatches batches = make_micro_batches(step, &now.report.samples);
  double weight = 0.0;
  for (const auto& batch : batches) weight += batch->weight();

  // ---- the training section ----
  clock.enter(Phase::kForward);
  parts_.faults.stall_here(Fault::kStallCompute);
  HostSums sums(parts_.group,
                std::array<double, kSlots>{weight, requests.stop_code == 143 ? 1.0 : 0.0,
                                           requests.stop_code == 130 ? 1.0 : 0.0, requests.leave_together ? 1.0 : 0.0});
  zero_gradients();
  if (!parts_.workload.buffers().empty()) parts_.before_change();
  const double loss_scale = parts_.precision == Precision::kFp16 ? counters.loss_scale.scale : 1.0;
  const double poison = parts_.faults.take_not_finite() ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  const at::Tensor& probe = parts_.state.loss_probe();
  std::vector<double> totals;
  double scale = 0.0;
  at::Tensor regularization;
  for (size_t i = 0; i < batches.size(); ++i) {
    clock.enter(Phase::kForward);
    at::Tensor loss = batches[i]->num_samples() > 0 ? forward(*batches[i]) : empty_share_loss();
    if (i == 0) {
      clock.enter(Phase::kWaiting);
      parts_.faults.stall_here(Fault::kStallCollective);
      totals = sums.wait();
      clock.enter(Phase::kForward);
      // The reducer averages over W ranks; with this factor its mean is Σ∇loss / Σweight.
      if (totals[kWeight] > 0.0) scale = loss_scale * parts_.group.world_size() / totals[kWeight];
    }
    loss = loss * (scale * poison);
    loss = loss + probe * loss.detach();  // the probe is 0: its gradient is the loss
    if (i + 1 == batches.size()) {
      regularization = parts_.workload.regularization();
      if (regularization.defined()) loss = loss + regularization * loss_scale;
      parts_.reducer.prepare(loss);
    }
    clock.enter(Phase::kBackward);
    loss.backward();
  }
  clock.enter(Phase::kOptimizer);
  clock.move(Phase::kBackward, Phase::kGradSync, parts_.reducer.exposed());

  const GradClipResult clip =
      clip_gradients(parts_.state.parameters(), {.max_norm = training.clip_grad_norm, .loss_scale = loss_scale});
  now.report.lr = lr_value(step, schedule_, counters.plateau);
  const CommitGate::Passed passed = parts_.gate.pass(clip.found_inf);
  parts_.before_change();
  parts_.state.adam().step(now.report.lr, passed.skip);
  if (Ema* ema = parts_.state.ema()) ema->update(passed.skip);
  ++counters.step;  // the commit
  // ---- everything that follows is bookkeeping ----

  const torch::NoGradGuard no_grad;
  now.loss_scale = loss_scale;
  const at::Tensor loss = probe.grad().reshape({});
  const at::Tensor reg = regularization.defined() ? regularization.detach().reshape({}) : torch::zeros_like(loss);
  now.figures = parts_.stream.read_later(
      torch::stack({loss.to(torch::kFloat64), reg.to(torch::kFloat64), clip.norm.reshape({}).to(torch::kFloat64),
                    clip.found_inf.reshape({}).to(torch::kFloat64), passed.committed.reshape({})}));
  StepOutcome outcome;
  outcome.samples = now.report.samples;
  pending_.push_back(std::move(now));
  outcome.reports = report_up_to(step - parts_.stream.lag());
  outcome.leave_together = totals[kLeaves] > 0.0;
  if (totals[kTerminates] > 0.0) {
    outcome.stop_code = static_cast<int>(ExitCode::kTerminated);
  } else if (totals[kInterrupts] > 0.0) {
    outcome.stop_code = static_cast<int>(ExitCode::kInterrupted);
  }
  clock.enter(Phase::kOther);
  return outcome;
}

std::vector<StepReport> TrainStep::flush() {
  // A peer that died is found here, on the host, and not by a device that waits for it.
  if (!pending_.empty()) {
    const PhaseScope waiting(parts_.clock, Phase::kWaiting);
    barrier(parts_.group);
  }
  return report_up_to(parts_.state.counters.step);
}

std::vector<StepReport> TrainStep::abandon() {
  is_abandoned_ = true;
  // What the host has queued may be ahead of what the gate has let through.
  parts_.state.counters.step = first_step_ + (parts_.gate.committed() - gate_at_first_);
  while (!pending_.empty() && pending_.back().report.step >= parts_.state.counters.step) pending_.pop_back();
  return report_up_to(parts_.state.counters.step);
}

TrainStep::MicroBatches TrainStep::make_micro_batches(int64_t step, int64_t* batch_samples) {
  const int64_t per_epoch = parts_.sampler.plan().batches_per_epoch();
  const std::vector<int64_t> batch = parts_.sampler.batch(step / per_epoch, step % per_epoch);
  *batch_samples = static_cast<int64_t>(batch.size());
  MicroBatches batches;
  for (const SlotRange& slots : micro_batches_of_rank(parts_.state.counters.batch, *batch_samples, parts_.group.rank(),
                                                      parts_.group.world_size())) {
    MicroBatchSpec spec{.seed = parts_.config.training.seed,
                        .step = step,
                        .epoch = step / per_epoch,
                        .first_slot = slots.begin,
                        .samples = {batch.begin() + slots.begin, batch.begin() + slots.end}};
    batches.push_back(parts_.workload.make_batch(spec));
  }
  return batches;
}

at::Tensor TrainStep::forward(const MicroBatch& batch) {
  const AutocastScope autocast(parts_.precision, parts_.device);
  return parts_.workload.loss_sum(batch);
}

// A rank without samples still has to reach every parameter, or its peers' buckets would wait for ever.
at::Tensor TrainStep::empty_share_loss() const {
  at::Tensor loss = torch::zeros({}, torch::TensorOptions().device(parts_.device));
  for (const NamedTensor& p : parts_.state.parameters()) loss = loss + p.tensor.sum().to(torch::kFloat32) * 0.0;
  return loss;
}

// In place: the gradients are views into the reducer's buckets.
void TrainStep::zero_gradients() {
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& p : parts_.state.reduced()) {
    if (p.tensor.grad().defined()) gradients.push_back(p.tensor.grad());
  }
  if (!gradients.empty()) at::_foreach_zero_(gradients);
}

// Those that came before one that throws are kept for abandon().
std::vector<StepReport> TrainStep::report_up_to(int64_t step) {
  while (!pending_.empty() && pending_.front().report.step <= step) report_oldest();
  return std::exchange(known_, {});
}

void TrainStep::report_oldest() {
  const PhaseScope device(parts_.clock, Phase::kDevice);
  parts_.faults.stall_here(Fault::kStallDevice);
  const Pending& oldest = pending_.front();
  StepReport report = oldest.report;
  const at::Tensor read = oldest.figures();
  if (!is_abandoned_) refuse_when_cut(parts_.group);
  const double* const figures = read.data_ptr<double>();
  const int64_t expected = gate_at_first_ + report.step - first_step_ + 1;
  TORCH_CHECK_WITH(DistBackendError, static_cast<int64_t>(figures[kCommitted]) == expected, "step ", report.step + 1,
                   " was not committed: the group was cut while it was under way (the commit gate counts ",
                   static_cast<int64_t>(figures[kCommitted]), " steps, and this would be number ", expected, ")");
  report.loss = figures[kLoss] / oldest.loss_scale + figures[kRegularization];
  report.grad_norm = figures[kGradNorm];
  report.skipped = figures[kFoundInf] != 0.0;
  if (parts_.precision == Precision::kFp16) report.loss_scale = oldest.loss_scale;
  count_figures(parts_.state.counters, report);
  known_.push_back(report);
  pending_.pop_front();
}

}  // namespace lockstep
