#include "runner/formats/checkpoint_dir.h"

#include <algorithm>
#include <tuple>

#include "runner/base/sha256.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr int kStaleNamesMax = 1000;

Error incomplete(const std::string& path, const std::string& message) {
  return Error{ErrorCode::kCorrupt, path + ": " + message};
}

Result<CheckpointState> read_state(FileSystem& fs, const std::string& path, int64_t step) {
  const Result<std::string> text = read_file(fs, join_path(path, kStateFile), kCheckpointStateBytesMax);
  if (!text.ok()) {
    // kInvalid means a newer format here, so a folder or a link named state.json is reported as damage.
    const bool is_damage = text.error().code == ErrorCode::kInvalid;
    return is_damage ? incomplete(path, text.error().message) : text.error();
  }
  Result<CheckpointState> state = parse_checkpoint_state(*text);
  if (!state.ok()) return state.error().with_context(path);
  if (state->step != step) return incomplete(path, "state.json is of step " + std::to_string(state->step));
  if (!state->files.contains(std::string(kModelFile))) {
    return incomplete(path, "state.json names no " + std::string(kModelFile));
  }
  return state;
}

// Compares the sizes of the files with those in state.json, without reading them.
Status check_sizes(FileSystem& fs, const std::string& path, const CheckpointState& state) {
  for (const auto& [name, file] : state.files) {
    TRY_ASSIGN(const FileInfo info, fs.stat(join_path(path, name)));
    if (info.kind != FileKind::kFile || info.bytes != file.bytes) {
      return incomplete(path, name + " has " + std::to_string(info.bytes) + " bytes; " + std::to_string(file.bytes) +
                                  " were written");
    }
  }
  return {};
}

Error wrong_sum(const std::string& path, const std::string& name) {
  return incomplete(path, name + " is damaged: its SHA-256 is not the one in state.json");
}

bool is_newer(const CheckpointEntry& a, const CheckpointEntry& b) {
  const auto order = [](const CheckpointEntry& entry) {
    return std::tuple(!entry.state.has_value(), entry.state ? entry.state->stamp() : CheckpointStamp{}, entry.step);
  };
  return order(a) > order(b);
}

// The error for a complete checkpoint that is not of this run (is_same_run).
Error other_run_error(const CheckpointEntry& entry, const RunIdentity& identity) {
  const CheckpointState& state = *entry.state;
  const JobIdentity& job = identity.job;
  const bool is_of_another_uid = !job.uid.empty() && state.job_uid != job.uid;
  const auto short_hash = [](const std::string& hash) { return hash.substr(0, 8); };  // enough to tell two apart
  std::string why;
  std::string reason;
  std::string anew = job.name.empty() ? "another folder" : "the TrainJob another name";
  if (is_of_another_uid && (state.job == job.name || state.job.empty())) anew = "spec.checkpoint.resume: Never";
  if (!is_same_job(state, identity) && !job.name.empty()) {
    why =
        (state.job.empty() ? "no TrainJob wrote it" : "TrainJob " + state.job + " wrote it") + ", this is " + job.name;
  } else if (is_of_another_uid && job.resume != ResumePolicy::kSameConfig) {
    why = "the job of this name with UID \"" + state.job_uid + "\" wrote it, this one's is \"" + job.uid +
          "\", and spec.checkpoint.resume is not SameConfig";
  } else {
    const bool is_of_another_version = state.workload == identity.workload &&
                                       state.config_hash == identity.config_hash &&
                                       state.workload_version != identity.workload_version;
    why = is_of_another_version
              ? "version " + std::to_string(state.workload_version) + " of " + state.workload +
                    " wrote it, this is version " + std::to_string(identity.workload_version) + ", whose maths differ"
          : identity.workload == kPythonWorkload
              ? "its models, or the objects given to lockstep.restore, are others"
              : "its flags or workload differ: config hash " + short_hash(state.config_hash) + ", this is " +
                    short_hash(identity.config_hash);
    if (!job.name.empty()) reason = kConfigurationChanged;
  }
  const bool has_flags = identity.workload != kPythonWorkload;
  return Error{ErrorCode::kConflict,
               entry.path + " is a checkpoint of another run (" + why + "); to " +
                   (has_flags ? "continue from it give --resume " + entry.path + ", to " : "") + "start anew give " +
                   anew,
               reason};
}

Status verify_entry(FileSystem& fs, const CheckpointEntry& entry) {
  if (entry.error) return *entry.error;
  for (const auto& [name, file] : entry.state->files) {
    Sha256 sum;
    TRY(read_file(fs, join_path(entry.path, name), [&sum](const void* data, size_t bytes) -> Status {
      sum.update(data, bytes);
      return {};
    }));
    if (sum.hex_digest() != file.sha256) return wrong_sum(entry.path, name);
  }
  return {};
}

