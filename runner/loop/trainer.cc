#include "runner/loop/trainer.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <utility>

#include "runner/base/build_info.h"
#include "runner/base/clock.h"
#include "runner/checkpoint/writer.h"
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
  Formed formed;
  StopToken stop;
  uint64_t number = 0;  // as checkpoints are stamped: formed.generation, or above it (see SyncResult)
  SyncResult sync;
  int64_t synced_ns = 0;
  bool has_resumed = false;  // said to the agent
  std::unique_ptr<BatchSource> source;
  TrainingOptions training;  // the flags in the present phase
  PhaseSteps steps;
  std::unique_ptr<GradReducer> reducer;
  std::unique_ptr<TrainStep> step;

  [[nodiscard]] bool is_rank_zero() const { return group.rank() == 0; }
};

Trainer::Trainer(const Parts& parts)
    : parts_(parts),
      state_(parts.workload, parts.config.training),
      gate_(parts.device),
      queue_(parts.workload, parts.config.training.num_workers, parts.device) {}

Trainer::~Trainer() = default;

Outcome Trainer::run_generation(ProcessGroup& group, const StoreHandle& store, const Formed& formed) {
  Generation g{.group = group,
               .store = store,
               .formed = formed,
               .stop = stop_token(formed.generation),
               .number = formed.generation};
  gate_.open();
  // Cut while it was formed: the abort has shut the gate before it was opened here. (fired() is true before it does.)
  if (const auto& abort = group.options().abort; abort && abort->fired()) gate_.shut();
  try {
    return run_generation_or_throw(g);
  } catch (const std::exception& e) {  // the edge where torch's, c10d's and gloo's exceptions end
    return after_fault(g, e);
  }
}

// The state is that of the last commit. With an agent a lost group is no reason to leave: another one will come.
Outcome Trainer::after_fault(Generation& g, const std::exception& exception) {
  const Failure fault = classify_fault(exception);
  std::string message = "at step " + std::to_string(state_.counters.step + 1) + ": " + fault.message;
  if (fault.code == ExitCode::kOutOfMemory && g.step) message += advice_on_memory(g);
  const bool was_cut = parts_.agent != nullptr && parts_.agent->was_cut(g.formed.generation);
  const bool device_is_well = fault.code != ExitCode::kDeviceFault && fault.code != ExitCode::kOutOfMemory;
  if (fault.code == ExitCode::kDeviceFault) parts_.on_device_fault({fault.code, message});
  const bool group_is_lost = fault.code == ExitCode::kPeerLost || fault.code == ExitCode::kTimeout || was_cut;
  if (parts_.agent == nullptr || !group_is_lost || !device_is_well) return {fault.code, message, {}};
  parts_.clock.enter(Phase::kWaiting);
  try {
    // NCCL's kernels may still run: nothing that is queued behind them may count.
    gate_.shut();
    if (const auto& abort = g.group.options().abort) abort->fire();
    if (g.step) take(g.step->abandon());
  } catch (const std::exception& e) {
    const Failure second = classify_fault(e);
    const std::string why = "leaving a lost group: " + second.message;
    if (second.code == ExitCode::kDeviceFault) parts_.on_device_fault({second.code, why});
    return {second.code, why, {}};
  }
  return {ExitCode::kPeerLost, message, was_cut ? kLeftCut : exit_reason(static_cast<int>(fault.code))};
}

// Tries smaller batches, beside the state and without the reducer's buckets.
std::string Trainer::advice_on_memory(Generation& g) {
  g.step.reset();
  g.reducer.reset();
  const std::optional<int64_t> fits = micro_batch_that_fits(
      parts_.workload, state_, *g.source, parts_.config.training.seed, parts_.device, parts_.precision.precision);
  return memory_advice(state_.counters.batch, parts_.config.training, fits, parts_.workload.info().batch_flag,
                       parts_.workload.memory_advice());
}

