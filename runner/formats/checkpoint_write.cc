#include "runner/formats/checkpoint_write.h"

#include <unistd.h>

#include <algorithm>

#include "runner/base/atomic_file.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/base/sha256.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

// Gives all errors of the volume the code kUnavailable, on which the training loop acts, whatever the failed call was.
Error volume_error(const Error& error) {
  const bool is_ours = error.code == ErrorCode::kInvalid || error.code == ErrorCode::kConflict;
  return is_ours ? error : Error{ErrorCode::kUnavailable, error.message, error.reason};
}

Status write_tensor_file(FileSystem& fs, const std::string& folder, const CheckpointTensors& tensors,
                         CheckpointState& state) {
  Sha256 sum;
  CheckpointFile file;
  TRY(write_file(fs, join_path(folder, tensors.file), [&](const ByteSink& sink) {
    return write_safetensors(tensors.tensors, {{"format", "pt"}}, [&](const void* data, size_t bytes) {
      sum.update(data, bytes);
      file.bytes += bytes;
      return sink(data, bytes);
    });
  }));
  file.sha256 = sum.hex_digest();
  state.files[tensors.file] = file;
  return {};
}

Result<uint64_t> write_folder(FileSystem& fs, const std::string& folder, const CheckpointWrite& request) {
  TRY(remove_tree(fs, folder));  // of a failed attempt of this generation
  TRY(fs.make_directory(folder));
  CheckpointState state = request.state;
  state.files.clear();
  for (const CheckpointTensors& tensors : request.tensors) TRY(write_tensor_file(fs, folder, tensors, state));
  const std::string text = dump_checkpoint_state(state);
  if (text.size() > kCheckpointStateBytesMax) {
    return Error{ErrorCode::kInvalid, "its state.json has " + std::to_string(text.size()) + " bytes, and at most " +
                                          std::to_string(kCheckpointStateBytesMax) + " are read: workload " +
                                          state.workload +
                                          " must keep less in progress_state(), and arrays as buffers"};
  }
  TRY(write_file(fs, join_path(folder, kStateFile),
                 [&text](const ByteSink& sink) { return sink(text.data(), text.size()); }));
  TRY(fs.fsync_directory(folder));
  uint64_t bytes = text.size();
  for (const auto& [name, file] : state.files) bytes += file.bytes;
  return bytes;
}

bool exists(FileSystem& fs, const std::string& path) { return fs.stat(path).ok(); }

RunIdentity identity_of(const CheckpointWrite& request) {
  const CheckpointState& s = request.state;
  return {.job = {.name = s.job, .uid = s.job_uid, .run = s.run, .resume = request.resume},
          .config_hash = s.config_hash,
          .workload = s.workload,
          .workload_version = s.workload_version};
}

// An existing checkpoint lacks the mark or the progress of an evaluation that was made after it was written.
bool knows_the_evaluation(const CheckpointState& existing, const CheckpointState& wanted) {
  const auto evaluated_step = [](const CheckpointState& state) {
    return number_field(state.progress, {"counters", "evaluated_step"});
  };
  return (existing.is_best || !wanted.is_best) && evaluated_step(existing) >= evaluated_step(wanted);
}

bool is_same_and_complete(FileSystem& fs, const std::string& path, const CheckpointWrite& request) {
  const CheckpointEntry entry = inspect_checkpoint(fs, path);
  return entry.state && entry.state->run == request.state.run && entry.state->lineage == request.state.lineage &&
         knows_the_evaluation(*entry.state, request.state) && is_same_run(*entry.state, identity_of(request)) &&
         verify_checkpoint(fs, path).ok();
}

// The checkpoint that was moved to `path` may be of a newer rank 0, where the volume answers a listing from a cache.
Status check_moved_aside(FileSystem& fs, const std::string& path, const CheckpointWrite& request) {
  const Result<std::string> text = read_file(fs, join_path(path, kStateFile), kCheckpointStateBytesMax);
  const Result<CheckpointState> state = text.ok() ? parse_checkpoint_state(*text) : text.error();
  if (!state.ok()) return {};  // it was damaged
  return check_is_not_newer(*state, path, identity_of(request), request.state.stamp());
}

// Renames the complete temporary folder to its final name.
Status publish(FileSystem& fs, const CheckpointWrite& request, const std::string& temporary, const std::string& final,
               WrittenCheckpoint& written) {
  Status status = check_none_is_newer(fs, request.folder, identity_of(request), request.state.stamp());
  if (status.ok() && exists(fs, final)) {
    TRY_ASSIGN(written.moved_aside, move_aside(fs, final, request.state.step, request.state.stamp()));
    status = check_moved_aside(fs, written.moved_aside, request);
  }
  if (!status.ok() && status.error().code == ErrorCode::kConflict) {
    status = Error{ErrorCode::kConflict, status.error().message + "; the checkpoint of step " +
                                             std::to_string(request.state.step) + " of this rank 0 was not published"};
  }
  if (status.ok()) status = fs.rename(temporary, final);
  if (!status.ok() && !written.moved_aside.empty()) {
    // Moves the existing one back, because it may be the newest complete checkpoint. An error here is ignored.
    (void)fs.rename(written.moved_aside, final).ok();
    written.moved_aside.clear();
  }
  TRY(status);
  return fs.fsync_directory(request.folder);
}

