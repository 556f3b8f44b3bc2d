// The folder of a run's checkpoints: list, verify, choose, prune.
//
// Role: everything about the folder that needs no tensors; used by reader, writer and `lockstep ckpt`.
// Threads: functions; one writer per folder and stamp, any number of readers.
// Order: newer = higher (stamp, step). Complete = renamed to its final name, and every file's SHA-256 is right.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/retention.h"

namespace lockstep {

struct CheckpointEntry {
  std::string path;                      // of the step folder
  int64_t step = 0;                      // from its name
  std::optional<CheckpointState> state;  // when state.json is readable
  std::optional<Error> error;            // why it is incomplete; kInvalid for a newer format
};

// A checkpoint that was not used, and why.
struct PassedOver {
  std::string path;
  std::string reason;
};

// True when an older checkpoint may be used instead of one with this error: for a damaged one. False for one of a newer
// format, one that the volume cannot read now, or one whose reading was stopped: using an older one would lose work.
bool may_be_passed_over(const Error& error);

// All step folders: first those without a readable state.json, then the others, newest first. Reads state.json and the
// files' sizes, not their content, so an entry without an error may still fail verify_checkpoint. A folder that does
// not exist gives an empty list.
Result<std::vector<CheckpointEntry>> list_checkpoints(FileSystem& fs, const std::string& folder);

// The entry of one step folder, as in list_checkpoints.
CheckpointEntry inspect_checkpoint(FileSystem& fs, const std::string& path);

// Checks the SHA-256 of every file. kCorrupt names the file; kInvalid: a newer format.
Status verify_checkpoint(FileSystem& fs, const std::string& path);

// kConflict when this state, read from `path`, is of the same job (is_same_job) with a newer stamp than `stamp`.
Status check_is_not_newer(const CheckpointState& state, const std::string& path, const RunIdentity& identity,
                          const CheckpointStamp& stamp);

// kConflict when the folder holds a checkpoint of the same job (is_same_job) with a newer stamp than `stamp`. It keeps
// an old rank 0 that was cut off from publishing an outdated state after its successor has written.
Status check_none_is_newer(FileSystem& fs, const std::string& folder, const RunIdentity& identity,
                           const CheckpointStamp& stamp);

// The bytes of one file of a checkpoint, checked against its sum.
Result<std::string> read_checkpoint_file(FileSystem& fs, const CheckpointEntry& entry, const std::string& name);

// The checkpoints that a run may resume from, newest first, and those that it may not.
struct ResumeCandidates {
  std::vector<CheckpointEntry> entries;
  std::vector<PassedOver> passed_over;
};
// Errors: kConflict when all complete checkpoints in the folder are of other runs, or when the newest one of this job
// may not be used (an older one would lose work); the message says what to do, and the reason is kConfigurationChanged
// when the job's flags differ from its checkpoint's. Or the error of a checkpoint that may not be passed over.
Result<ResumeCandidates> resume_candidates(FileSystem& fs, const std::string& folder, const RunIdentity& identity);

// Renames `path`, the checkpoint of a step, to a free stale name, and returns the new path.
Result<std::string> move_aside(FileSystem& fs, const std::string& path, int64_t step, const CheckpointStamp& stamp);
// For ResumePolicy::kNever: renames checkpoints that this job did not write to stale names, except those of a job with
// another name, which may still be running. Returns the old paths.
Result<std::vector<std::string>> move_others_aside(FileSystem& fs, const std::string& folder,
                                                   const RunIdentity& identity, const CheckpointStamp& stamp);

struct NewestComplete {
  std::optional<CheckpointEntry> entry;  // nullopt: there is none
  std::vector<PassedOver> passed_over;   // newer ones, with the reason
};
// The newest complete checkpoint of any run, verified; for `lockstep ckpt`. Error: that of a newer checkpoint that may
// not be passed over.
Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder);
// The newest complete checkpoint of this run, verified. Errors: those of resume_candidates; kCorrupt when the run has
// checkpoints but all are damaged.
Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder, const RunIdentity& identity);
// "every checkpoint in … is damaged: …": the error of the above, for a reader that verifies while it loads.
Error all_damaged(const std::string& folder, const std::vector<PassedOver>& passed_over);

// Removes the checkpoints that `retention` does not keep, of the run of `identity` only (nullopt: of any run), and
// returns their paths. Each is renamed to a temporary name first, so that a crash leaves no partial checkpoint under a
// final name.
Result<std::vector<std::string>> prune_checkpoints(FileSystem& fs, const std::string& folder,
                                                   const Retention& retention, const CheckpointStamp& stamp,
                                                   const std::optional<RunIdentity>& identity);

// Removes temporary files and folders of `stamp` or older, which a crash left behind. Those of newer writers may be in
// use. An older writer may still run, too: each is renamed to a temporary name of `stamp` first, so that its writer can
// neither add to it meanwhile nor publish what is left of it. What cannot be removed stays until the next start.
// Error: that of listing the folder.
Status remove_leftovers(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp);

}  // namespace lockstep
