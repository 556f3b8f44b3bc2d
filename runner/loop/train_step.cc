#include "runner/loop/train_step.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "runner/base/check.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/process_group.h"
#include "runner/kernels/commit_gate.h"
#include "runner/loop/device.h"
#include "runner/loop/upload.h"
#include "runner/optim/grad_clip.h"

namespace lockstep {
namespace {

// Figures of a step beside those of the loss terms, which come first.
enum Figure : size_t { kRegularization, kGradNorm, kFoundInf, kCommitted, kFigures };

// Batches of so many coming steps are requested from the queue: the next one, whose weights are summed while the
// present step runs, and two more for the fetch threads to work on.
constexpr size_t kStepsAhead = 3;

// A parameter without a gradient would stay as it is, and the other ranks might wait for it for ever.
void refuse_unreached(const std::vector<std::string>& parameters) {
  if (parameters.empty()) return;
  const size_t others = parameters.size() - 1;
  throw RunFault(
      ExitCode::kUsage,
      "loss() gives no gradient to the parameter " + parameters.front() +
          (others == 0 ? "" : " and " + std::to_string(others) + " more") +
          ": every batch must use every parameter of groups(); where it does not, add 0.0 * parameter.sum()");
}

// Names of the parameters from which none of the roots was computed. Roots may be undefined or need no gradient.
std::vector<std::string> outside_graphs(const std::vector<at::Tensor>& roots, const NamedTensors& parameters) {
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> todo;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) todo.push_back(node);
  };
  for (const at::Tensor& root : roots) {
    if (root.defined() && root.requires_grad()) visit(torch::autograd::impl::gradient_edge(root).function.get());
  }
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<std::string> names;
  for (const NamedTensor& p : parameters) {
    if (!seen.contains(torch::autograd::impl::grad_accumulator(p.tensor).get())) names.push_back(p.name);
  }
  return names;
}

}  // namespace

// A step whose batch was requested from the queue.
struct TrainStep::Planned {
  int64_t step = 0;
  DataPosition position;
  DataPosition after;              // the position of the step after it
  int64_t after_epoch_steps = 0;   // the number of steps in the epoch of `after`
  int64_t samples = 0;             // of the global batch
  std::vector<BatchShare> shares;  // one for each micro-batch; one without samples when this rank has none
};

// A step whose batch has been fetched.
struct TrainStep::Fetched {
  Planned planned;
  std::vector<HostBatch> batches;  // by share
  std::vector<double> weights;     // of this rank, by loss term
  std::optional<Failure> failure;  // why the batch could not be fetched; ends this rank when the step begins
};

// A step whose figures have not been reported.
struct TrainStep::Pending {
  StepReport report;
  double loss_scale = 1.0;
  std::vector<double> totals;     // by loss term
  DeviceStream::Reading figures;  // fp64: by loss term, then by Figure
};

TrainStep::TrainStep(const Context& context)
    : context_(context),
      terms_(context.rank.workload.info().loss_terms),
      first_step_(context.state.counters.step),
      first_position_(context.state.counters.position),
      gate_at_first_(context.gate.committed()),
      schedule_(lr_schedule_in(context.training, context.state.counters, context.steps, context.source)),
      checks_graph_(std::any_of(terms_.begin(), terms_.end(), [](const LossTerm& t) { return t.coefficient == 0.0; })) {
  context_.upload.drop();
}

TrainStep::~TrainStep() = default;