Result<NewestComplete> first_verified(FileSystem& fs, const std::vector<CheckpointEntry>& entries) {
  NewestComplete newest;
  for (const CheckpointEntry& entry : entries) {
    const Status verified = verify_entry(fs, entry);
    if (verified.ok()) {
      newest.entry = entry;
      return newest;
    }
    if (!may_be_passed_over(verified.error())) return verified.error();
    newest.passed_over.push_back({entry.path, verified.error().message});
  }
  return newest;
}

}  // namespace

bool may_be_passed_over(const Error& error) {
  return error.code != ErrorCode::kInvalid && error.code != ErrorCode::kUnavailable &&
         error.code != ErrorCode::kCancelled;
}

CheckpointEntry inspect_checkpoint(FileSystem& fs, const std::string& path) {
  CheckpointEntry entry;
  entry.path = path;
  const std::optional<int64_t> step = parse_step_folder_name(base_name(path));
  if (!step) {
    entry.error = incomplete(path, "is not named like a checkpoint (step-00001200)");
    return entry;
  }
  entry.step = *step;
  Result<CheckpointState> state = read_state(fs, path, *step);
  Status whole = state.ok() ? check_sizes(fs, path, *state) : Status(state.error());
  if (state.ok()) entry.state = std::move(*state);
  if (!whole.ok()) {
    // A file that is missing makes a checkpoint incomplete, like one that is damaged.
    const bool is_missing = whole.error().code == ErrorCode::kNotFound;
    entry.error = Error{is_missing ? ErrorCode::kCorrupt : whole.error().code, whole.error().message};
  }
  return entry;
}

Result<std::vector<CheckpointEntry>> list_checkpoints(FileSystem& fs, const std::string& folder) {
  Result<std::vector<DirectoryEntry>> names = fs.list(folder);
  if (!names.ok() && names.error().code == ErrorCode::kNotFound) return std::vector<CheckpointEntry>{};
  TRY(names);
  std::vector<CheckpointEntry> entries;
  for (const DirectoryEntry& name : *names) {
    if (name.kind != FileKind::kDirectory || !parse_step_folder_name(name.name)) continue;
    entries.push_back(inspect_checkpoint(fs, join_path(folder, name.name)));
  }
  std::stable_sort(entries.begin(), entries.end(), is_newer);
  return entries;
}

Status verify_checkpoint(FileSystem& fs, const std::string& path) {
  return verify_entry(fs, inspect_checkpoint(fs, path));
}

Status check_is_not_newer(const CheckpointState& state, const std::string& path, const RunIdentity& identity,
                          const CheckpointStamp& stamp) {
  const CheckpointStamp found = state.stamp();
  if (found <= stamp || !is_same_job(state, identity)) return {};
  if (found.run != stamp.run) {
    return Error{ErrorCode::kConflict, path + " is of run " + std::to_string(found.run) + ", newer than this one's " +
                                           std::to_string(stamp.run) +
                                           ": a TrainJob of this name that was created later writes here"};
  }
  return Error{ErrorCode::kConflict, path + " is of generation " + std::to_string(found.generation) +
                                         ", newer than this one's " + std::to_string(stamp.generation) +
                                         ": another rank 0 of this run has taken over, or the clock was set back"};
}

Status check_none_is_newer(FileSystem& fs, const std::string& folder, const RunIdentity& identity,
                           const CheckpointStamp& stamp) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  for (const CheckpointEntry& entry : entries) {
    if (entry.state) TRY(check_is_not_newer(*entry.state, entry.path, identity, stamp));
  }
  return {};
}

Result<std::string> read_checkpoint_file(FileSystem& fs, const CheckpointEntry& entry, const std::string& name) {
  if (entry.error) return *entry.error;
  const auto found = entry.state->files.find(name);
  if (found == entry.state->files.end()) {
    return Error{ErrorCode::kNotFound, entry.path + " has no " + name};
  }
  // The SHA-256 is updated after each piece that is read. Over a whole large file at once it would take many seconds,
  // in which the reading could not be stopped.
  std::string bytes;
  bytes.reserve(found->second.bytes);
  Sha256 sum;
  TRY(read_file(fs, join_path(entry.path, name), [&](const void* data, size_t size) -> Status {
    if (size > found->second.bytes - bytes.size()) return wrong_sum(entry.path, name);
    bytes.append(static_cast<const char*>(data), size);
    sum.update(data, size);
    return {};
  }));
  if (bytes.size() != found->second.bytes || sum.hex_digest() != found->second.sha256) {
    return wrong_sum(entry.path, name);
  }
  return bytes;
}

