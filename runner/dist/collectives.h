// Collectives the loop needs, on host figures and on tensors. All ranks call them in the same order.
// Threads: the training thread. Errors: throw (fault.h) when the group is broken.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

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

// Overwrites `tensor` on every rank with that of `source`.
void broadcast(ProcessGroup& group, at::Tensor& tensor, int source);

void barrier(ProcessGroup& group);

}  // namespace lockstep