Outcome Trainer::run_generation_or_throw(Generation& g) {
  Outcome outcome = prepare(g);
  if (outcome.code != ExitCode::kDone) return outcome;
  StepRequests asked = enter_phase(g, state_.counters.phase);
  const bool inference_only = parts_.config.training.inference_only;
  if (inference_only && !asked.any()) asked = evaluate(g);
  if (asked.leave_together && asked.stop_code == 0) return leave_together(g);
  if (!inference_only) return train(g, asked);
  say_resumed(g);
  return {static_cast<ExitCode>(asked.stop_code), {}, {}};
}

// Everything up to the first step.
Outcome Trainer::prepare(Generation& g) {
  const TrainingOptions& training = parts_.config.training;
  phases_ = phases_of(parts_.workload.info(), training);
  parts_.clock.enter(state_.counters.has_state ? Phase::kWaiting : Phase::kStartup);
  parts_.reporter.beat(state_.counters.step, Activity::kRestoring);
  parts_.faults.stall_here(Fault::kStallRestoring);
  // A run that starts with fewer nodes than were asked for is the same run; more than that can only be asked for later.
  const int declared_world_size = std::max(g.formed.declared_world_size, g.group.world_size());
  const SyncOptions options{.folder = parts_.folder,
                            .identity = {.job = parts_.job,
                                         .config_hash = parts_.config.config_hash(),
                                         .workload = parts_.workload.info().name},
                            .generation = g.formed.generation,
                            .first_batch = batch_shape(training, declared_world_size),
                            .on_start = [this](const SyncResult& start) { untold_start_ = start; },
                            .on_live_state = [this] { parts_.defer_stops(); },
                            .on_message = [this] { parts_.faults.stall_here(Fault::kStallTransfer); }};
  const double began = parts_.clock.seconds().total();
  const bool is_first = !std::exchange(has_synced_, true);
  before_change();
  SyncOutcome synced = sync_state(
      {parts_.config, parts_.workload, state_, g.group, parts_.stream, g.store, parts_.fs, parts_.clock, g.stop},
      options);
  if (const auto* failure = std::get_if<Failure>(&synced)) return lost_or_failed(g, *failure);
  g.sync = std::move(std::get<SyncResult>(synced));
  g.number = g.sync.generation;
  g.synced_ns = monotonic_ns();
  const double restored = parts_.clock.seconds().total();
  if (is_first) parts_.reporter.metrics().on_startup(StartupPart::kRestore, restored);
  if (g.sync.resumed_step > 0) parts_.reporter.metrics().on_restore(restored - began);
  number_ = g.number;
  parts_.reporter.set_owner({.run = options.identity, .stamp = stamp()});
  world_size_ = g.group.world_size();
  parts_.page.step.store(state_.counters.step);

  const Counters& counters = state_.counters;
  Result<std::unique_ptr<BatchSource>> source = parts_.workload.batches(
      {.split = Split::kTrain, .seed = training.seed, .global_batch = counters.batch.global_batch});
  if (!source.ok()) return usage(source.error());
  g.source = std::move(*source);
  g.training = options_in(phases_[static_cast<size_t>(counters.phase)], training);
  g.steps = phase_steps(phases_, counters, training.max_steps, *g.source);
  if (g.sync.has_changed) entered_phase_ = -1;

  // Who takes over a finished run may have to write down its end.
  if (g.is_rank_zero() && !training.inference_only && (g.sync.from_live_rank || !is_finished(g))) {
    const Status opened = open_outputs(g);
    if (!opened.ok() && !can_go_on_without(g, opened.error())) {
      const bool ours_to_mend = opened.error().code == ErrorCode::kConflict;
      return {ours_to_mend ? ExitCode::kUsage : ExitCode::kCheckpoint, opened.error().message, {}};
    }
    outputs_missing_ = !opened.ok();
  } else {
    close_outputs(g.stop);
  }
  // A state from a live rank may never have been written down.
  if (!g.sync.from_live_rank) checkpointed_step_ = state_.counters.step;
  announce(g);
  if (g.is_rank_zero()) write_down_what_was_missed();
  return {};
}

