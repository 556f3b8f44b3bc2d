// Collectives on host figures and on tensors. All ranks call them in the same order.
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

// An asynchronous sum over ranks of a few fp64 figures on the host: weights, flags, losses. Each rank adds the figures
// of all ranks in the order of the ranks, so all get the same bits, whichever nodes the ranks are on.
class HostSums {
 public:
  // Starts the exchange and returns at once.
  HostSums(ProcessGroup& group, std::span<const double> values);
  ~HostSums();
  HostSums(HostSums&&) noexcept;
  HostSums& operator=(HostSums&&) noexcept;

  // Blocks until the sums have arrived. To be called once.
  std::vector<double> wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same, blocking.
std::vector<double> sum_over_ranks(ProcessGroup& group, std::span<const double> values);

// One row per rank, in rank order; all rows of equal length.
std::vector<std::vector<int64_t>> gather_over_ranks(ProcessGroup& group, std::span<const int64_t> values);

// Returns on rank 0 the bytes of each rank, in rank order; on other ranks an empty vector. The bytes go to rank 0 only,
// a piece of each rank at a time; `on_progress` is called after each.
std::vector<std::string> bytes_to_rank_zero(ProcessGroup& group, std::string mine,
                                            const std::function<void()>& on_progress);

// Sends consecutive parts of `sent` to the ranks, of sends[r] elements to rank r, and puts what comes from them into
// `received`, receives[r] elements from rank r. All ranks call it; with 0 they exchange no data.
void exchange_chunks(ProcessGroup& group, at::Tensor& received, std::vector<int64_t> receives, at::Tensor& sent,
                     std::vector<int64_t> sends);

// Overwrites `tensor` on every rank with that of `source`.
void broadcast(ProcessGroup& group, at::Tensor& tensor, int source);

void barrier(ProcessGroup& group);

// Throws (kPeerLost) when the group was cut, because results on the device may then be incomplete.
void refuse_when_cut(const ProcessGroup& group);
// Waits until the device has done what was queued so far. Throws when the group was cut, so after it returns the
// results are valid.
void wait_for_device(const ProcessGroup& group, DeviceStream& device);
// To be called before a group is dropped as planned: waits for the devices of all ranks, so that no rank closes its
// connections while another rank's device still uses them.
void wait_for_all_devices(ProcessGroup& group, DeviceStream& device);

}  // namespace lockstep
