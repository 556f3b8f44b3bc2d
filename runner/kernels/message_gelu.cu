// CUDA implementation: one block per node. Each of its threads computes some of the D values and loops over the node's
// neighbours, so that sums over the neighbours need no atomics and are the same in every run.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "runner/kernels/message_gelu.h"
#include "runner/kernels/quads.cuh"

namespace lockstep::message_gelu_detail {
namespace {

constexpr int64_t kThreadsMax = 256;
constexpr int64_t kWarp = 32;

__device__ float normal_cdf(float x) { return 0.5F * (1.0F + erff(x * 0.70710678F)); }  // Φ(x)
__device__ float gelu(float x) { return x * normal_cdf(x); }
// The derivative of gelu: Φ(x) + x φ(x).
__device__ float slope(float x) { return normal_cdf(x) + x * 0.39894228F * expf(-0.5F * x * x); }

template <typename T>
__global__ void sum_forward_kernel(Sizes sizes, T* edges, const T* own, const T* table, const int64_t* rows, T* out) {
  const int64_t node = blockIdx.x;
  for (int64_t d = threadIdx.x; d < sizes.width; d += blockDim.x) {
    const auto of_node = static_cast<float>(own[node * sizes.width + d]);
    for (int64_t e = node * sizes.neighbours; e < (node + 1) * sizes.neighbours; ++e) {
      const int64_t at = e * sizes.width + d;
      const float sum = static_cast<float>(edges[at]) + of_node + static_cast<float>(table[rows[e] * sizes.width + d]);
      edges[at] = static_cast<T>(sum);
      out[at] = static_cast<T>(gelu(sum));
    }
  }
}

template <typename T>
__global__ void sum_backward_kernel(Sizes sizes, const T* grad_out, const T* sum, T* grad_sum, T* grad_own) {
  const int64_t node = blockIdx.x;
  for (int64_t d = threadIdx.x; d < sizes.width; d += blockDim.x) {
    float of_node = 0.0F;
    for (int64_t e = node * sizes.neighbours; e < (node + 1) * sizes.neighbours; ++e) {
      const int64_t at = e * sizes.width + d;
      const float grad = static_cast<float>(grad_out[at]) * slope(static_cast<float>(sum[at]));
      grad_sum[at] = static_cast<T>(grad);
      of_node += grad;
    }
    grad_own[node * sizes.width + d] = static_cast<T>(of_node);
  }
}

// weights == nullptr: writes the GELU of each edge; otherwise their weighted sum over the neighbours.
template <typename T>
__global__ void bias_forward_kernel(Sizes sizes, const T* x, const T* bias, const float* weights, T* out) {
  const int64_t node = blockIdx.x;
  for (int64_t d = threadIdx.x; d < sizes.width; d += blockDim.x) {
    const auto of_all = static_cast<float>(bias[d]);
    float of_node = 0.0F;
    for (int64_t e = node * sizes.neighbours; e < (node + 1) * sizes.neighbours; ++e) {
      const int64_t at = e * sizes.width + d;
      const float value = gelu(static_cast<float>(x[at]) + of_all);
      if (weights == nullptr) {
        out[at] = static_cast<T>(value);
      } else {
        of_node += weights[e] * value;
      }
    }
    if (weights != nullptr) out[node * sizes.width + d] = static_cast<T>(of_node);
  }
}

template <typename T>
__global__ void bias_backward_kernel(Sizes sizes, const T* grad_out, const T* x, const T* bias, const float* weights,
                                     T* grad_x) {
  const int64_t node = blockIdx.x;
  for (int64_t d = threadIdx.x; d < sizes.width; d += blockDim.x) {
    const auto of_all = static_cast<float>(bias[d]);
    for (int64_t e = node * sizes.neighbours; e < (node + 1) * sizes.neighbours; ++e) {
      const int64_t at = e * sizes.width + d;
      const float grad = weights == nullptr ? static_cast<float>(grad_out[at])
                                            : weights[e] * static_cast<float>(grad_out[node * sizes.width + d]);
      grad_x[at] = static_cast<T>(grad * slope(static_cast<float>(x[at]) + of_all));
    }
  }
}

// One per node. launch_for is given a tensor that has values for each node, also where nodes have no neighbours.
unsigned blocks_of(const at::Tensor& x_NKD) { return static_cast<unsigned>(x_NKD.size(0)); }

unsigned threads_of(const at::Tensor& x_NKD) {
  return static_cast<unsigned>(std::min(kThreadsMax, (x_NKD.size(2) + kWarp - 1) / kWarp * kWarp));
}

const float* data_or_null(const at::Tensor& weights_NK) {
  return weights_NK.defined() ? weights_NK.const_data_ptr<float>() : nullptr;
}

}  // namespace

void sum_forward_cuda(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                      const at::Tensor& rows_NK, const at::Tensor& out_NKD) {
  launch_for(edges_NKD, [&]<typename T>(cudaStream_t stream) {
    sum_forward_kernel<<<blocks_of(edges_NKD), threads_of(edges_NKD), 0, stream>>>(
        sizes_of(edges_NKD), edges_NKD.mutable_data_ptr<T>(), own_ND.const_data_ptr<T>(), table_RD.const_data_ptr<T>(),
        rows_NK.const_data_ptr<int64_t>(), out_NKD.mutable_data_ptr<T>());
  });
}

void sum_backward_cuda(const at::Tensor& grad_NKD, const at::Tensor& sum_NKD, const at::Tensor& grad_sum_NKD,
                       const at::Tensor& grad_own_ND) {
  launch_for(grad_own_ND, [&]<typename T>(cudaStream_t stream) {
    sum_backward_kernel<<<blocks_of(sum_NKD), threads_of(sum_NKD), 0, stream>>>(
        sizes_of(sum_NKD), grad_NKD.const_data_ptr<T>(), sum_NKD.const_data_ptr<T>(),
        grad_sum_NKD.mutable_data_ptr<T>(), grad_own_ND.mutable_data_ptr<T>());
  });
}

void bias_forward_cuda(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK,
                       const at::Tensor& out) {
  launch_for(out, [&]<typename T>(cudaStream_t stream) {
    bias_forward_kernel<<<blocks_of(x_NKD), threads_of(x_NKD), 0, stream>>>(
        sizes_of(x_NKD), x_NKD.const_data_ptr<T>(), bias_D.const_data_ptr<T>(), data_or_null(weights_NK),
        out.mutable_data_ptr<T>());
  });
}

void bias_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x_NKD, const at::Tensor& bias_D,
                        const at::Tensor& weights_NK, const at::Tensor& grad_x_NKD) {
  launch_for(x_NKD, [&]<typename T>(cudaStream_t stream) {
    bias_backward_kernel<<<blocks_of(x_NKD), threads_of(x_NKD), 0, stream>>>(
        sizes_of(x_NKD), grad_out.const_data_ptr<T>(), x_NKD.const_data_ptr<T>(), bias_D.const_data_ptr<T>(),
        data_or_null(weights_NK), grad_x_NKD.mutable_data_ptr<T>());
  });
}

}  // namespace lockstep::message_gelu_detail
