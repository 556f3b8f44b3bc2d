// CheckpointWriter: copies the state and writes it as a checkpoint in the background. It also writes the files that a
// workload leaves beside the checkpoints (outputs).
//
// Role: rank 0 writes through it. stage() copies the tensors to host buffers that are kept from one checkpoint to the
// next (pinned memory when the tensors are on a GPU) and returns; a thread ("ckpt-write") writes them by the protocol
// of formats/checkpoint_write. At most one checkpoint and one output are in flight. An output that was staged before a
// checkpoint is written before it, so that a run that resumes from the checkpoint finds the outputs up to that step.
// Fencing: an old rank 0 that was cut off may still run beside its successor, with the same volume. Nothing is
// published once a newer generation has written a checkpoint (check_none_is_newer).
// Threads: all methods from one thread (the training thread). The destructor waits for the write in flight.
// Devices: the copies are queued on a stream of their own, so that the next step's forward and backward run meanwhile;
// the writing thread, not the caller, waits for them. Before the caller changes a staged tensor it calls
// before_change().
// Errors: a failed write is a report with an Error; training may go on, and the older checkpoints stay.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/checkpoint/weights.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/formats/checkpoint_write.h"
#include "runner/formats/retention.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// Tensors are read inside stage() only.
struct CheckpointContent {
  CheckpointState state;
  NamedTensors model;
  NamedTensors optimizer;
  std::vector<std::pair<std::string, NamedTensors>> ema;  // "" → ema.safetensors, NAME → ema-NAME.safetensors
};

struct WriteReport {
  int64_t step = 0;
  double seconds = 0.0;  // from stage() returning to durable
  WrittenCheckpoint written;
  std::optional<Error> error;
};

struct OutputReport {
  std::string name;
  std::optional<Error> error;
};

struct StageCost {
  double stall_seconds = 0.0;  // time spent waiting for the previous write
  double copy_seconds = 0.0;
};

struct CheckpointWriterOptions {
  std::string folder;
  RunIdentity run;
  Retention retention;
  at::Device device = at::kCPU;  // of the tensors that are staged
  // Called on the caller's thread several times a second while it waits for a write, but only if a file operation has
  // ended since the last call: a volume that hangs is no progress.
  std::function<void()> on_progress = [] {};
};

class CheckpointWriter {
 public:
  // `fs` outlives the writer.
  CheckpointWriter(FileSystem& fs, CheckpointWriterOptions options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Allocates the host buffers that stage() fills; `content.state` is not used. Called before the first step for two
  // reasons: pinning memory takes about a second per 4 GB, during which the device would idle at the first checkpoint;
  // and a machine with too little memory fails at the start. Throws what torch throws.
  void make_buffers(const CheckpointContent& content);
  StageCost stage(const CheckpointContent& content);
  // Makes the current stream of the device wait until the tensors that were staged last are copied; the host does not
  // wait. Work that is queued afterwards may change them.
  void before_change();
  // Queues a file of the run; `name` is its path below the folder, `stamp` the caller's. Waits for the previous output
  // to be written. Since `content` may be as large as the state, the caller should call wait_durable(…,
  // Writes::kOutput) before it makes it.
  void stage_output(std::string name, OutputContent content, const CheckpointStamp& stamp);
  // Waits until no write of these kinds is in flight, and returns true; the reports say whether they succeeded.
  // `gives_up` is called several times a second; when it returns true, the wait ends with false, and the write goes on.
  enum class Writes { kCheckpoint, kOutput, kAll };
  bool wait_durable(
      const std::function<bool()>& gives_up = [] { return false; }, Writes writes = Writes::kAll);
  // Writes that ended since the last call, in order.
  std::vector<WriteReport> poll_reports();
  std::vector<OutputReport> poll_output_reports();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
