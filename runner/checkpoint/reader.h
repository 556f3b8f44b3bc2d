// Checkpoints and weight files → tensors.
//
// Role: resume (the newest complete checkpoint of this run, or a given one) and weights from other files. Tensors are
// returned on the CPU; those of a checkpoint lie in the memory of its file, so that rank 0 needs the state's size once.
// copy_tensors copies them to their destination. Threads: functions.
// Errors: kConflict (another run's: exit code 2), kInvalid (another model's, a newer format: exit code 2), kCorrupt and
// kUnavailable (exit code 4), kNotFound (a path that is not there: exit code 2).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/pickle_zip.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct LoadedCheckpoint {
  std::string path;
  CheckpointState state;
  NamedTensors model;
  NamedTensors optimizer;
  std::vector<std::pair<std::string, NamedTensors>> ema;
};

struct ResumeResult {
  std::optional<LoadedCheckpoint> checkpoint;  // nullopt: this run has none yet
  std::vector<PassedOver> passed_over;         // checkpoints that could not be used, for warnings
};

// The newest complete checkpoint of this run in `folder`; each file is read once and checked against its sum.
Result<ResumeResult> load_newest_checkpoint(FileSystem& fs, const std::string& folder, const RunIdentity& identity);

// --resume PATH: a step folder, or a folder of them (its newest complete one), whichever run wrote it.
Result<ResumeResult> load_checkpoint(FileSystem& fs, const std::string& path);

// Weights from .safetensors, .pt/.pth (state dict, plain or nested), a step folder or a folder of them. A prefix
// `module.` that all names have is removed.
Result<NamedTensors> load_weights(FileSystem& fs, const std::string& path);

// A torch.save file from which training can be resumed: a dict with the weights, the optimizer's state and numbers, as
// Workload::output or the Python program that it imitates writes it.
struct TrainingFile {
  NamedTensors model;
  TorchFile file;
  PickleDict optimizer;  // "optimizer_state_dict"
  Json fields;           // the other values by name: numbers and lists of numbers
};
// Errors (kInvalid): the file has no optimizer state; it holds weights only.
Result<TrainingFile> load_training_file(FileSystem& fs, const std::string& path);

// Copies by name. Both sides must have the same names, shapes and dtypes, in any order; otherwise nothing is copied,
// and kInvalid lists the first missing, unexpected and mismatched names. `what` names the source in the message
// ("model.safetensors of …").
Status copy_tensors(const NamedTensors& source, const NamedTensors& destination, const std::string& what);

}  // namespace lockstep