// The group broke again while the state was on its way.
Outcome Trainer::lost_or_failed(const Generation& g, const Failure& failure) const {
  if (parts_.agent == nullptr || failure.code != ExitCode::kPeerLost) return {failure.code, failure.message, {}};
  const bool was_cut = parts_.agent->was_cut(g.formed.generation);
  return {failure.code, failure.message, was_cut ? kLeftCut : exit_reason(static_cast<int>(failure.code))};
}

// Rank 0: the folder is locked and proved writable, checkpoints and files are opened. Once: a rank 0 that goes on from
// where it was only proves the folder again.
Status Trainer::open_outputs(Generation& g) {
  const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
  const TrainingOptions& training = parts_.config.training;
  if (!writer_) {
    writer_ = std::make_unique<CheckpointWriter>(
        parts_.fs, CheckpointWriterOptions{.folder = parts_.folder,
                                           .retention = {.keep_last = training.keep_last,
                                                         .keep_every = training.keep_every,
                                                         .keep_best = training.keep_best},
                                           .resume = parts_.job.resume,
                                           .device = parts_.device,
                                           .on_progress = [&clock = parts_.clock] { clock.progress(); }});
    writer_->make_buffers(checkpoint_tensors());
  }
  wait_for_writer(g.stop);
  report_checkpoints();
  // A folder that cannot be made is named by the writer's probe, with what to do.
  if (!lock_ && parts_.locks_folder && make_directories(parts_.fs, parts_.folder).ok()) {
    TRY_ASSIGN(FileLock taken, FileLock::take(join_path(parts_.folder, ".lock")));
    lock_.emplace(std::move(taken));
  }
  TRY(writer_->prepare(stamp()));
  if (opened_at_step_ >= 0 && state_.counters.step >= opened_at_step_) return {};
  TRY_ASSIGN(RunFolder folder, RunFolder::open(parts_.fs, parts_.config, parts_.workload,
                                               {.path = parts_.folder,
                                                .host_name = parts_.host_name,
                                                .resume_step = state_.counters.step,
                                                .resume_epochs = state_.counters.place.epoch}));
  opened_at_step_ = state_.counters.step;
  parts_.reporter.use_folder(std::move(folder));
  return {};
}

// A state in memory is worth more than a volume that is full or away for a while: each checkpoint tries it again, and
// the last one decides.
bool Trainer::can_go_on_without(const Generation& g, const Error& error) {
  if (!g.sync.from_live_rank || error.code != ErrorCode::kUnavailable) return false;
  write_problem_ = error.message;
  parts_.reporter.warn("the output folder cannot be used now: " + error.message +
                       "; training goes on in memory, and each checkpoint tries it again: make room there, or mend the "
                       "volume");
  return true;
}

bool Trainer::try_outputs_again(Generation& g) {
  const Status opened = open_outputs(g);
  if (!opened.ok()) {
    write_problem_ = opened.error().message;
    parts_.reporter.warn("the output folder still cannot be used: " + opened.error().message);
    return false;
  }
  outputs_missing_ = false;
  write_down_what_was_missed();
  return true;
}

// Another rank is rank 0 now, and the only one that writes.
void Trainer::close_outputs(const StopToken& stop) {
  if (writer_) {
    const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
    wait_for_writer(stop);
    report_checkpoints();
  }
  writer_.reset();
  lock_.reset();
  outputs_missing_ = false;
  write_problem_.clear();
  opened_at_step_ = -1;
  parts_.reporter.leave_folder();
}

