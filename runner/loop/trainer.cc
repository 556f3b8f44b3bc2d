#include "runner/loop/trainer.h"

#include <torch/types.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <utility>

#include "runner/base/clock.h"
#include "runner/base/plural.h"
#include "runner/dist/collectives.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/rendezvous.h"
#include "runner/dist/state_transfer.h"
#include "runner/loop/evaluator.h"
#include "runner/loop/joint_work.h"
#include "runner/loop/memory_advice.h"
#include "runner/loop/phases.h"
#include "runner/loop/start_table.h"
#include "runner/loop/train_step.h"

namespace lockstep {
namespace {

Outcome usage(const Error& error) { return {ExitCode::kUsage, error.message, {}}; }

}  // namespace

struct Trainer::Generation {
  ProcessGroup& group;
  const StoreHandle& store;
  const Assignment& assignment;  // the group's
  int64_t formed_ns = 0;
  StopToken stop;
  uint64_t number = 0;  // as checkpoints are stamped: assignment.generation, or above it (see SyncResult)
  SyncResult sync;
  int64_t synced_ns = 0;
  bool has_resumed = false;  // report_resumed has sent its message to the agent
  std::unique_ptr<BatchSource> source;
  TrainingOptions training;  // the flags in the present phase
  PhaseSteps steps;
  std::unique_ptr<GradReducer> reducer;
  std::unique_ptr<TrainStep> step;

