#include "runner/loop/trainer.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <utility>

#include "runner/base/build_info.h"
#include "runner/checkpoint/writer.h"
#include "runner/data/sampler.h"
#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/rendezvous.h"
#include "runner/dist/state_transfer.h"
#include "runner/loop/evaluator.h"
#include "runner/loop/start_table.h"
#include "runner/loop/train_step.h"

namespace lockstep {
namespace {

bool is_stop(int code) {
  return code == static_cast<int>(ExitCode::kTerminated) || code == static_cast<int>(ExitCode::kInterrupted);
}

Outcome usage(const Error& error) { return {ExitCode::kUsage, error.message}; }

}  // namespace

struct Trainer::Generation {
  ProcessGroup& group;
  const StoreHandle& store;
  uint64_t number;
  BatchShape first_batch;
  SyncResult sync;
  std::unique_ptr<Sampler> sampler;
  int64_t steps_per_epoch = 1;
  int64_t total_steps = 0;
  std::unique_ptr<GradReducer> reducer;
  std::unique_ptr<TrainStep> step;

  [[nodiscard]] bool is_rank_zero() const { return group.rank() == 0; }
};

Trainer::Trainer(const Parts& parts) : parts_(parts), state_(parts.workload, parts.config.training) {}

Trainer::~Trainer() = default;

Outcome Trainer::run_generation(ProcessGroup& group, const StoreHandle& store, uint64_t generation) {
  try {
    return run_generation_or_throw(group, store, generation);
  } catch (const std::exception& e) {  // the edge where torch's, c10d's and gloo's exceptions end
    const Failure fault = classify_fault(e);
    return {fault.code, "at step " + std::to_string(state_.counters.step + 1) + ": " + fault.message};
  }
}

Outcome Trainer::run_generation_or_throw(ProcessGroup& group, const StoreHandle& store, uint64_t generation) {
  Generation now{.group = group,
                 .store = store,
                 .number = generation,
                 .first_batch = {},
                 .sync = {},
                 .sampler = nullptr,
                 .reducer = nullptr,
                 .step = nullptr};
  Outcome outcome = prepare(now);
  if (outcome.code != ExitCode::kDone) return outcome;
  if (parts_.config.training.inference_only) {
    evaluate(now);
    return {};
  }
  return train(now);
}

// Everything up to the first step.
Outcome Trainer::prepare(Generation& g) {
  const TrainingOptions& training = parts_.config.training;
  parts_.clock.enter(Phase::kStartup);
  parts_.reporter.beat(state_.counters.step, "restoring");
  Result<BatchShape> shape = batch_shape(training, g.group.world_size());
  if (!shape.ok()) return usage(shape.error());
  g.first_batch = *shape;

  const SyncOptions options{.folder = parts_.folder,
                            .identity = {.job_uid = parts_.job_uid,
                                         .config_hash = parts_.config.config_hash(),
                                         .workload = parts_.workload.name()},
                            .generation = g.number,
                            .first_batch = g.first_batch};
  SyncOutcome synced = sync_state(parts_.config, parts_.workload, state_, g.group, g.store, parts_.fs, options);
  if (synced.failure) return {synced.failure->code, synced.failure->message};
  g.sync = std::move(synced.result);
  g.number = g.sync.generation;

  const BatchPlan plan{.seed = training.seed,
                       .num_samples = parts_.workload.num_samples(),
                       .global_batch = state_.counters.batch.global_batch,
                       .last_batch = parts_.workload.last_batch()};
  if (const Status status = plan.check(); !status.ok()) return usage(status.error());
  g.sampler = std::make_unique<Sampler>(plan);
  g.steps_per_epoch = plan.batches_per_epoch();
  g.total_steps = training.num_epochs * g.steps_per_epoch;
  if (training.max_steps > 0) g.total_steps = std::min(g.total_steps, training.max_steps);

  if (g.is_rank_zero() && !training.inference_only && !is_finished(g)) {
    const Status opened = open_outputs(g);
    if (!opened.ok()) {
      const bool ours_to_mend = opened.error().code == ErrorCode::kConflict;
      return {ours_to_mend ? ExitCode::kUsage : ExitCode::kCheckpoint, opened.error().message};
    }
  }
  checkpointed_step_ = state_.counters.step;
  announce(g);
  return {};
}

// Rank 0: the folder is locked and proved writable, checkpoints and files are opened.
Status Trainer::open_outputs(Generation& g) {
  const TrainingOptions& training = parts_.config.training;
  writer_ = std::make_unique<CheckpointWriter>(parts_.fs,
                                               CheckpointWriterOptions{.folder = parts_.folder,
                                                                       .retention = {.keep_last = training.keep_last,
                                                                                     .keep_every = training.keep_every,
                                                                                     .keep_best = training.keep_best}});
  TRY(make_directories(parts_.fs, parts_.folder));
  if (!lock_) {
    TRY_ASSIGN(FileLock taken, FileLock::take(join_path(parts_.folder, ".lock")));
    lock_.emplace(std::move(taken));
  }
  TRY(writer_->prepare(g.number));
  TRY_ASSIGN(RunFolder folder, RunFolder::open(parts_.fs, parts_.config, parts_.workload,
                                               {.path = parts_.folder,
                                                .host_name = parts_.host_name,
                                                .resume_step = state_.counters.step,
                                                .resume_epochs = state_.counters.step / g.steps_per_epoch}));
  parts_.reporter.use_folder(std::move(folder));
  return {};
}

void Trainer::announce(const Generation& g) {
  for (const std::string& remark : g.sync.remarks) parts_.reporter.warn(remark);
  parts_.reporter.start_table(start_table_rows({.config = parts_.config,
                                                .workload = parts_.workload,
                                                .group = g.group.options(),
                                                .solo = g.group.is_solo(),
                                                .batch = state_.counters.batch,
                                                .precision = parts_.precision,
                                                .threads = parts_.threads,
                                                .steps_per_epoch = g.steps_per_epoch,
                                                .total_steps = g.total_steps,
                                                .origin = g.sync.origin,
                                                .folder = parts_.folder,
                                                .nccl_variables = parts_.nccl_variables}));
  parts_.reporter.set_plan({.total_steps = g.total_steps,
                            .steps_per_epoch = g.steps_per_epoch,
                            .flops_per_sample = parts_.workload.flops_per_sample()});
}

Outcome Trainer::train(Generation& g) {
  Counters& counters = state_.counters;
  if (is_finished(g)) {
    parts_.reporter.say("already at step " + std::to_string(counters.step) + " of " + std::to_string(g.total_steps) +
                        ": nothing to do; raise --num_epochs to go on");
    return {};
  }
  g.reducer = std::make_unique<GradReducer>(state_.parameters(), g.group);
  g.step = std::make_unique<TrainStep>(TrainStep::Parts{.config = parts_.config,
                                                        .workload = parts_.workload,
                                                        .state = state_,
                                                        .group = g.group,
                                                        .reducer = *g.reducer,
                                                        .sampler = *g.sampler,
                                                        .clock = parts_.clock,
                                                        .device = parts_.device,
                                                        .precision = parts_.precision.precision,
                                                        .total_steps = g.total_steps});
  // A stop came between this step and its evaluation, which decides on the steps that follow.
  int stop_code = counters.evaluated_step != counters.step && is_time_to_evaluate(g) ? evaluate(g) : 0;
  if (improved_) checkpoint(g, std::exchange(improved_, false));
  while (counters.step < g.total_steps && stop_code == 0 && !is_out_of_patience()) {
    const auto began = std::chrono::steady_clock::now();
    const StepOutcome stepped = g.step->run(parts_.signals.requested());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    counters.seconds_training += seconds;
    // From here on there is something to lose: a signal asks, it does not end.
    parts_.signals.ask_from_now_on();
    parts_.reporter.on_step_done(counters.step, stepped.samples, seconds);
    stop_code = stepped.stop_code;
    take(stepped.reports);
    Outcome drift = check_drift(g);
    if (drift.code != ExitCode::kDone) return drift;
    if (stop_code == 0 && is_time_to_evaluate(g)) stop_code = evaluate(g);
    const int64_t every = parts_.config.training.checkpoint_every;
    // The last step's checkpoint is finish's: it holds what the last evaluation found.
    const bool due = every > 0 && counters.step % every == 0 && counters.step < g.total_steps && stop_code == 0;
    if (due || improved_) checkpoint(g, std::exchange(improved_, false));
    report_checkpoints();
    if (not_finite_) return *not_finite_;
  }
  return finish(g, stop_code);
}

// Figures of earlier steps have come: everything decided on them is decided alike on all ranks.
void Trainer::take(const std::vector<StepReport>& reports) {
  const int64_t limit = parts_.config.training.max_skipped_steps;
  for (const StepReport& report : reports) {
    parts_.reporter.on_report(report);
    if (state_.counters.skipped_in_row <= limit || not_finite_) continue;
    not_finite_ =
        Outcome{ExitCode::kNotFinite,
                "the gradient was not finite in " + std::to_string(state_.counters.skipped_in_row) +
                    " steps in a row, up to step " + std::to_string(report.step + 1) + " (--max_skipped_steps " +
                    std::to_string(limit) + "); lower --lr, set --clip_grad_norm, or look at the data"};
  }
}

Outcome Trainer::check_drift(Generation& g) {
  const int64_t every = parts_.config.training.drift_check_every;
  if (every == 0 || state_.counters.step % every != 0) return {};
  const std::vector<int> drifted = drifted_ranks(g.group, state_.parameters());
  if (drifted.empty()) return {};
  std::string ranks;
  for (const int rank : drifted) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return {ExitCode::kCrash, "after step " + std::to_string(state_.counters.step) + " the parameters of rank " + ranks +
                                " differ from rank 0's (--drift_check_every " + std::to_string(every) +
                                "); the memory or the device of that rank is not to be trusted"};
}

bool Trainer::is_time_to_evaluate(const Generation& g) const {
  const int64_t every = parts_.config.training.eval_every;
  const int64_t step = state_.counters.step;
  return every > 0 && step > 0 && step % (every * g.steps_per_epoch) == 0 && step < g.total_steps;
}

bool Trainer::is_finished(const Generation& g) const {
  return state_.counters.step >= g.total_steps && state_.counters.evaluated_step == state_.counters.step;
}

bool Trainer::is_out_of_patience() const {
  const int64_t patience = parts_.config.training.early_stop_patience;
  return patience > 0 && state_.counters.evaluations_without_best >= patience;
}

// Returns the stop that came meanwhile, or 0.
int Trainer::evaluate(Generation& g) {
  const PhaseScope scope(parts_.clock, Phase::kValidation);
  if (g.step) take(g.step->flush());
  Counters& counters = state_.counters;
  parts_.reporter.beat(counters.step, "evaluating");
  EvaluationFigures figures;
  {
    std::optional<Ema::SwapIn> averages;
    if (Ema* ema = state_.ema()) averages.emplace(*ema);
    figures = evaluate_on_all_ranks(parts_.workload, g.group, parts_.config.training.seed, parts_.signals);
    parts_.reporter.on_evaluation(counters.step, counters.step / g.steps_per_epoch, counters.seconds_training,
                                  figures.metrics, parts_.workload);
  }
  counters.evaluated_step = counters.step;
  for (const auto& [name, value] : figures.metrics) {
    if (name != parts_.workload.best_metric()) continue;
    improved_ = value > counters.best_metric;
    counters.evaluations_without_best = improved_ ? 0 : counters.evaluations_without_best + 1;
    counters.best_metric = std::max(counters.best_metric, value);
    counters.plateau = plateau_after(counters.plateau, value, plateau_options(parts_.config.training));
  }
  return figures.stop_code;
}

void Trainer::checkpoint(Generation& g, bool is_best) {
  const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
  // Skip counters and loss scale follow from figures that may still be on their way.
  take(g.step->flush());
  checkpointed_step_ = state_.counters.step;
  if (!writer_) return;
  CheckpointContent content;
  CheckpointState& s = content.state;
  s.job_uid = parts_.job_uid;
  s.lineage = state_.counters.lineage;
  s.generation = g.number;
  s.step = state_.counters.step;
  s.global_batch = state_.counters.batch.global_batch;
  s.seed = parts_.config.training.seed;
  s.config = parts_.config.maths_flags();
  s.config_hash = parts_.config.config_hash();
  s.world_size = g.group.world_size();
  s.threads = parts_.threads;
  s.deterministic = parts_.config.training.deterministic;
  s.workload = parts_.workload.name();
  s.workload_version = parts_.workload.version();
  s.build = build_version();
  s.unix_time = std::time(nullptr);
  s.is_best = is_best;
  s.progress = {{"counters", to_json(state_.counters)}, {"workload", parts_.workload.progress_state()}};
  content.model = state_.model_tensors();
  content.optimizer = state_.optimizer_tensors();
  if (state_.ema() != nullptr) content.ema = {{"", state_.ema_tensors()}};
  const StageCost cost = writer_->stage(content);
  stage_seconds_ = cost.stall_seconds + cost.copy_seconds;
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
  if (unevaluated) evaluate(g);
  if (not_finite_) return *not_finite_;
  if (checkpointed_step_ != counters.step || unevaluated || improved_) checkpoint(g, std::exchange(improved_, false));
  make_durable(g);
  {
    // Nobody leaves before rank 0's checkpoint is durable: a launcher ends the others when the first one is gone.
    const PhaseScope scope(parts_.clock, Phase::kWaiting);
    barrier(g.group);
  }
  std::string how = stop_code == 0 ? (is_out_of_patience() ? "stopped early" : "done")
                                   : (stop_code == static_cast<int>(ExitCode::kTerminated) ? "stopped by SIGTERM"
                                                                                           : "stopped by Ctrl-C");
  if (!write_problem_.empty()) how += ", but the last checkpoint could not be written,";
  parts_.reporter.end_summary({.how = how,
                               .step = counters.step,
                               .best_metric = parts_.workload.best_metric(),
                               .best_value = counters.best_metric,
                               .skipped_steps = counters.skipped_total,
                               .resume_command = parts_.resume_command});
  if (!write_problem_.empty()) return {ExitCode::kCheckpoint, "the last checkpoint is missing: " + write_problem_};
  return {static_cast<ExitCode>(stop_code), {}};
}

// Rank 0 waits for its disk; a write that failed at this very step is tried once more.
void Trainer::make_durable(Generation& g) {
  if (!writer_) return;
  const PhaseScope scope(parts_.clock, Phase::kCheckpointStall);
  parts_.reporter.beat(state_.counters.step, "checkpointing");
  writer_->wait_durable();
  report_checkpoints();
  if (write_problem_.empty()) return;
  checkpoint(g, /*is_best=*/false);
  writer_->wait_durable();
  report_checkpoints();
}

}  // namespace lockstep
