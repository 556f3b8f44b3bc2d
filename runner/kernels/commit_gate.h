// CommitGate: the moment a step's new state counts, on the device. (architecture §3, "One commit per step")
//
// Role: on CUDA the optimizer's kernels are queued behind an all-reduce that an abort leaves half-written. pass() puts
// a kernel between them that reads, at its own time, whether the host has shut the gate: shut, it says "skip" to every
// kernel that changes state (they obey found_inf already); open, it counts the step. After an abort the host waits for
// the stream and reads how many steps were let through: those are the committed ones.
// The host may believe for some steps that they were committed: the count that pass() returns travels with a step's
// figures and tells (loop/train_step).
// On the CPU the gate does the same, at once.
// Threads: pass() and committed() by the training thread; shut() from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace lockstep {

class CommitGate {
 public:
  explicit CommitGate(const at::Device& device);
  ~CommitGate();
  CommitGate(const CommitGate&) = delete;
  CommitGate& operator=(const CommitGate&) = delete;

  struct Passed {
    at::Tensor skip;       // fp32, one element: found_inf, or 1 where the gate is shut
    at::Tensor committed;  // fp64, one element: the count after this step, which stays as it was where the gate is shut
  };
  // found_inf: fp32, one element, on the device.
  Passed pass(const at::Tensor& found_inf);

  // From now on nothing is committed, whatever is queued.
  void shut();
  void open();
  // Steps let through since the gate was made. Waits for the current stream.
  [[nodiscard]] int64_t committed() const;

 private:
  struct Device;
  std::unique_ptr<Device> device_;  // null on the CPU
  int64_t committed_on_host_ = 0;
  std::atomic<bool> shut_on_host_{false};
};

namespace commit_gate_detail {

// skip[0] = max(found_inf[0], *shut != 0); *committed += 1 where the gate is open. `shut` is mapped host memory.
void pass_cuda(const at::Tensor& found_inf, const at::Tensor& skip, const volatile int* shut,
               const at::Tensor& committed);
// Host memory that the device reads; *on_device is its address there.
int* allocate_mapped(const int** on_device);
void free_mapped(int* memory);

}  // namespace commit_gate_detail
}  // namespace lockstep