  [[nodiscard]] bool is_rank_zero() const { return group.rank() == 0; }
};

Trainer::Trainer(const Context& context)
    : context_(context),
      rank_(context_.rank),
      state_(rank_.workload, rank_.config.training),
      upload_(rank_.workload, rank_.device),
      gate_(rank_.device),
      writer_(context_, state_),
      queue_(rank_.workload, rank_.config.training.num_workers, rank_.device) {}

Trainer::~Trainer() = default;

Outcome Trainer::run_generation(ProcessGroup& group, const StoreHandle& store, int64_t formed_ns) {
  const Assignment& assignment = group.options().assignment;
  Generation g{.group = group,
               .store = store,
               .assignment = assignment,
               .formed_ns = formed_ns,
               .stop = stop_token(assignment.generation),
               .number = assignment.generation};
  gate_.open();
  // If the group was cut while it formed, its abort may have shut the gate before open() above: shut it again. The
  // abort sets fired() before it shuts the gate, so that no cut is missed.
  if (const auto& abort = group.options().abort; abort && abort->fired()) gate_.shut();
  try {
    return run_generation_or_throw(g);
  } catch (const std::exception& e) {  // the edge where torch's, c10d's and gloo's exceptions end
    return after_fault(g, e);
  }
}

// Decides what this rank does after an exception. With an agent, a rank that lost its group goes back to the state of
// the last commit and waits for the next group; in all other cases it ends.
Outcome Trainer::after_fault(Generation& g, const std::exception& exception) {
  const Failure fault = classify_fault(exception);
  std::string message = "at step " + std::to_string(state_.counters.step + 1) + ": " + fault.message;
  if (fault.code == ExitCode::kOutOfMemory) message += advice_on_memory(g);
  const bool was_cut = context_.agent != nullptr && context_.agent->was_cut(g.assignment.generation);
  const bool device_is_usable = fault.code != ExitCode::kDeviceFault && fault.code != ExitCode::kOutOfMemory;
  if (fault.code == ExitCode::kDeviceFault) context_.on_device_fault({fault.code, message});
  const bool group_is_lost = fault.code == ExitCode::kPeerLost || fault.code == ExitCode::kTimeout || was_cut;
  if (context_.agent == nullptr || !group_is_lost || !device_is_usable) return {fault.code, message, {}};
  rank_.clock.enter(Phase::kWaiting);
  try {
    // NCCL's kernels may still run. With the gate shut, updates that are queued behind them change nothing.
    gate_.shut();
    if (const auto& abort = g.group.options().abort) abort->fire();
    if (g.step) take(g.step->abandon());
  } catch (const std::exception& e) {
    const Failure second = classify_fault(e);
    const std::string why = "leaving a lost group: " + second.message;
    if (second.code == ExitCode::kDeviceFault) context_.on_device_fault({second.code, why});
    return {second.code, why, {}};
  }
  return {ExitCode::kPeerLost, message, was_cut ? kLeftCut : exit_reason(static_cast<int>(fault.code))};
}

// Frees the reducer's buckets, then tries smaller batches until one fits.
std::string Trainer::advice_on_memory(Generation& g) {
  const bool is_entering = !rank_.workload.info().phases.empty() && entered_phase_ < 0;
  if (is_entering || !g.step) {  // no batch was at fault
    const std::string advice = rank_.workload.memory_advice();
    return advice.empty() ? "" : "; " + advice;
  }
  g.step.reset();
  g.reducer.reset();
  const std::optional<int64_t> fits = micro_batch_that_fits(
      rank_.workload, state_, *g.source, rank_.config.training.seed, rank_.device, rank_.precision.precision);
  return memory_advice(state_.counters.batch, rank_.config.training, fits, rank_.workload.info().batch_flag,
                       rank_.workload.memory_advice());
}

Outcome Trainer::run_generation_or_throw(Generation& g) {
  Outcome outcome = prepare(g);
  if (outcome.code != ExitCode::kDone) return outcome;
  StepRequests asked = enter_phase(g, state_.counters.phase);
  const bool inference_only = rank_.config.training.inference_only;
  if (inference_only && !asked.any()) asked = evaluate(g);
  if (asked.leave_together && asked.stop_code == 0) return leave_together(g);
  if (!inference_only) return train(g, asked);
  report_resumed(g);
  return {static_cast<ExitCode>(asked.stop_code), {}, {}};
}

// Prepares the first step: brings all ranks to one state, makes the source of batches, and opens the run's folder on
// rank 0.
Outcome Trainer::prepare(Generation& g) {
  const TrainingOptions& training = rank_.config.training;
  phases_ = phases_of(rank_.workload.info(), training);
  rank_.clock.enter(state_.counters.has_state ? Phase::kWaiting : Phase::kStartup);
  context_.reporter.beat(state_.counters.step, Activity::kRestoring);
  // A run that starts before all nodes have come has the batch and the learning rate of all of them.
  const int declared_world_size = std::max(g.assignment.declared_world_size, g.group.world_size());
  const SyncOptions options{.folder = context_.folder,
                            .identity = writer_.identity(),
                            .generation = g.assignment.generation,
                            .first_batch = batch_shape(training, declared_world_size),
                            .on_start = [this](const SyncResult& start) { unreported_start_ = start; },
                            .on_live_state = [this] { context_.defer_stops(); }};
  const double began = rank_.clock.seconds().total();
  const bool is_first = !std::exchange(has_synced_, true);
  writer_.before_change();
  SyncOutcome synced = sync_state({rank_, state_, g.group, g.store, g.stop}, options);
  if (const auto* failure = std::get_if<Failure>(&synced)) return lost_or_failed(g, *failure);
  g.sync = std::move(std::get<SyncResult>(synced));
  is_rank_zero_ = g.is_rank_zero();
  g.number = g.sync.generation;
  g.synced_ns = monotonic_ns();
  const double restored = rank_.clock.seconds().total();
  if (is_first) context_.reporter.metrics().on_startup(StartupPart::kRestore, restored);
  if (g.sync.resumed_step > 0) context_.reporter.metrics().on_restore(restored - began);
  writer_.begin_generation(g.number, g.group.world_size(), g.sync.from_live_rank);
  context_.page.step.store(state_.counters.step);

  const Counters& counters = state_.counters;
  Result<std::unique_ptr<BatchSource>> source = rank_.workload.batches(
      {.split = Split::kTrain, .seed = training.seed, .global_batch = counters.batch.global_batch});
  if (!source.ok()) return usage(source.error());
  g.source = std::move(*source);
  g.training = options_in(phases_[static_cast<size_t>(counters.phase)], training);
  g.steps = phase_steps(phases_, counters, training.max_steps, *g.source);
  if (g.sync.has_changed) entered_phase_ = -1;

  // A new rank 0 opens the folder even when the run is finished: the rank 0 before it may not have written the last
  // checkpoint.
  if (g.is_rank_zero() && !training.inference_only && (g.sync.from_live_rank || !is_finished(g))) {
    const Status opened = writer_.open();
    if (!opened.ok()) {
      const bool is_usage_error = opened.error().code == ErrorCode::kConflict;
      return {is_usage_error ? ExitCode::kUsage : ExitCode::kCheckpoint, opened.error().message, {}};
    }
  } else {
    writer_.close(g.stop);
  }
  announce(g);
  if (g.is_rank_zero()) writer_.write_what_was_missed(g.stop);
  return {};
}

// The outcome of a failed sync_state. If the group broke during it and there is an agent, this rank waits for the next
// group; otherwise it ends.
Outcome Trainer::lost_or_failed(const Generation& g, const Failure& failure) const {
  if (context_.agent == nullptr || failure.code != ExitCode::kPeerLost) return {failure.code, failure.message, {}};
  const bool was_cut = context_.agent->was_cut(g.assignment.generation);
  return {failure.code, failure.message, was_cut ? kLeftCut : exit_reason(static_cast<int>(failure.code))};
}

// The start table is printed when a run begins from a checkpoint, weights or the seed. After a recovery from a live
// rank it would say nothing new; the agent prints its own line about the recovery.
void Trainer::announce(const Generation& g) {
  if (const std::optional<SyncResult> start = std::exchange(unreported_start_, std::nullopt)) {
    for (const std::string& remark : start->remarks) context_.reporter.warn(remark);
    context_.reporter.start_table(start_table_rows({.rank = rank_,
                                                    .group = g.group.options(),
                                                    .launched_by = context_.launched_by,
                                                    .solo = g.group.is_solo(),
                                                    .batch = state_.counters.batch,
                                                    .threads = context_.threads,
                                                    .phases = phases_,
                                                    .steps_per_epoch = state_.counters.epoch_steps,
                                                    .total_steps = g.steps.total,
                                                    .origin = start->origin,
                                                    .folder = context_.folder,
                                                    .nccl_variables = context_.nccl_variables}));
  }
  set_plan(g);
}

void Trainer::set_plan(const Generation& g) {
  context_.reporter.set_plan({.total_steps = g.steps.total,
                              .num_epochs = num_epochs(g),
                              .flops_per_sample = rank_.workload.flops_per_sample()});
}

// Makes the reducer and the TrainStep of the present phase.
void Trainer::begin_steps(Generation& g) {
  Counters& counters = state_.counters;
  const TrainingPhase& phase = phases_[static_cast<size_t>(counters.phase)];
  g.step.reset();
  g.reducer.reset();
  g.training = options_in(phase, rank_.config.training);
  g.steps = phase_steps(phases_, counters, g.training.max_steps, *g.source);
  state_.freeze(phase.frozen);
  g.reducer = std::make_unique<GradReducer>(state_.reduced(), g.group, [page = &context_.page] {
    page->phase.store(Phase::kGradSync, std::memory_order_relaxed);
    page->changed_ns.store(monotonic_ns(), std::memory_order_relaxed);
  });
  g.step = std::make_unique<TrainStep>(TrainStep::Context{.rank = rank_,
                                                          .training = g.training,
                                                          .state = state_,
                                                          .group = g.group,
                                                          .reducer = *g.reducer,
                                                          .source = *g.source,
                                                          .queue = queue_,
                                                          .upload = upload_,
                                                          .gate = gate_,
                                                          .steps = g.steps,
                                                          .is_cut = g.stop.is_cut,
                                                          .before_change = [this] { writer_.before_change(); }});
  set_plan(g);
}

// Lets the workload prepare the phase, on all ranks at once. Returns what any rank was asked to do meanwhile (to stop,
// or to leave together). With such a request the phase is not entered; the group or run that continues from this state
// enters it again.
StepRequests Trainer::enter_phase(Generation& g, int64_t phase) {
  if (rank_.workload.info().phases.empty()) return {};
  const PhaseScope scope(rank_.clock, Phase::kStartup);
  context_.reporter.beat(state_.counters.step, Activity::kRestoring);
  JointWork work(g.group, g.stop, rank_.clock, "while a phase was entered");
  // A rank that kept its state through a recovery has prepared the phase already.
  if (entered_phase_ != phase) {
    entered_phase_ = -1;
    const torch::NoGradGuard no_grad;
    const Status entered = rank_.workload.enter_phase(phase, [&] { return work.goes_on(); });
    if (!entered.ok()) throw RunFault(ExitCode::kData, entered.error().message);
    if (work.goes_on()) entered_phase_ = phase;
  }
  const JointEnd end = work.end();
  context_.reporter.beat(state_.counters.step, Activity::kTraining);
  return end.requests;
}

// All ranks reach the end of a phase at the same step. The counters change only after the next phase was entered, so a
// group that breaks in between runs this again.
StepRequests Trainer::change_phase(Generation& g) {
  Counters& counters = state_.counters;
  take(g.step->flush());
  if (counters.evaluated_step != counters.step) {
    const StepRequests asked = evaluate(g);
    if (asked.any()) return asked;
  }
  if (has_unwritten_best()) checkpoint(g, /*is_best=*/true);
  const int64_t next = counters.phase + 1;
  const StepRequests asked = enter_phase(g, next);
  if (asked.any()) return asked;
  begin_next_phase(counters);
  begin_steps(g);
  context_.reporter.say("now " + describe_phases({phases_[static_cast<size_t>(next)]}) + ", from step " +
                        std::to_string(counters.step + 1));
  return {};
}

Outcome Trainer::train(Generation& g, StepRequests asked) {
  Counters& counters = state_.counters;
  if (is_finished(g) && !g.sync.from_live_rank) {
    context_.reporter.say("already at step " + std::to_string(counters.step) + " of " + std::to_string(g.steps.total) +
                          ": nothing to do; to train further, use " + needed_to_continue());
    report_resumed(g);
    return {};
  }
  begin_steps(g);
  context_.reporter.beat(counters.step, Activity::kTraining);
  // A stop or a fault may have come after a step and before its evaluation. It is made now, because the learning rate
  // and early stopping depend on it.
  if (!asked.any() && counters.evaluated_step != counters.step && is_time_to_evaluate(g)) asked = evaluate(g);
  if (has_unwritten_best()) checkpoint(g, /*is_best=*/true);
  while (!asked.any()) {
    const bool phase_is_over = counters.step >= g.steps.end || is_out_of_patience();
    const bool is_over = phase_is_over && (is_last_phase() || counters.step >= g.steps.total);
    if (is_over) break;
    if (phase_is_over) {
      asked = change_phase(g);
      continue;
    }
    const TimePoint began = now();
    const StepOutcome stepped = g.step->run(g.stop.requests());
    const double seconds = seconds_between(began, now());
    counters.seconds_training += seconds;
    // This rank now holds a step that no checkpoint has: from here on a signal asks for a stop instead of ending the
    // process.
    context_.defer_stops();
    const double epoch = static_cast<double>(counters.position.epoch) +
                         static_cast<double>(counters.position.index) / static_cast<double>(counters.epoch_steps);
    context_.reporter.on_step_done(
        {.step = counters.step, .samples = stepped.samples, .epoch = epoch, .seconds = seconds});
    report_resumed(g);
    asked = stepped.requests;
    take(stepped.reports);
    Outcome drift = check_drift(g);
    if (drift.code != ExitCode::kDone) return drift;
    if (!asked.any() && is_time_to_evaluate(g)) asked = evaluate(g);
    const int64_t every = rank_.config.training.checkpoint_every;
    // finish() writes the checkpoint of the last step, because it has to include the last evaluation.
    const bool due = every > 0 && counters.step % every == 0 && counters.step < g.steps.total && asked.stop_code == 0;
    if (due || has_unwritten_best()) checkpoint(g, has_unwritten_best());
    writer_.report();
    if (not_finite_) return *not_finite_;
  }
  if (asked.leave_together && asked.stop_code == 0 && counters.step < g.steps.total) return leave_together(g);
  return finish(g, asked.stop_code);
}

StopToken Trainer::stop_token(uint64_t generation) const {
  const AgentLink* const agent = context_.agent;
  return {.is_cut = [=] { return agent != nullptr && agent->was_cut(generation); },
          .requests =
              [=, stop_code = context_.stop_code] {
                const bool leaves = agent != nullptr && agent->leave_together(generation).has_value();
                return StepRequests{.stop_code = stop_code(), .leave_together = leaves};
              }};
}

// The first committed step proves that the group works: tells the agent the times of the recovery.
void Trainer::report_resumed(Generation& g) {
  if (context_.agent == nullptr || std::exchange(g.has_resumed, true)) return;
  context_.agent->send(Resumed{.generation = g.assignment.generation,
                               .step = state_.counters.step,
                               .formed_ns = g.formed_ns,
                               .synced_ns = g.synced_ns,
                               .committed_ns = context_.page.committed_ns.load(),
                               .resumed_step = g.sync.resumed_step,
                               .origin = g.sync.origin});
}

// All ranks have committed the same step, on their devices too. A rank whose leaving code is not 0 ends for good; a
// rank 0 that does so makes its state durable first. The others wait for the next group.
Outcome Trainer::leave_together(Generation& g) {
  if (g.step) take(g.step->flush());
  {
    const PhaseScope scope(rank_.clock, Phase::kWaiting);
    wait_for_all_devices(g.group, rank_.stream);
  }
  const int leaving_code = context_.agent->leave_together(g.assignment.generation).value_or(0);
  if (leaving_code == 0) return {ExitCode::kDone, {}, kLeftRegroup};
  if (writer_.is_open()) {
    checkpoint(g, has_unwritten_best());
    writer_.make_durable(g.stop);
  }
  report_end(leaving_code);
  return {static_cast<ExitCode>(leaving_code), {}, {}};
}

// Records the figures of earlier steps. They are sums over all ranks, so that all ranks come to the same decision about
// skipped steps.
void Trainer::take(const std::vector<StepReport>& reports) {
  const int64_t limit = rank_.config.training.max_skipped_steps;
  for (const StepReport& report : reports) {
    state_.journal.add(report);
    context_.reporter.on_report(report);
    if (state_.counters.skipped_in_row <= limit || not_finite_) continue;
    const int64_t in_row = state_.counters.skipped_in_row;
    const std::string last = std::to_string(report.step + 1);
    not_finite_ = Outcome{ExitCode::kNotFinite,
                          (in_row == 1 ? "the gradient of step " + last + " was not finite"
                                       : "the gradients of " + std::to_string(in_row) + " steps in a row, up to step " +
                                             last + ", were not finite") +
                              " (--max_skipped_steps " + std::to_string(limit) +
                              "); lower --lr, set --clip_grad_norm, or look at the data",
                          {}};
  }
}

Outcome Trainer::check_drift(Generation& g) {
  const int64_t every = rank_.config.training.drift_check_every;
  if (every == 0 || state_.counters.step % every != 0) return {};
  const std::vector<int> drifted = drifted_ranks(g.group, rank_.stream, state_.parameters());
  if (drifted.empty()) return {};
  const std::string ranks = joined(drifted, ", ", [](int rank) { return std::to_string(rank); });
  return {ExitCode::kCrash,
          "after step " + std::to_string(state_.counters.step) + " the parameters of rank " + ranks +
              " differ from rank 0's (--drift_check_every " + std::to_string(every) +
              "); check the memory and the device of that rank",
          {}};
}

// Epochs until the last step, which --max_steps may bring forward.
int64_t Trainer::num_epochs(const Generation& g) const {
  DataPosition position = state_.counters.position;
  int64_t left = g.steps.total - state_.counters.step + position.index;
  for (; left > 0; ++position.epoch) left -= g.source->steps(position.epoch);
  return std::max<int64_t>(1, position.epoch);
}

bool Trainer::is_time_to_evaluate(const Generation& g) const {
  const int64_t every = rank_.config.training.eval_every;
  const Counters& counters = state_.counters;
  return every > 0 && counters.step > 0 && counters.position.index == 0 && counters.position.epoch % every == 0 &&
         counters.step < g.steps.total;
}

bool Trainer::is_finished(const Generation& g) const {
  return state_.counters.step >= g.steps.total && state_.counters.evaluated_step == state_.counters.step;
}

bool Trainer::is_out_of_patience() const {
  const int64_t patience = rank_.config.training.early_stop_patience;
  return patience > 0 && state_.counters.evaluations_without_best >= patience;
}

// Returns what any rank was asked to do meanwhile. A request ends the evaluation, which is then discarded:
// evaluated_step stays as it was, and the group or run that continues from this step evaluates again.
StepRequests Trainer::evaluate(Generation& g) {
  const PhaseScope scope(rank_.clock, Phase::kValidation);
  if (g.step) take(g.step->flush());
  Counters& counters = state_.counters;
  context_.reporter.beat(counters.step, Activity::kEvaluating);
  EvaluationOutcome outcome;
  {
    writer_.before_change();
    const std::optional<Ema::SwapIn> average = state_.swap_in_average();
    outcome = evaluate_on_all_ranks(
        g.group,
        {.rank = rank_, .phase = counters.phase, .samples_at_once = counters.batch.micro_batch_max, .stop = g.stop});
    if (outcome.is_complete) {
      EvaluationNote note{.report = {.step = counters.step,
                                     .epoch = counters.position.epoch,
                                     .ends_epoch = counters.position.index == 0,
                                     .seconds_training = counters.seconds_training,
                                     .metrics = std::move(outcome.metrics)},
                          .outputs = {}};
      for (const MetricSum& sum : counters.training) note.report.metrics.emplace_back(sum.name, sum.sum / sum.count);
      // On every rank: what is best so far belongs to the state.
      note.outputs = rank_.workload.outputs(note.report);
      // From here on the evaluation counts, whatever happens to its files.
      EvaluationNote kept = note;
      std::erase_if(kept.outputs, [&](const std::string& name) { return outcome.parts.contains(name); });
      record_evaluation(g, std::move(kept));
      note.lr = state_.journal.evaluation->lr;
      context_.reporter.on_evaluation(note.report, rank_.workload);
      writer_.stage_outputs(note, std::move(outcome.parts), g.stop);
    }
  }
  context_.reporter.beat(counters.step, Activity::kTraining);
  if (!outcome.is_complete) {
    context_.reporter.say("the evaluation of step " + std::to_string(counters.step) +
                          " was interrupted; it is repeated when the run resumes");
  }
  return outcome.requests;
}

void Trainer::record_evaluation(const Generation& g, EvaluationNote note) {
  Counters& counters = state_.counters;
  counters.evaluated_step = counters.step;
  const std::optional<bool> is_best =
      count_evaluation(counters, rank_.workload.info(), rank_.config.training, note.report.metrics);
  counters.training.clear();
  note.lr = lr_value(counters.step - g.steps.begin, lr_schedule_in(g.training, counters, g.steps, *g.source),
                     counters.plateau);
  state_.journal.improved = is_best.value_or(state_.journal.improved);
  state_.journal.evaluation = std::move(note);
}

// True from an evaluation that is the best so far until rank 0 has staged its checkpoint. Other ranks keep it true
// until the next step, which rank 0 begins only after staging: until then one of them may become rank 0 and has to
// write it.
bool Trainer::has_unwritten_best() const {
  return state_.journal.improved && state_.counters.evaluated_step == state_.counters.step;
}

void Trainer::checkpoint(Generation& g, bool is_best) {
  // Skip counters and the loss scale depend on figures that the device may not have given yet.
  if (g.step) take(g.step->flush());
  writer_.stage_checkpoint(is_best, g.stop);
}

Outcome Trainer::finish(Generation& g, int stop_code) {
  take(g.step->flush());
  Counters& counters = state_.counters;
  const bool unevaluated = !not_finite_ && !is_stop(stop_code) && counters.evaluated_step != counters.step;
  bool has_evaluated = false;
  if (unevaluated) {
    const StepRequests asked = evaluate(g);
    has_evaluated = counters.evaluated_step == counters.step;
    if (!has_evaluated && asked.stop_code == 0) return leave_together(g);
    if (!has_evaluated) stop_code = asked.stop_code;
  }
  if (not_finite_) return *not_finite_;
  const bool best = has_unwritten_best();
  if (!writer_.has_checkpoint_of(counters.step) || has_evaluated || best) checkpoint(g, best);
  writer_.make_durable(g.stop);
  double failed_writes = 0.0;
  {
    // No rank leaves before rank 0's checkpoint is durable: some launchers end all ranks as soon as the first one has
    // left, and all ranks are to know whether the last checkpoint was written.
    const PhaseScope scope(rank_.clock, Phase::kWaiting);
    wait_for_device(g.group, rank_.stream);  // the sum is the barrier after which the group may be dropped
    const double mine = writer_.problem().empty() ? 0.0 : 1.0;
    failed_writes = sum_over_ranks(g.group, {&mine, 1})[0];
  }
  report_resumed(g);
  report_end(stop_code);
  if (failed_writes > 0.0) {
    const std::string why = writer_.problem().empty() ? "rank 0 could not write it" : writer_.problem();
    return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + why, {}};
  }
  return {static_cast<ExitCode>(stop_code), {}, {}};
}

