#include "runner/loop/state_sync.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "runner/base/forwarding_file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/contract/agreement.h"
#include "runner/contract/generation.h"
#include "runner/dist/rendezvous.h"
#include "runner/dist/state_transfer.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/loop/phases.h"
#include "runner/models/adam_state_dict.h"

namespace lockstep {
namespace {

Failure failure_of(const Error& error) {
  // The operator searches the message for this word.
  const std::string word = error.reason == kConfigurationChanged ? error.reason + ": " : "";
  return {exit_code_of_file_error(error), word + error.message};
}

Result<std::unique_ptr<BatchSource>> training_batches(const SyncContext& context, const BatchShape& batch) {
  return context.rank.workload.batches(
      {.split = Split::kTrain, .seed = context.rank.config.training.seed, .global_batch = batch.global_batch});
}

Json document_of(const Failure& failure) {
  return {{"failure", failure.message}, {"code", static_cast<int>(failure.code)}};
}

// What the source rank sends beside the tensors: its state or, if that cannot be sent, why.
Json describe_state(const TrainingState& state, const Workload& workload, const SyncResult& result) {
  Json progress = workload.progress_state();
  const size_t bytes = dump_line(progress).size();
  if (bytes > kProgressStateBytesMax) {
    return document_of(Failure{ExitCode::kUsage, "workload " + workload.info().name + ": progress_state() returns " +
                                                     std::to_string(bytes) + " bytes of JSON, and at most " +
                                                     std::to_string(kProgressStateBytesMax) +
                                                     " can be sent to other ranks; keep arrays as buffers"});
  }
  return Json{{"counters", to_json(state.counters)},
              {"journal", to_json(state.journal)},
              {"workload", std::move(progress)},
              {"origin", result.origin},
              {"generation", result.generation}};
}

// The other side of it: the failure, if that is what was sent.
std::optional<Failure> failure_in(const Json& document) {
  if (!document.contains("failure")) return std::nullopt;
  return Failure{static_cast<ExitCode>(document.at("code").get<int>()), document.at("failure").get<std::string>()};
}

// Parsed before the tensors come and applied after them, so that a rank whose group breaks in between has changed
// nothing. (transfer_state changes tensors only after its last wait for a peer.)
struct Description {
  Counters counters;
  Journal journal;
  Json workload;
};

Result<Description> parse_description(const Json& document) {
  Description d;
  try {
    TRY_ASSIGN(d.counters, counters_from_json(document.at("counters")));
    TRY_ASSIGN(d.journal, journal_from_json(document.at("journal")));
    d.workload = document.at("workload");
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("the source's description of its state: ") + e.what()};
  }
  return d;
}

Status adopt_description(Description description, TrainingState& state, Workload& workload) {
  state.counters = std::move(description.counters);
  state.journal = std::move(description.journal);
  return workload.restore_progress(description.workload);
}

// Keeps the checkpoint's position in the data. Where the batch (of another run's checkpoint, given with --resume) or
// the data set has another size now, the number of steps changes: the run goes on in the same epoch, at the same
// fraction of its steps, rounded down, so that a few samples may be seen again and none is left out.
Status keep_position(Counters& counters, const BatchShape& batch, const SyncContext& context, SyncResult& result) {
  counters.batch = batch;
  TRY_ASSIGN(const std::unique_ptr<BatchSource> source, training_batches(context, batch));
  const int64_t steps_then = counters.epoch_steps;
  const int64_t steps_now = source->steps(counters.position.epoch);
  if (steps_now == steps_then) return {};
  counters.position.index = std::min(counters.position.index * steps_now / steps_then, steps_now - 1);
  counters.epoch_steps = steps_now;
  const int64_t step = steps_before(counters.position.epoch, *source) + counters.position.index;
  if (step == counters.step) return {};
  result.remarks.push_back("step " + std::to_string(counters.step) + " of the checkpoint, with " +
                           std::to_string(steps_then) + " steps an epoch, is step " + std::to_string(step) +
                           " now, with " + std::to_string(steps_now));
  counters.evaluated_step = counters.evaluated_step == counters.step ? step : -1;
  counters.step = step;
  return {};
}

Status copy_checkpoint(const LoadedCheckpoint& loaded, const SyncContext& context, const SyncOptions& options,
                       SyncResult& result) {
  TrainingState& state = context.state;
  TRY(check_frozen(loaded.state.progress, context.rank.workload, loaded.path));
  TRY(copy_tensors(loaded.model, state.model_tensors(), "the model of " + loaded.path));
  TRY(copy_tensors(loaded.optimizer, state.optimizer_tensors(), "the optimizer of " + loaded.path));
  for (auto& [name, ema] : state.emas()) {
    const auto saved =
        std::find_if(loaded.ema.begin(), loaded.ema.end(), [&](const auto& entry) { return entry.first == name; });
    if (saved == loaded.ema.end()) {
      ema.reset();
    } else {
      TRY(copy_tensors(saved->second, ema.state(), "the EMA " + name + " of " + loaded.path));
    }
  }
  TRY_ASSIGN(state.counters, counters_from_json(loaded.state.progress.at("counters")));
  TRY(check_phase(phases_of(context.rank.workload.info(), context.rank.config.training), state.counters, loaded.path));
  BatchShape batch = state.counters.batch;
  if (loaded.state.config_hash != options.identity.config_hash) {
    TRY(options.first_batch);
    batch = *options.first_batch;
  }
  TRY(keep_position(state.counters, batch, context, result));
  const Status restored = context.rank.workload.restore_progress(loaded.state.progress.at("workload"));
  if (!restored.ok()) return restored.error().with_context(loaded.path);
  return {};
}

// Adds the flags that differ from those of the newest checkpoint in the folder.
Error with_differences(const RunConfig& config, FileSystem& fs, const std::string& folder, Error error) {
  const Result<std::vector<CheckpointEntry>> found = list_checkpoints(fs, folder);
  if (!found.ok()) return error;
  const auto newest = std::find_if(found->begin(), found->end(), [](const CheckpointEntry& e) { return !e.error; });
  if (newest == found->end()) return error;
  for (const std::string& difference :
       differing_flags(config.maths_flags(), "this command", newest->state->config, "the checkpoint")) {
    error.message.append("; ").append(difference);
  }
  return error;
}

// ResumePolicy::kNever: moves other jobs' checkpoints aside. Not with --resume, which may name one of them.
Status move_other_jobs_aside(const RunConfig& config, FileSystem& fs, const SyncOptions& options, SyncResult& result) {
  const bool only_reads = config.training.inference_only || !config.training.resume.empty();
  if (options.identity.job.resume != ResumePolicy::kNever || only_reads) return {};
  const CheckpointStamp stamp{options.identity.job.run, options.generation};
  TRY_ASSIGN(const std::vector<std::string> moved, move_others_aside(fs, options.folder, options.identity, stamp));
  for (const std::string& path : moved) {
    result.remarks.push_back("moved " + path + " aside: another run wrote it, and spec.checkpoint.resume is Never");
  }
  return {};
}

// What the counters of a checkpoint name as the run's beginning, in the field `resumed_from` (--resume) or
// `weights_from` (--state_dict_path). nullopt: checkpoints of earlier versions do not have the field.
std::optional<std::string> beginning_of(const CheckpointState& state, const char* field) {
  const Json counters = state.progress.value("counters", Json::object());
  if (!counters.contains(field)) return std::nullopt;
  return counters.value(field, std::string());
}

// Was the newest checkpoint here written by a run that began with this --resume? Then the run goes on from it: a
// restart by the agent, the operator or a person repeats the command, --resume included. Only state.json is read, so
// that neither damage to the tensors nor an error of the volume is taken for a run that has no checkpoint yet: it would
// begin again, and retention would remove its later work.
Result<bool> began_from(FileSystem& fs, const SyncOptions& options, const std::string& resume) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, options.folder));
  const CheckpointEntry* unknown = nullptr;
  for (const CheckpointEntry& entry : entries) {
    if (entry.error && !may_be_passed_over(*entry.error)) return *entry.error;
    if (!entry.state) {
      unknown = &entry;
    } else if (is_same_job(*entry.state, options.identity)) {
      const bool is_same = is_same_run(*entry.state, options.identity);
      if (is_same && beginning_of(*entry.state, "resumed_from") == resume) return true;
      break;
    }
  }
  if (unknown == nullptr) return false;
  return Error{ErrorCode::kCorrupt, unknown->error->message + ": it may be of the run that began with --resume " +
                                        resume +
                                        ", so that run is not begun again; remove that checkpoint to begin "
                                        "again, or give another folder"};
}

