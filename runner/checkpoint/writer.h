// CheckpointWriter: takes a copy of the state and makes it durable in the background; so it does with the files that a
// workload leaves beside the checkpoints.
//
// Role: rank 0's way to disk. stage() copies to host buffers that are kept (pinned for a device's tensors) and returns;
// a thread of its own ("ckpt-write") writes by the protocol of formats/checkpoint_write. One checkpoint and one output
// are in flight at most. An output that was staged before a checkpoint is written before it: whoever resumes from the
// checkpoint finds the files that the run had left by then.
// Fence: an old rank 0 that was cut off may live on beside its successor, on the same volume. Nothing is published once
// a newer generation has written a checkpoint (check_none_is_newer).
// Threads: all methods from one thread (the training thread). The destructor waits for the write in flight.
// Devices: the copies are queued on a stream of their own, so that the next step's forward and backward run beside
// them; the thread, not the caller, waits for them. Who is about to change a staged tensor says so: before_change().
// Errors: a failed write is a report with an Error; training may go on, the older checkpoints stay.
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
  double stall_seconds = 0.0;  // waiting for the write before
  double copy_seconds = 0.0;
};

struct CheckpointWriterOptions {
  std::string folder;
  RunIdentity run;
  Retention retention;
  at::Device device = at::kCPU;  // of the tensors that are staged
  // Called on the caller's thread while it waits for a write and the volume answers, several times a second.
  std::function<void()> on_progress = [] {};
};

class CheckpointWriter {
 public:
  // `fs` outlives the writer.
  CheckpointWriter(FileSystem& fs, CheckpointWriterOptions options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // At the start of each generation: the folder is made, proved writable and rid of leftovers. No write may be in
  // flight.
  Status prepare(const CheckpointStamp& stamp);

  // The host buffers that stage() fills; `content` needs no state. Called before the first step: to pin memory takes
  // about a second per 4 GB, during which the device would stand still at the first checkpoint, and a machine that
  // lacks the memory shows it at the start. Throws what torch throws.
  void make_buffers(const CheckpointContent& content);
  StageCost stage(const CheckpointContent& content);
  // The tensors that were staged last may be changed by what is queued from now on: the current stream of the device
  // waits for their copy; the host does not.
  void before_change();
  // A file of the run, by its name below the folder. Waits for the output before it; the caller, who may hold as much
  // memory as the state takes, waits first: wait_durable(…, Writes::kOutput).
  void stage_output(std::string name, OutputContent content);
  // True once nothing of the kind is in flight; what became of it is in the reports. `gives_up` is asked several times
  // a second; when it says yes, the wait ends with false, and the write goes on.
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
