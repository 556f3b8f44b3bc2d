// ProcessGroup: the communicator of one generation, over Gloo (CPU, or CUDA tensors with --backend gloo) or NCCL.
//
// Role: made anew for each generation. After any failed collective its state is unknown and it must be dropped (gloo's
// rule). With NCCL, figures on the host (weights, flags) are reduced over a Gloo backend beside it, so that the host
// does not wait for the device.
// Threads: one training thread.
// Errors: forming returns Result; a collective of a broken group throws (see fault.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

#include "runner/base/result.h"
#include "runner/contract/messages.h"
#include "runner/link/group_abort.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace lockstep {

class StoreHandle;

enum class GroupBackend { kGloo, kNccl };
const char* to_string(GroupBackend backend);

struct GroupOptions {
  Assignment assignment;
  GroupBackend backend = GroupBackend::kGloo;
  at::Device device = at::Device(at::kCPU);
  std::chrono::milliseconds timeout{600'000};
  // GLOO_SOCKET_IFNAME, the first that can be used; empty: the assignment's address, and where that is empty, too,
  // loopback on one machine, else the host name's address.
  std::string network_interface;
  bool has_formed_before = false;     // this process has been in a group, so its interface and address can be used
  std::shared_ptr<GroupAbort> abort;  // may be null; made before the group is formed, retired before it is dropped
};

class ProcessGroup {
 public:
  // Connects all ranks of the assignment's group through `store`. Errors: kRetry (a peer is missing or left; this
  // machine's network or table of open files does not allow it now), kInvalid (gloo cannot listen where the options
  // say, and never could), kUnavailable (the backend cannot start; names rank, device, the backend's own message and
  // what to try).
  static Result<std::unique_ptr<ProcessGroup>> form(const StoreHandle& store, const GroupOptions& options);

  // One rank alone: every collective is the identity.
  static std::unique_ptr<ProcessGroup> solo(const GroupOptions& options);

  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return options_.assignment.rank; }
  [[nodiscard]] int world_size() const { return options_.assignment.world_size; }
  [[nodiscard]] bool is_solo() const;
  [[nodiscard]] const GroupOptions& options() const { return options_; }

  // For other files of runner/dist (reducer, collectives). Null when solo.
  [[nodiscard]] c10d::ProcessGroup* handle() const;

 private:
  struct Impl;
  ProcessGroup(GroupOptions options, std::unique_ptr<Impl> impl);

  GroupOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
