// Upload: copies a batch's tensors to the device on a stream of their own, while the kernels of the batch before it
// run.
//
// Role: between a fetched batch and the forward that takes it. At most one batch is being copied, so device memory
// holds at most one micro-batch more than the one that is computed. On the CPU there is nothing to copy.
// It outlives a group: the allocator keeps freed memory for the stream that it was made on, so that a stream for each
// group would leave a batch's memory behind at each recovery.
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

  // Forgets a batch that was begun and not taken: a new group trains on other shares.
  void drop() { begun_.reset(); }
  // Queues the copy and returns at once. A batch that was begun before and not taken is dropped.
  void begin(const HostBatch& batch, const BatchShare& share);
  // The share's batch on the device. Work that is queued on the current stream from now on may use it. Begins the copy
  // here when begin() was not called for this share.
  DeviceBatch take(const HostBatch& batch, const BatchShare& share);

 private:
  const Workload& workload_;
  at::Device device_;
  std::optional<SideStream> copies_;  // not on the CPU
  std::optional<DeviceBatch> begun_;
};

}  // namespace lockstep