// The newest checkpoint of the run that began with this --resume, but none of an earlier run in the same folder.
Result<ResumeResult> load_newest_from(FileSystem& fs, const SyncOptions& options, const std::string& resume) {
  TRY_ASSIGN(ResumeResult newest, load_newest_checkpoint(fs, options.folder, options.identity));
  if (newest.checkpoint && beginning_of(newest.checkpoint->state, "resumed_from") == resume) return newest;
  const std::string why = newest.passed_over.empty() ? "" : " (" + newest.passed_over.front().reason + ")";
  return Error{ErrorCode::kCorrupt, "every checkpoint in " + options.folder + " of the run that began with --resume " +
                                        resume + " is damaged" + why +
                                        "; move the folder away to begin that run again"};
}

// The same for --state_dict_path. A run that began otherwise would ignore the weights that are given, so it is refused.
Status check_began_with(const std::string& weights, const LoadedCheckpoint& newest) {
  if (beginning_of(newest.state, "weights_from").value_or(weights) == weights) return {};
  return invalid("--state_dict_path " + weights + ": the run of " + newest.path +
                 " did not begin with these weights, and would go on from that checkpoint without them: give another "
                 "--train_dir, or leave --state_dict_path out");
}

// --resume names a file of torch.save, not a folder.
bool is_training_file(const std::string& resume) { return resume.ends_with(".pt") || resume.ends_with(".pth"); }

