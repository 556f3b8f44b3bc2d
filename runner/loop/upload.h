// Upload: the tensors of a batch on their way to the device, on a stream of their own, beside the kernels of the batch
// before it.
//
// Role: between a fetched batch and the forward that takes it. One batch is on its way at most: device memory holds one
// micro-batch more than a step computes with. On the CPU there is nothing to copy.
// Threads: the training thread. Errors: throws what torch and the workload throw.
#pragma once

#include <optional>

#include "runner/models/workload.h"
#include "runner/tensor/side_stream.h"

namespace lockstep {

class Upload {
 public:
  // `workload` outlives it.
  Upload(const Workload& workload, at::Device device);

  // Queues the copy, and returns. It takes the place of one that was begun before and not taken.
  void begin(const HostBatch& batch, const BatchShare& share);
  // The share's batch, which what is queued from now on may use; copied here when it was not begun.
  DeviceBatch take(const HostBatch& batch, const BatchShare& share);

 private:
  const Workload& workload_;
  at::Device device_;
  std::optional<SideStream> copies_;  // not on the CPU
  std::optional<DeviceBatch> begun_;
};

}  // namespace lockstep