// Steps that were committed while another process was rank 0, or that this one learnt of from a peer.
void Trainer::write_down_what_was_missed() {
  const auto steps = state_.journal.steps;
  for (const StepReport& report : steps) parts_.reporter.on_report(report);
  if (!state_.journal.evaluation || !parts_.reporter.misses(*state_.journal.evaluation)) return;
  EvaluationNote note = *state_.journal.evaluation;
  // The weights that it looked at are gone once a step was done.
  if (note.step != state_.counters.step) note.outputs.clear();
  before_change();
  const std::optional<Ema::SwapIn> average = state_.swap_in_average();
  parts_.reporter.on_evaluation(note, parts_.workload, state_.optimizer_tensors());
}

// Who goes on from a live rank has nothing to announce: whoever follows the run has seen the table, and what changed is
// in the agent's own line.
void Trainer::announce(const Generation& g) {
  if (const std::optional<SyncResult> start = std::exchange(untold_start_, std::nullopt)) {
    for (const std::string& remark : start->remarks) parts_.reporter.warn(remark);
    parts_.reporter.start_table(start_table_rows({.config = parts_.config,
                                                  .workload = parts_.workload,
                                                  .group = g.group.options(),
                                                  .solo = g.group.is_solo(),
                                                  .batch = state_.counters.batch,
                                                  .precision = parts_.precision,
                                                  .threads = parts_.threads,
                                                  .phases = phases_,
                                                  .steps_per_epoch = state_.counters.epoch_steps,
                                                  .total_steps = g.steps.total,
                                                  .origin = start->origin,
                                                  .folder = parts_.folder,
                                                  .nccl_variables = parts_.nccl_variables}));
  }
  set_plan(g);
}

void Trainer::set_plan(const Generation& g) {
  parts_.reporter.set_plan({.total_steps = g.steps.total,
                            .num_epochs = num_epochs(g),
                            .flops_per_sample = parts_.workload.flops_per_sample()});
}

// The reducer and the step of the present phase.
void Trainer::begin_steps(Generation& g) {
  Counters& counters = state_.counters;
  const TrainingPhase& phase = phases_[static_cast<size_t>(counters.phase)];
  g.step.reset();
  g.reducer.reset();
  g.training = options_in(phase, parts_.config.training);
  g.steps = phase_steps(phases_, counters, g.training.max_steps, *g.source);
  state_.freeze(phase.frozen);
  g.reducer = std::make_unique<GradReducer>(state_.reduced(), g.group, [page = &parts_.page] {
    page->phase.store(Phase::kGradSync, std::memory_order_relaxed);
    page->changed_ns.store(monotonic_ns(), std::memory_order_relaxed);
  });
  g.step = std::make_unique<TrainStep>(TrainStep::Parts{.training = g.training,
                                                        .workload = parts_.workload,
                                                        .state = state_,
                                                        .group = g.group,
                                                        .reducer = *g.reducer,
                                                        .source = *g.source,
                                                        .queue = queue_,
                                                        .clock = parts_.clock,
                                                        .gate = gate_,
                                                        .stream = parts_.stream,
                                                        .faults = parts_.faults,
                                                        .device = parts_.device,
                                                        .precision = parts_.precision.precision,
                                                        .steps = g.steps,
                                                        .is_cut = g.stop.is_cut,
                                                        .before_change = [this] { before_change(); }});
}

// The workload makes what the phase needs, on all ranks at once. Returns what any rank was asked for meanwhile: when
// that ended it before its end, the phase is entered anew by whoever goes on.
StepRequests Trainer::enter_phase(Generation& g, int64_t phase) {
  if (parts_.workload.info().phases.empty()) return {};
  const PhaseScope scope(parts_.clock, Phase::kStartup);
  parts_.reporter.beat(state_.counters.step, Activity::kRestoring);
  JointWork work(g.group, g.stop, parts_.clock, "while a phase was entered");
  // Who went on with the state of before holds it already.
  if (entered_phase_ != phase) {
    entered_phase_ = -1;
    const torch::NoGradGuard no_grad;
    const Status entered = parts_.workload.enter_phase(phase, [&] { return work.goes_on(); });
    if (!entered.ok()) throw RunFault(ExitCode::kData, entered.error().message);
    if (work.goes_on()) entered_phase_ = phase;
  }
  const JointEnd end = work.end();
  parts_.reporter.beat(state_.counters.step, Activity::kTraining);
  return end.requests;
}