// The checkpoint that --resume names; none for a file of torch.save, which resume_from_training_file reads.
Result<ResumeResult> load_given(FileSystem& fs, const std::string& resume) {
  if (is_training_file(resume)) return ResumeResult{};
  TRY_ASSIGN(ResumeResult given, load_checkpoint(fs, resume));
  if (!given.checkpoint) return Error{ErrorCode::kNotFound, "--resume " + resume + ": no checkpoint there"};
  return given;
}

Result<ResumeResult> find_checkpoint(const RunConfig& config, FileSystem& fs, const SyncOptions& options) {
  const std::string& resume = config.training.resume;
  const std::string& weights = config.training.state_dict_path;
  const bool inference_only = config.training.inference_only;
  // What the command names is evaluated, whatever the folder holds.
  if (inference_only && !weights.empty()) return ResumeResult{};
  if (inference_only && !resume.empty()) return load_given(fs, resume);
  if (!resume.empty()) {
    TRY_ASSIGN(const bool goes_on, began_from(fs, options, resume));
    return goes_on ? load_newest_from(fs, options, resume) : load_given(fs, resume);
  }
  Result<ResumeResult> newest = load_newest_checkpoint(fs, options.folder, options.identity);
  if (!newest.ok() && newest.error().code == ErrorCode::kConflict) {
    return with_differences(config, fs, options.folder, newest.error());
  }
  if (newest.ok() && newest->checkpoint && !weights.empty()) TRY(check_began_with(weights, *newest->checkpoint));
  if (newest.ok() && !newest->checkpoint && inference_only) {
    return Error{ErrorCode::kNotFound, "--inference_only: no checkpoint of this run in " + options.folder +
                                           "; name one with --resume PATH, or weights with --state_dict_path FILE"};
  }
  return newest;
}

