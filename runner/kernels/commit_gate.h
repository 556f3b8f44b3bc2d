// CommitGate: decides on the device whether a step is committed.
//
// Role: on CUDA the optimizer's kernels are queued behind an all-reduce, whose result is garbage after an abort. pass()
// queues a kernel between them that reads, when it runs, whether the host has shut the gate. If so, it sets "skip" for
// every kernel that changes state (they honour found_inf anyway); if not, it counts the step. After an abort the host
// waits for the stream and reads how many steps were let through: these are the committed ones.
// Until then the host may count a step as done that the gate did not let through. So the count that pass() returns is
// part of each step's figures, and the host compares it when it reads them (loop/train_step).
// On the CPU the gate does the same immediately.
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
    at::Tensor skip;       // fp32, one element: found_inf, or 1 if the gate is shut
    at::Tensor committed;  // fp64, one element: the count after this step; unchanged if the gate is shut
  };
  // found_inf: fp32, one element, on the device.
  Passed pass(const at::Tensor& found_inf);

  // From now on no step is committed, not even those that are queued already.
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

// skip[0] = max(found_inf[0], *shut != 0); *committed += 1 if the gate is open. `shut` is mapped host memory.
void pass_cuda(const at::Tensor& found_inf, const at::Tensor& skip, const volatile int* shut,
               const at::Tensor& committed);
// Allocates host memory that the device can read; *on_device is its address on the device.
int* allocate_mapped(const int** on_device);
void free_mapped(int* memory);

}  // namespace commit_gate_detail
}  // namespace lockstep
