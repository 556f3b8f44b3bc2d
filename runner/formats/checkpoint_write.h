// The write protocol of one checkpoint (architecture §6), without torch and without threads.
//
//   .tmp-r<run>-g<generation>-step-N/: each file written and fsynced, state.json last, the directory fsynced
//   → looked for newer writers → an existing step-N moved aside → renamed → parent fsynced → `latest` replaced → pruned
// Whatever call fails or is the last one ever made, the older checkpoints stay whole, and step-N is whole or not there.
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
  ResumePolicy resume = ResumePolicy::kSameConfig;  // whether retention counts an earlier TrainJob's checkpoints
};

struct WrittenCheckpoint {
  std::string path;
  uint64_t bytes = 0;          // written
  bool kept_existing = false;  // this step of this lineage was there, complete
  std::string moved_aside;     // where an existing folder of that step went; empty = there was none
  std::vector<std::string> pruned;
  std::string housekeeping_error;  // the checkpoint is durable, but `latest` or pruning failed; else empty
};

// Makes the folder, proves with a probe file that it can be written, and removes leftovers of `stamp` or older.
// kUnavailable: "… is not writable: …".
Status prepare_checkpoint_folder(FileSystem& fs, const std::string& folder, const CheckpointStamp& stamp);

// Errors: kUnavailable (full, read-only; nothing new stays behind), kConflict (a newer writer took over).
Result<WrittenCheckpoint> write_checkpoint(FileSystem& fs, const CheckpointWrite& request);

}  // namespace lockstep