// Any error of a file that the user named is a usage error.
Error unusable_weights(const Error& error, const std::string& path) {
  return Error{ErrorCode::kInvalid, "--state_dict_path " + path + " cannot be used (expected .safetensors, .pt, .pth " +
                                        "or a checkpoint folder): " + error.message};
}

// For weights that were trained for `epochs` epochs already: training begins with the epoch after them.
void start_after_epochs(int64_t epochs, BatchSource& source, Counters& counters, SyncResult& result) {
  counters.position = {.epoch = epochs, .index = 0};
  counters.epoch_steps = source.steps(epochs);
  counters.step = steps_before(epochs, source);
  if (epochs == 0) return;
  result.origin +=
      ", trained for " + std::to_string(epochs) + " epochs: begins with epoch " + std::to_string(epochs + 1);
}

// " (time_matrix_K_emb.weight: the first 257 of 3417 rows)": what a workload has cut off the tensors of a file.
std::string rows_left_out(const NamedTensors& file, const NamedTensors& used) {
  std::string text;
  for (const NamedTensor& before : file) {
    for (const NamedTensor& after : used) {
      const bool is_cut = before.name == after.name && before.tensor.dim() > 0 &&
                          after.tensor.dim() == before.tensor.dim() && after.tensor.size(0) < before.tensor.size(0);
      if (!is_cut) continue;
      text += (text.empty() ? " (" : ", ") + after.name + ": the first " + std::to_string(after.tensor.size(0)) +
              " of " + std::to_string(before.tensor.size(0)) + " rows";
    }
  }
  return text.empty() ? text : text + ")";
}

Status initialise(const RunConfig& config, Workload& workload, TrainingState& state, FileSystem& fs,
                  SyncResult& result) {
  workload.initialize(config.training.seed);
  result.origin = "initialised from seed " + std::to_string(config.training.seed);
  const std::string& weights = config.training.state_dict_path;
  if (!weights.empty()) {
    Result<NamedTensors> read = load_weights(fs, weights);
    if (!read.ok()) return unusable_weights(read.error(), weights);
    const std::string what = "--state_dict_path " + weights;
    const NamedTensors as_written = *read;
    const Result<NamedTensors> loaded = workload.weights_of_file(std::move(*read));
    if (!loaded.ok()) return Error{loaded.error().code, what + ": " + loaded.error().message};
    TRY(copy_tensors(*loaded, state.model_tensors(), what));
    result.origin = "weights from " + weights + rows_left_out(as_written, *loaded);
  }
  for (auto& [name, ema] : state.emas()) ema.reset();
  return {};
}

// Restores weights, optimizer and counters from a file that was written after an evaluation. The file's epoch gives the
// position in the data, the flags give the learning rate, and the file's past evaluations give plateau and patience.
Status resume_from_training_file(const SyncContext& context, FileSystem& fs, const std::string& path,
                                 BatchSource& source, SyncResult& result) {
  TrainingState& state = context.state;
  const std::string what = "--resume " + path;
  const auto unusable = [&](const Error& error) { return Error{error.code, what + ": " + error.message}; };
  const Result<TrainingFile> read = load_training_file(fs, path);
  if (!read.ok()) return Error{read.error().code, "--resume " + read.error().message};  // which names the file
  const Result<NamedTensors> weights = context.rank.workload.weights_of_file(read->model);
  if (!weights.ok()) return unusable(weights.error());
  TRY(copy_tensors(*weights, state.model_tensors(), what));
  const Result<NamedTensors> adam = adam_tensors(read->optimizer, read->model, state.optimizer_tensors());
  if (!adam.ok()) return unusable(adam.error());
  TRY(copy_tensors(*adam, state.optimizer_tensors(), "the optimizer's state of " + what));
  for (auto& [name, ema] : state.emas()) ema.reset();
  const Result<Workload::TrainingSoFar> past = context.rank.workload.restore_from_file(read->fields);
  if (!past.ok()) return unusable(past.error());
  result.origin = "resumed from " + path;
  start_after_epochs(past->epochs, source, state.counters, result);
  result.resumed_step = state.counters.step;
  const WorkloadInfo& info = context.rank.workload.info();
  for (const double figure : past->figures) {
    count_evaluation(state.counters, info, context.rank.config.training, {{info.best.name, figure}});
    state.counters.evaluated_step = state.counters.step;
  }
  return {};
}