// The phase is over, on all ranks alike. Until the next one is entered nothing of the state has changed but by the
// evaluation: a group that breaks in between comes here again.
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
  set_plan(g);
  parts_.reporter.say("phase " + describe_phases({phases_[static_cast<size_t>(next)]}) + ", from step " +
                      std::to_string(counters.step + 1));
  return {};
}

Outcome Trainer::train(Generation& g, StepRequests asked) {
  Counters& counters = state_.counters;
  if (is_finished(g) && !g.sync.from_live_rank) {
    parts_.reporter.say("already at step " + std::to_string(counters.step) + " of " + std::to_string(g.steps.total) +
                        ": nothing to do; raise --num_epochs to go on");
    say_resumed(g);
    return {};
  }
  begin_steps(g);
  parts_.reporter.beat(counters.step, Activity::kTraining);
  // A stop or a fault came between this step and its evaluation, which decides on the steps that follow.
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
    const auto began = std::chrono::steady_clock::now();
    const StepOutcome stepped = g.step->run(g.stop.requests());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    counters.seconds_training += seconds;
    // From here on there is something to lose: a signal asks, it does not end.
    parts_.defer_stops();
    const double epoch = static_cast<double>(counters.place.epoch) +
                         static_cast<double>(counters.place.index) / static_cast<double>(counters.epoch_steps);
    parts_.reporter.on_step_done(
        {.step = counters.step, .epoch = epoch, .samples = stepped.samples, .seconds = seconds});
    say_resumed(g);
    asked = {.stop_code = stepped.stop_code, .leave_together = stepped.leave_together};
    take(stepped.reports);
    Outcome drift = check_drift(g);
    if (drift.code != ExitCode::kDone) return drift;
    if (!asked.any() && is_time_to_evaluate(g)) asked = evaluate(g);
    const int64_t every = parts_.config.training.checkpoint_every;
    // The last step's checkpoint is finish's: it holds what the last evaluation found.
    const bool due = every > 0 && counters.step % every == 0 && counters.step < g.steps.total && asked.stop_code == 0;
    if (due || has_unwritten_best()) checkpoint(g, has_unwritten_best());
    report_checkpoints();
    if (not_finite_) return *not_finite_;
  }
  if (asked.leave_together && asked.stop_code == 0 && counters.step < g.steps.total) return leave_together(g);
  return finish(g, asked.stop_code);
}

StopToken Trainer::stop_token(uint64_t generation) const {
  const AgentLink* const agent = parts_.agent;
  return {.is_cut = [=] { return agent != nullptr && agent->was_cut(generation); },
          .requests =
              [=, stop_code = parts_.stop_code] {
                const bool leaves = agent != nullptr && agent->leave_together(generation).has_value();
                return StepRequests{.stop_code = stop_code(), .leave_together = leaves};
              }};
}

// The group works: the agent's account of the recovery is complete.
void Trainer::say_resumed(Generation& g) {
  if (parts_.agent == nullptr || std::exchange(g.has_resumed, true)) return;
  parts_.agent->send(Resumed{.generation = g.formed.generation,
                             .step = state_.counters.step,
                             .assigned_ns = g.formed.assigned_ns,
                             .formed_ns = g.formed.formed_ns,
                             .synced_ns = g.synced_ns,
                             .committed_ns = parts_.page.committed_ns.load(),
                             .resumed_step = g.sync.resumed_step,
                             .origin = g.sync.origin});
}