std::string Trainer::needed_to_continue() const {
  return lockstep::needed_to_continue(rank_.workload.info(), rank_.config.training, state_.counters.step);
}

void Trainer::report_end(int stop_code) {
  std::string how = stop_code == 0 ? (is_out_of_patience() ? "stopped early" : "done") : stop_words(stop_code);
  if (!writer_.problem().empty()) how += ", but the last checkpoint could not be written,";
  const DecidingFigure& best = rank_.workload.info().best;
  const double score = state_.counters.best_metric;
  context_.reporter.end_summary({.how = how,
                                 .step = state_.counters.step,
                                 .best_metric = best.name,
                                 .best_value = best.direction == Direction::kHigher ? score : -score,
                                 .skipped_steps = state_.counters.skipped_total,
                                 .resume_command = context_.resume_command,
                                 .needed_to_continue = needed_to_continue()});
}

Outcome Trainer::stop_between_groups(int stop_code) {
  // A rank 0 that has got the state in its last group may have left that before it opened the folder.
  const bool opens = is_rank_zero_ && state_.counters.has_state && !rank_.config.training.inference_only;
  if (opens && !writer_.is_open()) {
    const Status opened = writer_.open();
    if (!opened.ok()) return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + opened.error().message, {}};
  }
  if (state_.counters.has_state && !writer_.has_checkpoint_of(state_.counters.step)) {
    writer_.stage_checkpoint(has_unwritten_best(), StopToken{});
  }
  writer_.make_durable(StopToken{});
  report_end(stop_code);
  if (!writer_.problem().empty()) {
    return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + writer_.problem(), {}};
  }
  return {static_cast<ExitCode>(stop_code), {}, {}};
}

}  // namespace lockstep