// Rank 0: a checkpoint of this run that is newer than the newest state in any rank's memory, or the error of reading
// it. nullopt when there is none, or the folder cannot be listed: a volume that is away does not end a run whose state
// is in memory.
std::optional<Result<ResumeResult>> find_newer(const RunConfig& config, FileSystem& fs, const SyncOptions& options,
                                               const StateClaim& best) {
  const auto is_newer_state = [&](const CheckpointState& saved) {
    return saved.run >= options.identity.job.run &&
           is_newer({.generation = saved.generation, .step = saved.step}, best);
  };
  // First without reading tensors: in most cases there is nothing newer. A checkpoint of a later step whose state.json
  // cannot be read now may be newer.
  const auto may_be_newer = [&](const CheckpointEntry& entry) {
    if (entry.state) return is_same_run(*entry.state, options.identity) && is_newer_state(*entry.state);
    return entry.step > best.step && !may_be_passed_over(*entry.error);
  };
  const Result<std::vector<CheckpointEntry>> seen = list_checkpoints(fs, options.folder);
  if (!seen.ok() || std::none_of(seen->begin(), seen->end(), may_be_newer)) return std::nullopt;
  Result<ResumeResult> found = find_checkpoint(config, fs, options);
  if (!found.ok() && !may_be_passed_over(found.error())) return found;
  if (!found.ok() || !found->checkpoint || !is_newer_state(found->checkpoint->state)) return std::nullopt;
  return found;
}

// Rank 0, when no rank holds a state, or the checkpoint in `newer` is newer than all of them.
Status restore_or_initialise(const SyncContext& context, FileSystem& fs, const SyncOptions& options,
                             std::optional<Result<ResumeResult>> newer, SyncResult& result) {
  TrainingState& state = context.state;
  const TrainingOptions& training = context.rank.config.training;
  state.counters = Counters{};
  state.journal = Journal{};
  if (!newer) {
    TRY(move_other_jobs_aside(context.rank.config, fs, options, result));
    newer = find_checkpoint(context.rank.config, fs, options);
  }
  TRY_ASSIGN(const ResumeResult found, std::move(*newer));
  std::optional<CheckpointStamp> read;
  for (const PassedOver& p : found.passed_over) result.remarks.push_back("passed over " + p.path + ": " + p.reason);
  if (found.checkpoint) {
    TRY(copy_checkpoint(*found.checkpoint, context, options, result));
    result.origin = "resumed from " + found.checkpoint->path;
    const CheckpointState& saved = found.checkpoint->state;
    const JobIdentity& job = options.identity.job;
    const bool is_of_an_earlier_job = !job.uid.empty() && saved.job == job.name && saved.job_uid != job.uid;
    if (is_of_an_earlier_job) result.origin += ", which an earlier TrainJob of this name wrote";
    result.resumed_step = state.counters.step;
    read = saved.stamp();
  } else {
    TRY(options.first_batch);
    state.counters.batch = *options.first_batch;
    TRY_ASSIGN(const std::unique_ptr<BatchSource> source, training_batches(context, state.counters.batch));
    if (is_training_file(training.resume)) {
      TRY(resume_from_training_file(context, fs, training.resume, *source, result));
    } else {
      TRY(initialise(context.rank.config, context.rank.workload, state, fs, result));
      start_after_epochs(training.weights_epochs, *source, state.counters, result);
    }
  }
  const CheckpointStamp stamp = stamp_when_restored({options.identity.job.run, options.generation}, read);
  state.counters.run = stamp.run;
  state.counters.lineage = state.counters.generation = result.generation = stamp.generation;
  if (!training.resume.empty()) state.counters.resumed_from = training.resume;
  if (!training.state_dict_path.empty()) state.counters.weights_from = training.state_dict_path;
  state.counters.has_state = true;
  return {};
}