StepOutcome TrainStep::run(const StepRequests& requests) {
  Counters& counters = context_.state.counters;
  const TrainingOptions& training = context_.training;
  PhaseClock& clock = context_.rank.clock;

  clock.enter(Phase::kDataWait);
  if (next_ == nullptr) next_ = std::make_unique<Fetched>(fetch_next());
  const std::unique_ptr<Fetched> batch = std::move(next_);
  const Planned& planned = batch->planned;
  const int64_t step = planned.step;
  if (batch->failure) throw RunFault(batch->failure->code, batch->failure->message);
  if (totals_.empty()) {
    clock.enter(Phase::kWaiting);
    totals_ = sum_over_ranks(context_.group, batch->weights);
    clock.enter(Phase::kDataWait);
  }
  std::vector<double> next_weights(terms_.size(), 0.0);
  if (step + 1 < context_.steps.end) {
    next_ = std::make_unique<Fetched>(fetch_next());
    next_weights = next_->weights;
  }

  // ---- the training section ----
  clock.enter(Phase::kForward);
  append_requests(requests, next_weights);
  HostSums sums(context_.group, std::move(next_weights));
  zero_gradients();
  const double loss_scale = context_.rank.precision.precision == Precision::kFp16 ? counters.loss_scale.scale : 1.0;
  const std::vector<double> scale_by_term = scales(totals_, loss_scale);
  const at::Tensor& probe = context_.state.loss_probe();
  at::Tensor regularization;
  std::vector<at::Tensor> roots;  // of the graphs that are checked
  for (size_t i = 0; i < planned.shares.size(); ++i) {
    clock.enter(Phase::kForward);
    at::Tensor loss;
    if (planned.shares[i].samples.empty()) {
      loss = reach_every_parameter();
    } else {
      std::vector<at::Tensor> scaled = forward(context_.upload.take(batch->batches[i], planned.shares[i]));
      for (size_t term = 0; term < terms_.size(); ++term) {
        scaled[term] = scaled[term] * scale_by_term[term];
        const double coefficient = terms_[term].coefficient;
        // A term that is only reported adds no gradient. Parameters that only this term uses still need one (of zero),
        // or their buckets would never be complete.
        const at::Tensor part = coefficient == 0.0 ? reach_every_parameter() : scaled[term] * coefficient;
        loss = loss.defined() ? loss + part : part;
      }
      if (checks_graph_) roots.insert(roots.end(), scaled.begin(), scaled.end());
      // The probe is 0, so this adds nothing to the loss; the probe's gradient is the values of the terms.
      loss = loss + (probe * torch::stack(scaled).detach()).sum();
    }
    const bool is_last = i + 1 == planned.shares.size();
    const Fetched* const following = is_last ? next_.get() : batch.get();
    if (following != nullptr) begin_upload(*following, is_last ? 0 : i + 1);
    if (is_last) {
      regularization = context_.rank.workload.regularization();
      if (regularization.defined()) loss = loss + regularization * loss_scale;
      if (!roots.empty()) {
        roots.push_back(regularization);
        refuse_unreached(outside_graphs(roots, context_.state.trained()));
        checks_graph_ = false;
      }
      context_.reducer.prepare(loss);
    }
    clock.enter(Phase::kBackward);
    loss.backward();
  }
  refuse_unreached(context_.reducer.unreached());
  clock.enter(Phase::kOptimizer);
  clock.move(Phase::kBackward, Phase::kGradSync, context_.reducer.exposed_time());

  const GradClipResult clip =
      clip_gradients(context_.state.trained(), {.max_norm = training.clip_grad_norm, .loss_scale = loss_scale});
  const double lr = lr_value(step - context_.steps.begin, schedule_, counters.plateau);
  const CommitGate::Passed passed = context_.gate.pass(clip.found_inf);
  context_.before_change();
  context_.state.adam().step(lr, passed.skip);
  for (auto& [name, ema] : context_.state.emas()) ema.update(passed.skip);
  ++counters.step;  // the commit
  // ---- everything that follows is bookkeeping ----

  counters.position = planned.after;
  counters.epoch_steps = planned.after_epoch_steps;
  const torch::NoGradGuard no_grad;
  const at::Tensor reg =
      regularization.defined() ? regularization.detach().reshape({}) : torch::zeros({}, probe.options());
  pending_.push_back(
      {.report = {.step = step, .epoch = planned.position.epoch, .samples = planned.samples, .terms = {}, .lr = lr},
       .loss_scale = loss_scale,
       .totals = std::move(totals_),
       .figures = context_.rank.stream.read_later(torch::cat(
           {probe.grad().to(torch::kFloat64),
            torch::stack({reg.to(torch::kFloat64), clip.norm.reshape({}).to(torch::kFloat64),
                          clip.found_inf.reshape({}).to(torch::kFloat64), passed.committed.reshape({})})}))});
  StepOutcome outcome;
  outcome.samples = planned.samples;
  // Every rank began this sum before its gradients were reduced, so that only the messages may still be on their way.
  clock.enter(Phase::kWaiting);
  totals_ = sums.wait();
  clock.enter(Phase::kOther);
  outcome.requests = extract_requests(totals_);
  outcome.reports = report_up_to(step - context_.rank.stream.lag());
  return outcome;
}