// Replaces `latest` and prunes. `latest` is only for users: this project's readers list the folders.
Status update_latest_and_prune(FileSystem& fs, const CheckpointWrite& request, const std::string& name,
                               WrittenCheckpoint& written) {
  const auto update_latest = [&] {
    return write_file_atomically(fs, join_path(request.folder, kLatestFile), name + "\n",
                                 join_path(request.folder, temporary_name(request.state.stamp(), kLatestFile)));
  };
  Status latest = update_latest();
  TRY_ASSIGN(const std::vector<std::string> pruned,
             prune_checkpoints(fs, request.folder, request.retention, request.state.stamp(), identity_of(request)));
  written.pruned.insert(written.pruned.end(), pruned.begin(), pruned.end());
  if (!latest.ok() && !pruned.empty()) latest = update_latest();  // there may be room now
  return latest;
}

// For a volume that is full: removes one checkpoint more than retention does after a write, of those that it may
// remove; the newest stays. An old rank 0 that was cut off removes nothing.
Status make_room(FileSystem& fs, const CheckpointWrite& request, WrittenCheckpoint& written) {
  TRY(check_none_is_newer(fs, request.folder, identity_of(request), request.state.stamp()));
  Retention fewer = request.retention;
  fewer.keep_last = std::max<int64_t>(fewer.keep_last - 1, 1);
  TRY_ASSIGN(written.pruned, prune_checkpoints(fs, request.folder, fewer, request.state.stamp(), identity_of(request)));
  return {};
}

bool is_full(const Status& status) { return !status.ok() && status.error().reason == kNoSpace; }

std::string names_of(const std::vector<std::string>& paths) { return joined(paths, ", ", base_name); }

// A checkpoint needs a folder that can be renamed with its content, which the first one, hours later, would find out.
Status probe_folder(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp) {
  const std::string probe = join_path(folder, temporary_name(stamp, "probe"));
  const std::string renamed = join_path(folder, temporary_name(stamp, "probe-renamed"));
  const auto write_and_rename = [&]() -> Status {
    TRY(fs.make_directory(probe));
    TRY(write_file(fs, join_path(probe, "file"), [](const ByteSink& sink) { return sink("probe", 5); }));
    TRY(fs.fsync_directory(probe));
    const Status moved = fs.rename(probe, renamed);
    if (!moved.ok()) {
      return Error{moved.error().code, moved.error().message +
                                           "; a checkpoint is made in a temporary folder that is then renamed, which "
                                           "mounts of object stores cannot do: use a volume with a file system, and "
                                           "copy checkpoints to the object store"};
    }
    return fs.fsync_directory(folder);
  };
  const Status wrote = write_and_rename();
  // Also when the write failed, because a full disk leaves an empty file.
  const Status removed = remove_tree(fs, wrote.ok() ? renamed : probe);
  TRY(wrote);
  return removed;
}

}  // namespace

Status prepare_checkpoint_folder(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp) {
  const auto prepare = [&]() -> Status {
    TRY(make_directories(fs, folder));
    TRY(remove_leftovers(fs, folder, stamp));
    return probe_folder(fs, folder, stamp);
  };
  const Status status = prepare();
  if (status.ok()) return {};
  return Error{ErrorCode::kUnavailable, "the checkpoint folder " + folder + " is not writable: " +
                                            status.error().message + "; user " + std::to_string(::geteuid()) +
                                            " needs a folder there that it may write to, with room: give it that one "
                                            "(chown), mount a volume there, or give another folder"};
}

Result<WrittenCheckpoint> write_checkpoint(FileSystem& fs, const CheckpointWrite& request) {
  const std::string name = step_folder_name(request.state.step);
  const std::string temporary = join_path(request.folder, temporary_name(request.state.stamp(), name));
  const std::string context = "checkpoint of step " + std::to_string(request.state.step);
  WrittenCheckpoint written;
  written.path = join_path(request.folder, name);
  if (!exists(fs, written.path) || !is_same_and_complete(fs, written.path, request)) {
    const auto write = [&]() -> Status {
      TRY_ASSIGN(written.bytes, write_folder(fs, temporary, request));
      return {};
    };
    // Frees space on a full disk. An error here is ignored: the next start removes what is left.
    const auto clean_up = [&] { (void)remove_tree(fs, temporary).ok(); };
    Status status = write();
    if (is_full(status)) {
      clean_up();
      if (make_room(fs, request, written).ok() && !written.pruned.empty()) {
        written.housekeeping_error = "the volume is full: " + names_of(written.pruned) +
                                     " had to be removed before the " + context +
                                     " was written; enlarge the volume, or lower --keep_last";
        status = write();
      }
    }
    if (status.ok()) status = publish(fs, request, temporary, written.path, written);
    if (!status.ok()) {
      clean_up();
      return volume_error(status.error()).with_context(context);
    }
  }
  // The checkpoint is durable from here on; an error in what follows does not change that.
  const Status kept = update_latest_and_prune(fs, request, name, written);
  if (!kept.ok()) written.housekeeping_error = kept.error().message;
  return written;
}

}  // namespace lockstep