// All ranks have committed the same step, on their devices too. Who leaves for good ends; when that is rank 0, what it
// holds is durable first.
Outcome Trainer::leave_together(Generation& g) {
  if (g.step) take(g.step->flush());
  {
    const PhaseScope scope(parts_.clock, Phase::kWaiting);
    wait_for_all_devices(g.group, parts_.stream);
  }
  const int leaving_code = parts_.agent->leave_together(g.formed.generation).value_or(0);
  if (leaving_code == 0) return {ExitCode::kDone, {}, kLeftRegroup};
  if (g.is_rank_zero() && writer_) {
    checkpoint(g, has_unwritten_best());
    make_durable(g.stop);
  }
  say_end(leaving_code);
  return {static_cast<ExitCode>(leaving_code), {}, {}};
}

// Figures of earlier steps have come: everything decided on them is decided alike on all ranks.
void Trainer::take(const std::vector<StepReport>& reports) {
  const int64_t limit = parts_.config.training.max_skipped_steps;
  for (const StepReport& report : reports) {
    state_.journal.add(report);
    parts_.reporter.on_report(report);
    if (state_.counters.skipped_in_row <= limit || not_finite_) continue;
    not_finite_ =
        Outcome{ExitCode::kNotFinite,
                "the gradient was not finite " + std::to_string(state_.counters.skipped_in_row) +
                    " times in a row, up to step " + std::to_string(report.step + 1) + " (--max_skipped_steps " +
                    std::to_string(limit) + "); lower --lr, set --clip_grad_norm, or look at the data",
                {}};
  }
}

Outcome Trainer::check_drift(Generation& g) {
  const int64_t every = parts_.config.training.drift_check_every;
  if (every == 0 || state_.counters.step % every != 0) return {};
  const std::vector<int> drifted = drifted_ranks(g.group, parts_.stream, state_.parameters());
  if (drifted.empty()) return {};
  std::string ranks;
  for (const int rank : drifted) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return {ExitCode::kCrash,
          "after step " + std::to_string(state_.counters.step) + " the parameters of rank " + ranks +
              " differ from rank 0's (--drift_check_every " + std::to_string(every) +
              "); the memory or the device of that rank is not to be trusted",
          {}};
}

// What --max_steps cuts short has fewer epochs.
int64_t Trainer::num_epochs(const Generation& g) const {
  DataPlace place = state_.counters.place;
  int64_t left = g.steps.total - state_.counters.step + place.index;
  for (; left > 0; ++place.epoch) left -= g.source->steps(place.epoch);
  return std::max<int64_t>(1, place.epoch);
}

bool Trainer::is_time_to_evaluate(const Generation& g) const {
  const int64_t every = parts_.config.training.eval_every;
  const Counters& counters = state_.counters;
  return every > 0 && counters.step > 0 && counters.place.index == 0 && counters.place.epoch % every == 0 &&
         counters.step < g.steps.total;
}

bool Trainer::is_finished(const Generation& g) const {
  return state_.counters.step >= g.steps.total && state_.counters.evaluated_step == state_.counters.step;
}

bool Trainer::is_out_of_patience() const {
  const int64_t patience = parts_.config.training.early_stop_patience;
  return patience > 0 && state_.counters.evaluations_without_best >= patience;
}

