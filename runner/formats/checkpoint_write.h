// The write protocol of one checkpoint, without torch and without threads.
//
//   .tmp-r<run>-g<generation>-step-N/: each file written and fsynced, state.json last, the directory fsynced
//   → checked that no newer generation has written → an existing step-N moved aside → renamed to step-N
//   → parent fsynced → `latest` replaced → old checkpoints pruned
// On a full volume (kNoSpace) one checkpoint more is pruned before the write is tried once more.
// If any call fails, or the process dies at any of them, older checkpoints stay intact, and step-N is complete or
// absent.
// Threads: one caller at a time per folder and stamp.
#pragma once

#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/retention.h"
#include "runner/formats/tensor_file.h"

namespace lockstep {

struct CheckpointTensors {
  std::string file;  // kModelFile, …
  std::vector<TensorView> tensors;
};

struct CheckpointWrite {
  std::string folder;
  CheckpointState state;  // `files` is filled in here
  std::vector<CheckpointTensors> tensors;
  Retention retention;
  ResumePolicy resume = ResumePolicy::kSameConfig;  // decides whether an earlier TrainJob's checkpoints are pruned, too
};

struct WrittenCheckpoint {
  std::string path;
  // Bytes written. 0: nothing had to be, because the folder of this step already held a complete checkpoint of the same
  // lineage, and it has the mark of the best and the evaluation that this one would have had.
  uint64_t bytes = 0;
  std::string moved_aside;  // new path of an existing folder of that step; empty = there was none
  std::vector<std::string> pruned;
  // A warning although the checkpoint is durable: room had to be made for it, or `latest` or pruning failed; else
  // empty.
  std::string housekeeping_error;
};

// Makes the folder, checks with a probe that a folder in it can be written and renamed, and removes temporary files of
// `stamp` or older. To be called while no write of this or an older stamp is in flight.
// kUnavailable: "… is not writable: …".
Status prepare_checkpoint_folder(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp);

// Errors: kUnavailable (full, read-only; temporary files are removed), kConflict (a newer generation has written).
Result<WrittenCheckpoint> write_checkpoint(FileSystem& fs, const CheckpointWrite& request);

}  // namespace lockstep
