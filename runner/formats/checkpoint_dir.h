// The folder of a run's checkpoints: list, verify, choose, prune.
//
// Role: everything about the folder that needs no tensors; reader, writer and `lockstep ckpt` stand on it.
// Threads: functions; one writer per folder and stamp, any number of readers.
// Order: newer = higher (stamp, step). Complete = renamed and every sum right.
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

// A checkpoint that was not taken, and why.
struct PassedOver {
  std::string path;
  std::string reason;
};

// May an older checkpoint be taken for one with this error? Not for one of a newer format, nor for one that the volume
// does not give now, or whose reader was told to stop: to go on from an older one would lose work.
bool may_be_passed_over(const Error& error);

// All step folders, newest first; before them those without a readable state.json. Reads state.json and the files'
// sizes, not their content: what is whole here may still fail verify_checkpoint. A folder that does not exist is empty.
Result<std::vector<CheckpointEntry>> list_checkpoints(FileSystem& fs, const std::string& folder);

// The entry of one step folder, as in list_checkpoints.
CheckpointEntry inspect_checkpoint(FileSystem& fs, const std::string& path);

// Sums of every file. kCorrupt names the file; kInvalid: a newer format.
Status verify_checkpoint(FileSystem& fs, const std::string& path);

// kConflict when the folder holds a checkpoint of the same job (is_same_job) that a newer writer than `stamp` wrote: an
// old rank 0 that was cut off may come to a write when its successor has long written. What it holds is of the past.
Status check_none_is_newer(FileSystem& fs, const std::string& folder, const RunIdentity& identity,
                           const CheckpointStamp& stamp);

// The bytes of one file of a checkpoint, checked against its sum.
Result<std::string> read_checkpoint_file(FileSystem& fs, const CheckpointEntry& entry, const std::string& name);

// The checkpoints that a run may resume from, newest first, and those that it may not.
struct ResumeCandidates {
  std::vector<CheckpointEntry> entries;
  std::vector<PassedOver> passed_over;
};
// Errors: kConflict when the folder holds whole checkpoints of other runs only, or when the newest of this job's is not
// to be taken: an older one would lose work (names the ways out; with reason kConfigurationChanged where a job's flags
// differ from those of its checkpoint); that of one that may not be passed over.
Result<ResumeCandidates> resume_candidates(FileSystem& fs, const std::string& folder, const RunIdentity& identity);

// Gives `path`, the checkpoint of a step, a free stale name and returns that.
Result<std::string> move_aside(FileSystem& fs, const std::string& path, int64_t step, const CheckpointStamp& stamp);
// For ResumePolicy::kNever: what this job did not write gets stale names, but for what a job of another name wrote,
// which may live. Returns the paths that are free now.
Result<std::vector<std::string>> move_others_aside(FileSystem& fs, const std::string& folder,
                                                   const RunIdentity& identity, const CheckpointStamp& stamp);

struct NewestComplete {
  std::optional<CheckpointEntry> entry;  // nothing: there is none
  std::vector<PassedOver> passed_over;   // newer ones, with the reason
};
// Of any run, verified: for `lockstep ckpt`. The error of a newer one that may not be passed over.
Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder);
// Of this run, verified. Errors of resume_candidates; kCorrupt when the run has checkpoints but all are damaged.
Result<NewestComplete> newest_complete(FileSystem& fs, const std::string& folder, const RunIdentity& identity);
// "every checkpoint in … is damaged: …": the error of the above, for a reader that verifies while it loads.
Error all_damaged(const std::string& folder, const std::vector<PassedOver>& passed_over);

// Removes what `retention` lets go, of the run of `identity` only (nothing given: of any run), and returns the paths.
// Each is renamed to a temporary name first: a death leaves no half checkpoint under a real name.
Result<std::vector<std::string>> prune_checkpoints(FileSystem& fs, const std::string& folder,
                                                   const Retention& retention, const CheckpointStamp& stamp,
                                                   const std::optional<RunIdentity>& identity);

// Removes temporary things that a death left behind, of `stamp` or older. Those of newer writers are not ours.
Result<std::vector<std::string>> remove_leftovers(FileSystem& fs, const std::string& folder,
                                                  const CheckpointStamp& stamp);

}  // namespace lockstep