std::vector<StepReport> TrainStep::flush() {
  // If a peer is dead, this barrier on the host fails. Without it, this rank's device would wait for the peer for ever.
  if (!pending_.empty()) {
    const PhaseScope waiting(context_.rank.clock, Phase::kWaiting);
    barrier(context_.group);
  }
  return report_up_to(context_.state.counters.step);
}

std::vector<StepReport> TrainStep::abandon() {
  is_abandoned_ = true;
  // The host may have queued more steps than the gate has let through.
  const int64_t committed = context_.gate.committed() - gate_at_first_;
  context_.state.counters.step = first_step_ + committed;
  context_.state.counters.position = position_after(first_position_, committed, context_.source);
  context_.state.counters.epoch_steps = context_.source.steps(context_.state.counters.position.epoch);
  while (!pending_.empty() && pending_.back().report.step >= context_.state.counters.step) pending_.pop_back();
  return report_up_to(context_.state.counters.step);
}

TrainStep::Planned TrainStep::plan(int64_t step, const DataPosition& position) {
  const std::vector<int64_t> batch = context_.source.batch(position.epoch, position.index);
  std::vector<int64_t> costs;
  costs.reserve(batch.size());
  for (const int64_t sample : batch) costs.push_back(context_.source.cost(sample));
  const DataPosition after = position_after(position, 1, context_.source);
  Planned planned{.step = step,
                  .position = position,
                  .after = after,
                  .after_epoch_steps = context_.source.steps(after.epoch),
                  .samples = static_cast<int64_t>(batch.size()),
                  .shares = {}};
  for (const SlotRange& slots : micro_batches_of_rank(context_.state.counters.batch, costs, context_.group.rank(),
                                                      context_.group.world_size())) {
    planned.shares.push_back({.seed = context_.training.seed,
                              .step = step,
                              .epoch = position.epoch,
                              .phase = context_.state.counters.phase,
                              .first_slot = slots.begin,
                              .samples = {batch.begin() + slots.begin, batch.begin() + slots.end}});
  }
  return planned;
}

// Takes the batch of the next step that has none yet, and requests those of the steps after it.
TrainStep::Fetched TrainStep::fetch_next() {
  while (coming_.size() < kStepsAhead && unplanned_step_ < context_.steps.end) {
    coming_.push_back(plan(unplanned_step_, unplanned_position_));
    ++unplanned_step_;
    unplanned_position_ = coming_.back().after;
  }
  LOCKSTEP_CHECK(!coming_.empty(), "no step after the last one is run");
  std::vector<BatchShare> wanted;
  for (const Planned& planned : coming_) {
    std::copy_if(planned.shares.begin(), planned.shares.end(), std::back_inserter(wanted),
                 [](const BatchShare& share) { return !share.samples.empty(); });
  }
  context_.queue.want(wanted);
  Fetched fetched{.planned = std::move(coming_.front()),
                  .batches = {},
                  .weights = std::vector<double>(terms_.size(), 0.0),
                  .failure = std::nullopt};
  coming_.pop_front();
  for (const BatchShare& share : fetched.planned.shares) {
    HostBatch& batch = fetched.batches.emplace_back();
    if (share.samples.empty()) continue;
    FetchedBatch taken = context_.queue.take(share, context_.is_cut);
    if (auto* const failure = std::get_if<Failure>(&taken)) {
      fetched.failure = std::move(*failure);
      continue;
    }
    batch = std::move(std::get<HostBatch>(taken));
    LOCKSTEP_CHECK(batch.weights.size() == terms_.size(), "a batch has a weight for each loss term");
    for (size_t term = 0; term < terms_.size(); ++term) fetched.weights[term] += batch.weights[term];
  }
  return fetched;
}