Result<ResumeCandidates> resume_candidates(FileSystem& fs, const std::string& folder, const RunIdentity& identity) {
  TRY_ASSIGN(std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  ResumeCandidates candidates;
  const CheckpointEntry* other = nullptr;
  for (CheckpointEntry& entry : entries) {
    if (entry.error && !may_be_passed_over(*entry.error)) return *entry.error;
    if (entry.error) {
      candidates.passed_over.push_back({entry.path, entry.error->message});
    } else if (is_same_run(*entry.state, identity)) {
      candidates.entries.push_back(std::move(entry));
    } else {
      if (candidates.entries.empty() && is_same_job(*entry.state, identity)) return other_run_error(entry, identity);
      if (other == nullptr) other = &entry;
      candidates.passed_over.push_back({entry.path, "belongs to another run"});
    }
  }
  if (candidates.entries.empty() && other != nullptr) return other_run_error(*other, identity);
  return candidates;
}

Result<std::string> move_aside(FileSystem& fs, const std::string& path, int64_t step, const CheckpointStamp& stamp) {
  const std::string folder = path.substr(0, path.size() - base_name(path).size());
  for (int attempt = 0; attempt < kStaleNamesMax; ++attempt) {
    const std::string stale = folder + stale_folder_name(step, stamp, attempt);
    if (fs.stat(stale).ok()) continue;
    TRY(fs.rename(path, stale));
    return stale;
  }
  return Error{ErrorCode::kInvalid, folder + " holds " + std::to_string(kStaleNamesMax) +
                                        " checkpoints moved aside for one step; remove them"};
}

Result<std::vector<std::string>> move_others_aside(FileSystem& fs, const std::string& folder,
                                                   const RunIdentity& identity, const CheckpointStamp& stamp) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  std::vector<std::string> moved;
  for (const CheckpointEntry& entry : entries) {
    if (!entry.state || (!entry.state->job.empty() && entry.state->job != identity.job.name)) continue;
    if (entry.state->job_uid == identity.job.uid) continue;
    TRY(move_aside(fs, entry.path, entry.step, stamp));
    moved.push_back(entry.path);
  }
  if (!moved.empty()) TRY(fs.fsync_directory(folder));
  return moved;
}

Error all_damaged(const std::string& folder, const std::vector<PassedOver>& passed_over) {
  return Error{ErrorCode::kCorrupt, "every checkpoint in " + folder + " is damaged (" + passed_over.front().reason +
                                        "); move the folder away, then start anew, or from a checkpoint elsewhere with "
                                        "--resume PATH"};
}

Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  return first_verified(fs, entries);
}

Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder, const RunIdentity& identity) {
  TRY_ASSIGN(ResumeCandidates candidates, resume_candidates(fs, folder, identity));
  TRY_ASSIGN(NewestComplete newest, first_verified(fs, candidates.entries));
  newest.passed_over.insert(newest.passed_over.end(), candidates.passed_over.begin(), candidates.passed_over.end());
  if (!newest.entry && !newest.passed_over.empty()) return all_damaged(folder, newest.passed_over);
  return newest;
}

Result<std::vector<std::string>> prune_checkpoints(FileSystem& fs, const std::string& folder,
                                                   const Retention& retention, const CheckpointStamp& stamp,
                                                   const std::optional<RunIdentity>& identity) {
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, folder));
  std::vector<RetentionItem> items;
  std::vector<const CheckpointEntry*> owners;
  for (const CheckpointEntry& entry : entries) {
    // Damaged checkpoints are kept, so that a user can look at them.
    if (entry.error || (identity && !is_same_run(*entry.state, *identity))) continue;
    items.push_back({entry.state->stamp(), entry.step, entry.state->is_best});
    owners.push_back(&entry);
  }
  std::vector<std::string> removed;
  for (const size_t index : select_for_removal(items, retention)) {
    const std::string& path = owners[index]->path;
    const std::string temporary = join_path(folder, temporary_name(stamp, "pruned-" + base_name(path)));
    TRY(remove_tree(fs, temporary));  // may be left from a crash during the same removal
    TRY(fs.rename(path, temporary));
    TRY(fs.fsync_directory(folder));
    TRY(remove_tree(fs, temporary));
    removed.push_back(path);
  }
  return removed;
}

Status remove_leftovers(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp) {
  TRY_ASSIGN(const std::vector<DirectoryEntry> names, fs.list(folder));
  const std::string taken = join_path(folder, temporary_name(stamp, "leftover"));
  for (const DirectoryEntry& name : names) {
    const std::optional<CheckpointStamp> owner = parse_temporary_stamp(name.name);
    if (!owner || *owner > stamp) continue;
    (void)remove_tree(fs, taken).ok();  // may be left from a crash, or from an error in the line below
    if (fs.rename(join_path(folder, name.name), taken).ok()) (void)remove_tree(fs, taken).ok();
  }
  return {};
}

}  // namespace lockstep
