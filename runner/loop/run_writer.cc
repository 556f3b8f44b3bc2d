#include "runner/loop/run_writer.h"

#include <chrono>
#include <ctime>
#include <utility>
#include <variant>

#include "runner/base/build_info.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/loop/run_folder.h"

namespace lockstep {

using Writes = CheckpointWriter::Writes;

RunWriter::RunWriter(const TrainerContext& context, TrainingState& state)
    : context_(context), rank_(context.rank), state_(state) {}
RunWriter::~RunWriter() = default;

RunIdentity RunWriter::identity() const {
  const WorkloadInfo& info = rank_.workload.info();
  return {.job = context_.job,
          .config_hash = rank_.config.config_hash(),
          .workload = info.name,
          .workload_version = info.version};
}

void RunWriter::begin_generation(uint64_t generation, int world_size, bool from_live_rank) {
  generation_ = generation;
  world_size_ = world_size;
  from_live_rank_ = from_live_rank;
  if (!from_live_rank) checkpointed_step_ = state_.counters.step;
}

Status RunWriter::open() {
  Status opened = lock_folder();
  if (!opened.ok()) return opened;
  opened = open_folder();
  lacks_folder_ = !opened.ok();
  if (opened.ok() || !from_live_rank_) return opened;
  problem_ = opened.error().message;
  context_.reporter.warn(
      "the output folder cannot be used now: " + problem_ +
      "; training continues, and the folder is tried again at each checkpoint" +
      (opened.error().code == ErrorCode::kConflict ? "" : ". Free space in it, or repair the volume"));
  return {};
}

// Does nothing while the folder cannot be made: open_folder then returns the error, with what to do.
Status RunWriter::lock_folder() {
  if (lock_ || !context_.locks_folder || !make_directories(rank_.fs, context_.folder).ok()) return {};
  TRY_ASSIGN(FileLock taken, FileLock::take(join_path(context_.folder, ".lock")));
  lock_.emplace(std::move(taken));
  return {};
}

// Checks that the folder can be written, and opens the run's files. A rank 0 that keeps its state through a recovery
// has done so already, and its writes of the group before go on.
Status RunWriter::open_folder() {
  const PhaseScope scope(rank_.clock, Phase::kCheckpointStall);
  const TrainingOptions& training = rank_.config.training;
  if (!writer_) {
    writer_ = std::make_unique<CheckpointWriter>(
        rank_.fs, CheckpointWriterOptions{.folder = context_.folder,
                                          .run = identity(),
                                          .retention = {.keep_last = training.keep_last,
                                                        .keep_every = training.keep_every,
                                                        .keep_best = training.keep_best},
                                          .device = rank_.device,
                                          .on_progress = [&clock = rank_.clock] { clock.progress(); }});
    writer_->make_buffers(checkpoint_tensors());
  }
  report();
  if (opened_at_step_ < 0) TRY(prepare_checkpoint_folder(rank_.fs, context_.folder, stamp()));
  if (opened_at_step_ >= 0 && state_.counters.step >= opened_at_step_) return {};
  // Opening replaces the files, and an old rank 0 that was cut off must not do that to its successor's.
  TRY(check_none_is_newer(rank_.fs, context_.folder, identity(), stamp()));
  TRY_ASSIGN(RunFolder folder, RunFolder::open(rank_.fs, rank_.config, rank_.workload,
                                               {.path = context_.folder,
                                                .host_name = context_.host_name,
                                                .stamp = stamp(),
                                                .resume_step = state_.counters.step,
                                                .resume_epochs = state_.counters.position.epoch}));
  opened_at_step_ = state_.counters.step;
  context_.reporter.use_folder(std::move(folder));
  return {};
}

// True when the folder can be used; if it could not before, tries it again.
bool RunWriter::has_folder(const StopToken& stop) {
  if (!lacks_folder_) return true;
  Status opened = lock_folder();
  if (opened.ok()) opened = open_folder();
  if (!opened.ok()) {
    problem_ = opened.error().message;
    context_.reporter.warn("the output folder still cannot be used: " + problem_);
    return false;
  }
  lacks_folder_ = false;
  write_what_was_missed(stop);
  return true;
}

void RunWriter::close(const StopToken& stop) {
  if (writer_) {
    const PhaseScope scope(rank_.clock, Phase::kCheckpointStall);
    wait_for(stop);
    report();
  }
  writer_.reset();
  lock_.reset();
  lacks_folder_ = false;
  problem_.clear();
  opened_at_step_ = -1;
  unstaged_.reset();
  context_.reporter.leave_folder();
}

void RunWriter::write_what_was_missed(const StopToken& stop) {
  if (!writer_) return;
  // In the order in which they were made; a report counts its step from 0.
  const std::optional<EvaluationNote> note = state_.journal.evaluation;
  const auto steps = state_.journal.steps;
  const auto report_steps = [&](bool after_evaluation) {
    for (const StepReport& report : steps) {
      const bool is_after = !note || report.step >= note->report.step;
      if (is_after == after_evaluation) context_.reporter.on_report(report);
    }
  };
  report_steps(/*after_evaluation=*/false);
  if (note && context_.reporter.misses_evaluation(note->report.step)) {
    context_.reporter.on_evaluation(note->report, rank_.workload);
  }
  report_steps(/*after_evaluation=*/true);
  if (!note) return;
  // The rank 0 before this one may have died before its files were durable. They can be made again only while the
  // parameters are those that were evaluated, that is, until the next step.
  if (note->report.step != state_.counters.step || outputs_step_ == note->report.step) return;
  Unstaged left{.note = *note, .parts = {}};
  if (unstaged_ && unstaged_->note.report.step == note->report.step) left = *unstaged_;
  before_change();
  const std::optional<Ema::SwapIn> average = state_.swap_in_average();
  stage_outputs(left.note, std::move(left.parts), stop);
}

// Stages one file at a time, because each may be as large as the state. If the group is cut meanwhile,
// write_what_was_missed does it again in the next group; the parts are kept for this, because nobody can make them
// again.
void RunWriter::stage_outputs(const EvaluationNote& note, std::map<std::string, std::string> parts,
                              const StopToken& stop) {
  if (!writer_) return;
  unstaged_ = Unstaged{.note = note, .parts = parts};
  if (lacks_folder_) return;
  const PhaseScope scope(rank_.clock, Phase::kCheckpointStall);
  const Workload::OutputState state{.step = note.report.step,
                                    .epoch = note.report.epoch,
                                    .metrics = note.report.metrics,
                                    .lr = note.lr,
                                    .model = state_.model_tensors(),
                                    .optimizer = state_.optimizer_tensors(),
                                    .parts = std::move(parts)};
  for (const std::string& name : note.outputs) {
    wait_for(stop, Writes::kOutput);
    OutputContent content = rank_.workload.output(name, state);
    const auto* const text = std::get_if<std::string>(&content);
    if (text == nullptr || !text->empty()) writer_->stage_output(name, std::move(content), stamp());
  }
  outputs_step_ = note.report.step;
  unstaged_.reset();
}

CheckpointContent RunWriter::checkpoint_tensors() const {
  CheckpointContent content;
  content.model = state_.model_tensors();
  content.optimizer = state_.optimizer_tensors();
  for (auto& [name, ema] : state_.emas()) content.ema.emplace_back(name, ema.state());
  return content;
}

CheckpointState RunWriter::checkpoint_state(bool is_best) const {
  CheckpointState s;
  s.job = context_.job.name;
  s.job_uid = context_.job.uid;
  s.run = state_.counters.run;
  s.lineage = state_.counters.lineage;
  s.generation = generation_;
  s.step = state_.counters.step;
  s.global_batch = state_.counters.batch.global_batch;
  s.seed = rank_.config.training.seed;
  s.config = rank_.config.maths_flags();
  s.config_hash = rank_.config.config_hash();
  s.world_size = world_size_;
  s.threads = context_.threads;
  s.deterministic = rank_.config.training.deterministic;
  s.workload = rank_.workload.info().name;
  s.workload_version = rank_.workload.info().version;
  s.build = build_version();
  s.unix_time = std::time(nullptr);
  s.is_best = is_best;
  s.progress = {{"counters", to_json(state_.counters)}, {"workload", rank_.workload.progress_state()}};
  for (const FrozenInput& frozen : rank_.workload.frozen()) s.progress["frozen"][frozen.name] = frozen.sha256;
  return s;
}

void RunWriter::stage_checkpoint(bool is_best, const StopToken& stop) {
  if (writer_ && has_folder(stop)) write_state(is_best, stop);
}

void RunWriter::write_state(bool is_best, const StopToken& stop) {
  const PhaseScope scope(rank_.clock, Phase::kCheckpointStall);
  const auto began = std::chrono::steady_clock::now();
  wait_for(stop, Writes::kCheckpoint);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  state_.journal.improved = false;
  checkpointed_step_ = state_.counters.step;
  if (is_best) best_step_ = state_.counters.step;
  CheckpointContent content = checkpoint_tensors();
  content.state = checkpoint_state(is_best);
  const StageCost cost = writer_->stage(content);
  stage_seconds_ = waited.count() + cost.stall_seconds + cost.copy_seconds;
}

void RunWriter::before_change() {
  if (writer_) writer_->before_change();
}

// A cut of the group ends the wait, and the write goes on. A stop does not end the wait, because a stopping run has to
// write its last checkpoint. (A second Ctrl-C ends the process.)
void RunWriter::wait_for(const StopToken& stop, Writes writes) {
  if (!writer_->wait_durable(stop.is_cut, writes)) leave_group("the group was cut while rank 0 was writing");
}

void RunWriter::report() {
  if (!writer_) return;
  for (const OutputReport& output : writer_->poll_output_reports()) context_.reporter.on_output(output);
  for (const WriteReport& checkpoint : writer_->poll_reports()) {
    context_.reporter.on_checkpoint(checkpoint, stage_seconds_);
    problem_ = checkpoint.error ? checkpoint.error->message : std::string();
  }
}

void RunWriter::make_durable(const StopToken& stop) {
  if (!writer_) return;
  const PhaseScope scope(rank_.clock, Phase::kCheckpointStall);
  context_.reporter.beat(state_.counters.step, Activity::kCheckpointing);
  wait_for(stop);
  report();
  if (problem_.empty()) return;
  write_state(/*is_best=*/best_step_ == state_.counters.step, stop);
  wait_for(stop);
  report();
}

void RunWriter::wait(std::chrono::seconds patience) {
  if (!writer_) return;
  auto until = std::chrono::steady_clock::now() + patience;
  int64_t seen_ns = context_.page.changed_ns.load();
  writer_->wait_durable([&] {
    const int64_t changed_ns = context_.page.changed_ns.load();  // by CheckpointWriterOptions::on_progress
    if (std::exchange(seen_ns, changed_ns) != changed_ns) until = std::chrono::steady_clock::now() + patience;
    return std::chrono::steady_clock::now() >= until;
  });
}

}  // namespace lockstep