// While it lives, rank 0 reads from the volume: the time counts as start-up and not as waiting for peers, and a cut or
// a stop ends the reading.
class Reading {
 public:
  explicit Reading(const SyncContext& context)
      : phase_(context.rank.clock, Phase::kStartup),
        fs_(context.rank.fs, [this, &context] { return check_stop(context); }) {}
  FileSystem& fs() { return fs_; }
  // True: an error was caused by the cut or the stop, and says nothing about the volume.
  [[nodiscard]] bool was_stopped() const { return was_stopped_; }

 private:
  // Called after each read.
  Status check_stop(const SyncContext& context) {
    context.rank.clock.progress();
    was_stopped_ = was_stopped_ || context.stop.is_stopped();
    if (was_stopped_) return Error{ErrorCode::kCancelled, "the reading was stopped"};
    return {};
  }

  bool was_stopped_ = false;
  PhaseScope phase_;
  WatchedFileSystem fs_;
};

Failure reading_stopped() {
  return {ExitCode::kPeerLost, "the group was cut, or a stop was requested, during the restore"};
}

// Sends all tensors of the state from rank `source` to the ranks that receive.
struct Transfer {
  int source = 0;
  std::vector<bool> receives;       // by rank
  bool rank_zero_receives = false;  // then only a cut ends the transfer; a stop has to wait for it
};
void send_tensors(const SyncContext& context, const Transfer& transfer) {
  transfer_state(context.group, context.rank.stream, context.state.all_tensors(), transfer.source, transfer.receives,
                 [&] {
                   context.rank.clock.progress();
                   const bool leaves = transfer.rank_zero_receives ? context.stop.is_cut() : context.stop.is_stopped();
                   if (leaves)
                     leave_group("the group was cut, or a stop was requested, during the transfer of the state");
                 });
}

// Rank 0 reads or initialises the state, tells the others whether that worked, and sends its tensors to all of them.
// `newer`: a checkpoint that rank 0 has read already, or could not read. `result`: holds the remarks so far.
SyncOutcome start_from_rank_zero(const SyncContext& context, const SyncOptions& options,
                                 std::optional<Result<ResumeResult>> newer, SyncResult result) {
  const Assignment& mine = context.group.options().assignment;
  Json document;
  if (mine.rank == 0) {
    Reading reading(context);
    const Status status = restore_or_initialise(context, reading.fs(), options, std::move(newer), result);
    if (!status.ok() && reading.was_stopped()) return reading_stopped();
    if (status.ok()) options.on_start(result);
    document = status.ok() ? describe_state(context.state, context.rank.workload, result)
                           : document_of(failure_of(status.error()));
  }
  Result<std::string> text = broadcast_from_rank_zero(context.store, mine, "sync", dump_line(document));
  if (!text.ok()) return Failure{ExitCode::kPeerLost, text.error().message};
  const Result<Json> received = parse_json(*text, "rank 0's description of its state");
  if (!received.ok()) return Failure{ExitCode::kCrash, received.error().message};
  if (const std::optional<Failure> failure = failure_in(*received)) return *failure;
  const bool receives = mine.rank != 0;
  Result<Description> description = parse_description(*received);
  if (!description.ok()) return Failure{ExitCode::kCrash, description.error().message};
  std::vector<bool> all_others(static_cast<size_t>(mine.world_size), true);
  all_others[0] = false;
  send_tensors(context, {.source = 0, .receives = std::move(all_others)});
  if (receives) {
    const Status taken = adopt_description(std::move(*description), context.state, context.rank.workload);
    if (!taken.ok()) return Failure{ExitCode::kCrash, taken.error().message};
    result.origin = received->at("origin").get<std::string>();
    result.generation = received->at("generation").get<uint64_t>();
  }
  result.resumed_step = context.state.counters.step;
  result.has_changed = true;
  return result;
}

