// The gate's kernel: one thread; see commit_gate.h.
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "runner/kernels/commit_gate.h"

namespace lockstep::commit_gate_detail {
namespace {

__global__ void pass(const float* found_inf, float* skip, const volatile int* shut, int64_t* committed) {
  const bool is_shut = *shut != 0;
  *skip = is_shut ? 1.0F : *found_inf;
  if (!is_shut) *committed += 1;
}

}  // namespace

void pass_cuda(const at::Tensor& found_inf, const at::Tensor& skip, const volatile int* shut,
               const at::Tensor& committed) {
  const c10::cuda::CUDAGuard guard(found_inf.device());
  pass<<<1, 1, 0, at::cuda::getCurrentCUDAStream()>>>(found_inf.const_data_ptr<float>(), skip.data_ptr<float>(), shut,
                                                      committed.data_ptr<int64_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

int* allocate_mapped(const int** on_device) {
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaHostAlloc(&memory, sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
  void* device_address = nullptr;
  C10_CUDA_CHECK(cudaHostGetDevicePointer(&device_address, memory, 0));
  *static_cast<int*>(memory) = 0;
  *on_device = static_cast<const int*>(device_address);
  return static_cast<int*>(memory);
}

void free_mapped(int* memory) { C10_CUDA_CHECK_WARN(cudaFreeHost(memory)); }

}  // namespace lockstep::commit_gate_detail
