#include "runner/kernels/commit_gate.h"

#include <torch/types.h>

#include <atomic>

#include "runner/base/check.h"

namespace lockstep {

struct CommitGate::Device {
#if defined(LOCKSTEP_CUDA)
  explicit Device(const at::Device& device)
      : committed(torch::zeros({1}, torch::TensorOptions().device(device).dtype(torch::kInt64))),
        shut(commit_gate_detail::allocate_mapped(&shut_on_device)) {}
  ~Device() { commit_gate_detail::free_mapped(shut); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
#endif
  at::Tensor committed;
  const int* shut_on_device = nullptr;
  int* shut = nullptr;
};

CommitGate::CommitGate(const at::Device& device) {
  if (!device.is_cuda()) return;
#if defined(LOCKSTEP_CUDA)
  device_ = std::make_unique<Device>(device);
#else
  LOCKSTEP_CHECK(false, "a build without CUDA has no CUDA device");
#endif
}

CommitGate::~CommitGate() = default;

CommitGate::Passed CommitGate::pass(const at::Tensor& found_inf) {
  if (device_ == nullptr) {
    const bool is_shut = shut_on_host_.load();
    if (!is_shut) ++committed_on_host_;
    return {.skip = is_shut ? torch::ones_like(found_inf) : found_inf,
            .committed = torch::full({1}, static_cast<double>(committed_on_host_), torch::kFloat64)};
  }
  at::Tensor skip = torch::empty_like(found_inf);
#if defined(LOCKSTEP_CUDA)
  commit_gate_detail::pass_cuda(found_inf, skip, device_->shut_on_device, device_->committed);
#endif
  return {.skip = skip, .committed = device_->committed.to(torch::kFloat64)};  // a copy, queued behind the count
}

void CommitGate::shut() {
  shut_on_host_.store(true);
  if (device_ != nullptr) std::atomic_ref<int>(*device_->shut).store(1);
}

void CommitGate::open() {
  shut_on_host_.store(false);
  if (device_ != nullptr) std::atomic_ref<int>(*device_->shut).store(0);
}

int64_t CommitGate::committed() const {
  return device_ == nullptr ? committed_on_host_ : device_->committed.item<int64_t>();
}

}  // namespace lockstep
