// CUDA implementation of the dropout kernel: one thread draws one Philox block, four elements of one sample.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <type_traits>

#include "runner/base/philox.h"
#include "runner/kernels/dropout.h"

namespace lockstep::dropout_detail {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 65536;  // with more work each thread loops

template <typename T>
__global__ void draw_and_apply(const T* x, uint8_t* mask, T* out, int64_t samples, int64_t n, MaskPlan plan) {
  const int64_t quads = (n + 3) / 4;  // Philox blocks of one sample
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < samples * quads;
       index += stride) {
    const int64_t sample = index / quads;
    const int64_t quad = index % quads;
    const bool is_row = plan.samples != nullptr;
    const uint32_t slot =
        is_row ? static_cast<uint32_t>(plan.samples[sample]) : plan.first_slot + static_cast<uint32_t>(sample);
    const int64_t block = is_row ? plan.parts[sample] * quads + quad : quad;
    const PhiloxStream stream{plan.seed, plan.purpose, plan.step, slot};
    const Philox4 words = stream.block(static_cast<uint32_t>(block));
    for (int i = 0; i < 4 && quad * 4 + i < n; ++i) {
      const int64_t at = sample * n + quad * 4 + i;
      const bool is_zero = plan.of_relu && static_cast<float>(x[at]) <= 0.0F;  // NaN stays
      const bool keep = words.x[i] >= plan.drop_below && !is_zero;
      mask[at] = keep ? 1 : 0;
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      out[at] = keep ? static_cast<T>(static_cast<Wide>(x[at]) * static_cast<Wide>(plan.scale)) : static_cast<T>(0);
    }
  }
}

}  // namespace

void draw_and_apply_cuda(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan) {
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t samples = x.size(0);
  const int64_t n = x.numel() / samples;
  const int64_t blocks = std::min(kBlocksMax, (samples * ((n + 3) / 4) + kThreads - 1) / kThreads);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "lockstep_dropout", [&] {
    draw_and_apply<scalar_t><<<static_cast<unsigned>(blocks), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.const_data_ptr<scalar_t>(), mask.data_ptr<uint8_t>(), out.data_ptr<scalar_t>(), samples, n, plan);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace lockstep::dropout_detail