// The source rank sends its state to the ranks that lack it, most often to one new rank.
SyncOutcome sync_from_live_rank(const SyncContext& context, const SyncOptions& options,
                                const std::vector<StateClaim>& claims, const SourceChoice& choice) {
  const int rank = context.group.options().assignment.rank;
  const bool receives = choice.receives[static_cast<size_t>(rank)];
  Counters& counters = context.state.counters;
  SyncResult result{.origin = choice.reason, .from_live_rank = true, .has_changed = receives};
  options.on_live_state();
  // All ranks take the same branch: `choice` is a pure function of the claims of all ranks.
  if (std::find(choice.receives.begin(), choice.receives.end(), true) != choice.receives.end()) {
    // Counters, journal and progress go through the store; the tensors follow by collectives.
    if (rank == *choice.source) {
      const Json document = describe_state(context.state, context.rank.workload, result);
      context.store.get()->set("counters", dump_line(document));
      if (const std::optional<Failure> failure = failure_in(document)) return *failure;
    }
    std::optional<Description> description;
    if (receives) {
      const Result<Json> received = parse_json(context.store.get()->get_to_str("counters"), "the source's counters");
      if (!received.ok()) return Failure{ExitCode::kCrash, received.error().message};
      if (const std::optional<Failure> failure = failure_in(*received)) return *failure;
      Result<Description> parsed = parse_description(*received);
      if (!parsed.ok()) return Failure{ExitCode::kCrash, parsed.error().message};
      description = std::move(*parsed);
    }
    send_tensors(context,
                 {.source = *choice.source, .receives = choice.receives, .rank_zero_receives = choice.receives[0]});
    if (description) {
      const Status taken = adopt_description(std::move(*description), context.state, context.rank.workload);
      if (!taken.ok()) return Failure{ExitCode::kCrash, taken.error().message};
    }
  }
  const StateAge age = age_in_group(counters.lineage, options.generation, claims);
  counters.lineage = age.lineage;
  counters.generation = result.generation = age.generation;
  result.resumed_step = counters.step;
  return result;
}

}  // namespace

SyncOutcome sync_state(const SyncContext& context, const SyncOptions& options) {
  const PhaseScope waiting(context.rank.clock, Phase::kWaiting);
  const Counters& mine = context.state.counters;
  const std::vector<StateClaim> claims = gather_claims(context.group, {.lineage = mine.lineage,
                                                                       .step = mine.step,
                                                                       .evaluated_step = mine.evaluated_step,
                                                                       .has_state = mine.has_state,
                                                                       .generation = mine.generation});
  const SourceChoice choice = choose_source(claims);
  if (!choice.source) return start_from_rank_zero(context, options, std::nullopt, {});

  const StateClaim& best = claims[static_cast<size_t>(*choice.source)];
  if (may_have_missed_groups(best, options.generation)) {
    const Assignment& mine = context.group.options().assignment;
    std::optional<Result<ResumeResult>> newer;
    if (mine.rank == 0) {
      Reading reading(context);
      newer = find_newer(context.rank.config, reading.fs(), options, best);
      if (reading.was_stopped()) return reading_stopped();
    }
    const Result<std::string> has_newer =
        broadcast_from_rank_zero(context.store, mine, "volume", newer ? "true" : "false");
    if (!has_newer.ok()) return Failure{ExitCode::kPeerLost, has_newer.error().message};
    if (*has_newer == "true") {
      return start_from_rank_zero(context, options, std::move(newer),
                                  {.origin = {},
                                   .remarks = {"no rank had anything newer than step " + std::to_string(best.step) +
                                               ", of a group before the one that wrote this run's newest checkpoint"}});
    }
  }
  return sync_from_live_rank(context, options, claims, choice);
}

}  // namespace lockstep
