// CUDA implementation: torch's loop over a list of tensors, which launches one kernel for many of them.
#include <ATen/native/cuda/MultiTensorApply.cuh>

#include "runner/base/check.h"
#include "runner/kernels/moving_average.h"
#include "runner/kernels/quads.cuh"

namespace lockstep::moving_average_detail {
namespace {

struct MoveAverages {
  // One block: a chunk of one tensor. The lists are averages and values.
  __device__ void operator()(int64_t chunk_size, at::native::TensorListMetadata<2>& lists, const float* weight) const {
    const int tensor = lists.block_to_tensor[blockIdx.x];
    const int64_t first = lists.block_to_chunk[blockIdx.x] * chunk_size;
    const int64_t count = min(chunk_size, lists.numel_for_tensor[tensor] - first);
    float* const average = static_cast<float*>(const_cast<void*>(lists.addresses[0][tensor])) + first;
    const float* const value = static_cast<const float*>(lists.addresses[1][tensor]) + first;
    const float by = *weight;
    const bool is_aligned = at::native::is_aligned(average) && at::native::is_aligned(value);
    const int64_t quads = is_aligned ? count / 4 : 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < quads; i += blockDim.x) {
      const float4 before = load_quad(average, i);
      store_quad(average, i, before + (load_quad(value, i) - before) * by);
    }
    for (int64_t i = quads * 4 + threadIdx.x; i < count; i += blockDim.x) average[i] += by * (value[i] - average[i]);
  }
};

}  // namespace

void move_averages_cuda(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values,
                        const at::Tensor& weight) {
  for (size_t i = 0; i < averages.size(); ++i) {
    LOCKSTEP_CHECK(averages[i].scalar_type() == at::kFloat && values[i].scalar_type() == at::kFloat &&
                       averages[i].numel() == values[i].numel(),
                   "fp32 tensors of the same shapes");
  }
  std::vector<std::vector<at::Tensor>> lists = {averages, values};
  const c10::cuda::CUDAGuard guard(weight.device());
  at::native::multi_tensor_apply<2>(lists, MoveAverages(), weight.const_data_ptr<float>());
}

}  // namespace lockstep::moving_average_detail