// Returns what any rank was asked for meanwhile. When that has ended the evaluation before its end, nothing has come of
// it: evaluated_step stays what it was, and whoever goes on from this step makes it again.
StepRequests Trainer::evaluate(Generation& g) {
  const PhaseScope scope(parts_.clock, Phase::kValidation);
  if (g.step) take(g.step->flush());
  Counters& counters = state_.counters;
  parts_.reporter.beat(counters.step, Activity::kEvaluating);
  parts_.faults.stall_here(Fault::kStallEvaluation);
  EvaluationOutcome outcome;
  EvaluationNote note{
      .step = counters.step, .completed_epochs = counters.place.epoch, .seconds_training = counters.seconds_training};
  {
    before_change();
    const std::optional<Ema::SwapIn> average = state_.swap_in_average();
    outcome = evaluate_on_all_ranks(parts_.workload, g.group,
                                    {.seed = parts_.config.training.seed,
                                     .samples_at_once = counters.batch.micro_batch_max,
                                     .device = parts_.device,
                                     .precision = parts_.precision.precision,
                                     .stop = g.stop,
                                     .clock = parts_.clock,
                                     .faults = parts_.faults});
    if (outcome.is_complete) {
      note.metrics = std::move(outcome.metrics);
      for (const MetricSum& sum : counters.training) note.metrics.emplace_back(sum.name, sum.sum / sum.count);
      note.lr = lr_value(counters.step - g.steps.begin, lr_schedule_in(g.training, counters, g.steps, *g.source),
                         plateau_with(counters, parts_.workload.info(), parts_.config.training, note.metrics));
      // On every rank: what is best so far belongs to the state.
      note.outputs = parts_.workload.outputs({.step = note.step,
                                              .epoch = note.completed_epochs,
                                              .seconds_training = note.seconds_training,
                                              .metrics = note.metrics});
      parts_.reporter.on_evaluation(note, parts_.workload, state_.optimizer_tensors());
    }
  }
  parts_.reporter.beat(counters.step, Activity::kTraining);
  if (!outcome.is_complete) {
    parts_.reporter.say("the evaluation of step " + std::to_string(counters.step) +
                        " is left before its end; it is made again when the run goes on");
    return outcome.requests;
  }
  counters.evaluated_step = counters.step;
  counters.training.clear();
  const std::optional<bool> is_best =
      count_evaluation(counters, parts_.workload.info(), parts_.config.training, note.metrics);
  state_.journal.improved = is_best.value_or(state_.journal.improved);
  state_.journal.evaluation = std::move(note);
  return outcome.requests;
}

// Ranks other than 0 do not know that it was written, and need not: it is past with the next step, in which rank 0
// takes part only when it has its copy. Until then one of them may become rank 0.
bool Trainer::has_unwritten_best() const {
  return state_.journal.improved && state_.counters.evaluated_step == state_.counters.step;
}

void Trainer::checkpoint(Generation& g, bool is_best) {
  // Skip counters and loss scale follow from figures that may still be on their way.
  if (g.step) take(g.step->flush());
  if (outputs_missing_ && !try_outputs_again(g)) return;
  stage_checkpoint(is_best, g.stop);
}

CheckpointContent Trainer::checkpoint_tensors() {
  CheckpointContent content;
  content.model = state_.model_tensors();
  content.optimizer = state_.optimizer_tensors();
  for (const auto& [name, ema] : state_.emas()) content.ema.emplace_back(name, ema.state());
  return content;
}

// A checkpoint's copy may still be under way on its own stream of the device.
void Trainer::before_change() {
  if (writer_) writer_->before_change();
}

// Rank 0 takes the copy.
void Trainer::stage_checkpoint(bool is_best, const StopToken& stop) {
  if (!writer_) return;
  const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
  const auto began = std::chrono::steady_clock::now();
  wait_for_writer(stop);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  state_.journal.improved = false;
  checkpointed_step_ = state_.counters.step;
  if (is_best) best_staged_at_ = state_.counters.step;
  CheckpointContent content = checkpoint_tensors();
  CheckpointState& s = content.state;
  s.job = parts_.job.name;
  s.job_uid = parts_.job.uid;
  s.run = state_.counters.run;
  s.lineage = state_.counters.lineage;
  s.generation = number_;
  s.step = state_.counters.step;
  s.global_batch = state_.counters.batch.global_batch;
  s.seed = parts_.config.training.seed;
  s.config = parts_.config.maths_flags();
  s.config_hash = parts_.config.config_hash();
  s.world_size = world_size_;
  s.threads = parts_.threads;
  s.deterministic = parts_.config.training.deterministic;
  s.workload = parts_.workload.info().name;
  s.workload_version = parts_.workload.info().version;
  s.build = build_version();
  s.unix_time = std::time(nullptr);
  s.is_best = is_best;
  s.progress = {{"counters", to_json(state_.counters)}, {"workload", parts_.workload.progress_state()}};
  for (const FrozenTensors& frozen : parts_.workload.frozen()) s.progress["frozen"][frozen.name] = frozen.sha256;
  const StageCost cost = writer_->stage(content);
  stage_seconds_ = waited.count() + cost.stall_seconds + cost.copy_seconds;
}