void TrainStep::begin_upload(const Fetched& fetched, size_t micro_batch) {
  const BatchShare& share = fetched.planned.shares[micro_batch];
  if (!fetched.failure && !share.samples.empty()) context_.upload.begin(fetched.batches[micro_batch], share);
}

// A factor for each loss term. The reducer averages over the W ranks; with this factor (W / denominator) its result is
// Σ∇term / denominator.
std::vector<double> TrainStep::scales(const std::vector<double>& totals, double loss_scale) const {
  std::vector<double> scales;
  for (size_t term = 0; term < terms_.size(); ++term) {
    const double denominator = totals[term] > 0.0 ? terms_[term].denominator.value_or(totals[term]) : 0.0;
    scales.push_back(denominator > 0.0 ? loss_scale * context_.group.world_size() / denominator : 0.0);
  }
  return scales;
}

std::vector<at::Tensor> TrainStep::forward(const DeviceBatch& batch) {
  const AutocastScope autocast(context_.rank.precision.precision, context_.rank.device);
  std::vector<at::Tensor> sums = context_.rank.workload.loss(batch);
  LOCKSTEP_CHECK(sums.size() == terms_.size(), "a loss has a sum for each loss term");
  return sums;
}

// A loss of 0 whose graph reaches every parameter. A rank without samples needs it: without a gradient for every
// parameter its buckets would never be complete, and the other ranks would wait in the all-reduce.
at::Tensor TrainStep::reach_every_parameter() const {
  at::Tensor loss = torch::zeros({}, torch::TensorOptions().device(context_.rank.device));
  for (const NamedTensor& p : context_.state.reduced()) loss = loss + p.tensor.sum().to(torch::kFloat32) * 0.0;
  return loss;
}

// With a reducer the gradients are views into its buckets and are set to zero in place. In a group of one rank they are
// dropped instead: autograd then stores its result without adding it to zeros.
void TrainStep::zero_gradients() {
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& p : context_.state.reduced()) {
    if (context_.group.is_solo()) {
      p.tensor.mutable_grad().reset();
    } else if (p.tensor.grad().defined()) {
      gradients.push_back(p.tensor.grad());
    }
  }
  if (!gradients.empty()) at::_foreach_zero_(gradients);
}

// When reading a step's figures throws, the reports read before it stay in known_, for abandon().
std::vector<StepReport> TrainStep::report_up_to(int64_t step) {
  while (!pending_.empty() && pending_.front().report.step <= step) report_oldest();
  return std::exchange(known_, {});
}

void TrainStep::report_oldest() {
  const PhaseScope device(context_.rank.clock, Phase::kDevice);
  const Pending& oldest = pending_.front();
  StepReport report = oldest.report;
  const at::Tensor read = oldest.figures();
  if (!is_abandoned_) refuse_when_cut(context_.group);
  const double* const by_term = read.data_ptr<double>();
  const double* const figures = by_term + terms_.size();
  const int64_t expected = gate_at_first_ + report.step - first_step_ + 1;
  TORCH_CHECK_WITH(DistBackendError, static_cast<int64_t>(figures[kCommitted]) == expected, "step ", report.step + 1,
                   " was not committed: the group was cut while it was under way (the commit gate counts ",
                   static_cast<int64_t>(figures[kCommitted]), " steps, and this would be number ", expected, ")");
  report.loss = figures[kRegularization];
  for (size_t term = 0; term < terms_.size(); ++term) {
    const double value = by_term[term] / oldest.loss_scale;
    report.loss += terms_[term].coefficient * value;
    const bool has_figure = terms_.size() > 1 && oldest.totals[term] > 0.0;
    if (has_figure) report.terms.emplace_back(terms_[term].name, value);
  }
  report.grad_norm = figures[kGradNorm];
  report.skipped = figures[kFoundInf] != 0.0;
  if (context_.rank.precision.precision == Precision::kFp16) report.loss_scale = oldest.loss_scale;
  count_figures(context_.state.counters, report);
  known_.push_back(report);
  pending_.pop_front();
}

}  // namespace lockstep
