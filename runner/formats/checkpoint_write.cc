#include "runner/formats/checkpoint_write.h"

#include <unistd.h>

#include "runner/base/atomic_file.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

// Gives all errors of the volume the code kUnavailable, on which the training loop acts, whatever the failed call was.
Error volume_error(const Error& error) {
  const bool is_ours = error.code == ErrorCode::kInvalid || error.code == ErrorCode::kConflict;
  return is_ours ? error : Error{ErrorCode::kUnavailable, error.message};
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

// Renames the complete temporary folder to its final name.
Status publish(FileSystem& fs, const CheckpointWrite& request, const std::string& temporary, const std::string& final,
               WrittenCheckpoint& written) {
  const Status newest = check_none_is_newer(fs, request.folder, identity_of(request), request.state.stamp());
  if (!newest.ok()) {
    return Error{newest.error().code, newest.error().message + "; the checkpoint of step " +
                                          std::to_string(request.state.step) + " of this rank 0 was not published"};
  }
  if (exists(fs, final)) {
    TRY_ASSIGN(written.moved_aside, move_aside(fs, final, request.state.step, request.state.stamp()));
  }
  const Status renamed = fs.rename(temporary, final);
  if (!renamed.ok() && !written.moved_aside.empty()) {
    // Moves the existing one back, because it may be the newest complete checkpoint. An error here is ignored.
    (void)fs.rename(written.moved_aside, final).ok();
  }
  TRY(renamed);
  return fs.fsync_directory(request.folder);
}

// Replaces `latest` and prunes. `latest` is only for users: this project's readers list the folders.
Status update_latest_and_prune(FileSystem& fs, const CheckpointWrite& request, const std::string& name,
                               WrittenCheckpoint& written) {
  TRY(write_file_atomically(fs, join_path(request.folder, kLatestFile), name + "\n",
                            join_path(request.folder, temporary_name(request.state.stamp(), kLatestFile))));
  TRY_ASSIGN(written.pruned,
             prune_checkpoints(fs, request.folder, request.retention, request.state.stamp(), identity_of(request)));
  return {};
}

}  // namespace

Status prepare_checkpoint_folder(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp) {
  const auto prepare = [&]() -> Status {
    TRY(make_directories(fs, folder));
    TRY(remove_leftovers(fs, folder, stamp));
    const std::string probe = join_path(folder, temporary_name(stamp, "probe"));
    const Status wrote = write_file(fs, probe, [](const ByteSink& sink) { return sink("probe", 5); });
    // Also when the write failed, because a full disk leaves an empty file.
    const Status removed = remove_tree(fs, probe);
    TRY(wrote);
    return removed;
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
      return publish(fs, request, temporary, written.path, written);
    };
    const Status status = write();
    if (!status.ok()) {
      // Frees space on a full disk. An error here is ignored: the next start removes what is left.
      (void)remove_tree(fs, temporary).ok();
      return volume_error(status.error()).with_context(context);
    }
  }
  // The checkpoint is durable from here on; an error in what follows does not change that.
  const Status kept = update_latest_and_prune(fs, request, name, written);
  if (!kept.ok()) written.housekeeping_error = kept.error().message;
  return written;
}

}  // namespace lockstep