// Until nothing is being written. A cut of the group ends the wait, not the write; a stop does not: it is what the last
// checkpoint is written for. (A second Ctrl-C, and the agent's patience, end that, too.)
void Trainer::wait_for_writer(const StopToken& stop) {
  if (!writer_->wait_durable(stop.is_cut)) leave_group("the group was cut while a checkpoint was being written");
}

void Trainer::report_checkpoints() {
  if (!writer_) return;
  for (const WriteReport& report : writer_->poll_reports()) {
    parts_.reporter.on_checkpoint(report, stage_seconds_);
    write_problem_ = report.error ? report.error->message : std::string();
  }
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
  if (checkpointed_step_ != counters.step || has_evaluated || best) checkpoint(g, best);
  make_durable(g.stop);
  double failed_writes = 0.0;
  {
    // Nobody leaves before rank 0's checkpoint is durable: a launcher ends the others when the first one is gone, and
    // a run whose end is not on the disk is not done for anybody.
    const PhaseScope scope(parts_.clock, Phase::kWaiting);
    wait_for_device(g.group, parts_.stream);  // the sum is the barrier after which the group may be dropped
    const double mine = write_problem_.empty() ? 0.0 : 1.0;
    failed_writes = sum_over_ranks(g.group, {&mine, 1})[0];
  }
  say_resumed(g);
  say_end(stop_code);
  if (failed_writes > 0.0) {
    const std::string why = write_problem_.empty() ? "rank 0 could not write it" : write_problem_;
    return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + why, {}};
  }
  return {static_cast<ExitCode>(stop_code), {}, {}};
}

void Trainer::say_end(int stop_code) {
  std::string how = stop_code == 0 ? (is_out_of_patience() ? "stopped early" : "done") : stop_words(stop_code);
  if (!write_problem_.empty()) how += ", but the last checkpoint could not be written,";
  const DecidingFigure& best = parts_.workload.info().best;
  const double score = state_.counters.best_metric;
  parts_.reporter.end_summary({.how = how,
                               .step = state_.counters.step,
                               .best_metric = best.name,
                               .best_value = best.direction == Direction::kHigher ? score : -score,
                               .skipped_steps = state_.counters.skipped_total,
                               .resume_command = parts_.resume_command});
}

Outcome Trainer::stop_between_groups(int stop_code) {
  if (writer_ && state_.counters.has_state && checkpointed_step_ != state_.counters.step) {
    stage_checkpoint(has_unwritten_best(), StopToken{});
  }
  make_durable(StopToken{});
  say_end(stop_code);
  if (!write_problem_.empty()) {
    return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + write_problem_, {}};
  }
  return {static_cast<ExitCode>(stop_code), {}, {}};
}

void Trainer::wait_for_writes() {
  if (writer_) writer_->wait_durable();
}

// Rank 0 waits for its disk; a write that failed at this very step is tried once more.
void Trainer::make_durable(const StopToken& stop) {
  if (!writer_) return;
  const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
  parts_.reporter.beat(state_.counters.step, Activity::kCheckpointing);
  wait_for_writer(stop);
  report_checkpoints();
  if (write_problem_.empty()) return;
  stage_checkpoint(/*is_best=*/best_staged_at_ == state_.counters.step, stop);
  wait_for_writer(stop);
  report_checkpoints();
}

}  // namespace lockstep
