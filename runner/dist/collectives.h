// Collectives the loop needs, on host figures and on tensors. All ranks call them in the same order.
// Threads: the training thread. Errors: throw (fault.h) when the group is broken.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

class DeviceStream;
class ProcessGroup;

// A running sum over ranks of a few fp64 figures on the host: weights, flags, losses. Deterministic for a fixed W.
class HostSums {
 public:
  // Starts the all-reduce and returns; forward runs meanwhile.
  HostSums(ProcessGroup& group, std::span<const double> values);
  ~HostSums();
  HostSums(HostSums&&) noexcept;
  HostSums& operator=(HostSums&&) noexcept;

  // Blocks until the sums are there. Once.
  std::vector<double> wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sums right away.
std::vector<double> sum_over_ranks(ProcessGroup& group, std::span<const double> values);

// One row per rank, in rank order; all rows of equal length.
std::vector<std::vector<int64_t>> gather_over_ranks(ProcessGroup& group, std::span<const int64_t> values);

// On rank 0: what each rank has given, in rank order; elsewhere nothing. Each rank's bytes pass all ranks, one rank's
// at a time. `on_progress`: after each rank's.
std::vector<std::string> bytes_to_rank_zero(ProcessGroup& group, std::string mine,
                                            const std::function<void()>& on_progress);

// Overwrites `tensor` on every rank with that of `source`.
void broadcast(ProcessGroup& group, at::Tensor& tensor, int source);

void barrier(ProcessGroup& group);

// Throws (kPeerLost) when the group was cut: what its device has done since may be half done.
void refuse_when_cut(const ProcessGroup& group);
// Returns when the device has done what was queued so far, and all of it counts. Throws when the group was cut.
void wait_for_device(const ProcessGroup& group, DeviceStream& device);
// Before a group is dropped according to plan: no rank takes its connections down while the device of another one still
// uses them.
void wait_for_all_devices(ProcessGroup& group, DeviceStream& device);

}  // namespace lockstep
