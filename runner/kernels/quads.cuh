// Quads: four adjacent values of any type, which a thread of a kernel loads at once and computes with in fp32; and the
// launch of a kernel for a tensor's type.
//
// Addresses of quads are multiples of a quad's size.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdint>

#include "runner/base/check.h"

namespace lockstep {

// Calls launch<type of x's values>(current stream of x's device), unless x is empty. x: fp32, bf16 or fp16.
template <typename Launch>
void launch_for(const at::Tensor& x, const Launch& launch) {
  if (x.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  switch (x.scalar_type()) {
    case at::kFloat:
      launch.template operator()<float>(stream);
      break;
    case at::kBFloat16:
      launch.template operator()<c10::BFloat16>(stream);
      break;
    default:
      LOCKSTEP_CHECK(x.scalar_type() == at::kHalf, "fp32, bf16 or fp16");
      launch.template operator()<c10::Half>(stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// How many blocks take all items. A grid's first dimension takes 2^31 - 1 of them, the others 65,535.
__host__ __device__ constexpr unsigned blocks_for(int64_t items, int64_t of_block) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Pack {
  T values[kCount];
};

template <typename T>
__device__ float4 load_quad(const T* row, int64_t quad) {
  const auto pack = reinterpret_cast<const Pack<T, 4>*>(row)[quad];
  return {static_cast<float>(pack.values[0]), static_cast<float>(pack.values[1]), static_cast<float>(pack.values[2]),
          static_cast<float>(pack.values[3])};
}

template <typename T>
__device__ void store_quad(T* row, int64_t quad, float4 x) {
  reinterpret_cast<Pack<T, 4>*>(row)[quad] = {static_cast<T>(x.x), static_cast<T>(x.y), static_cast<T>(x.z),
                                              static_cast<T>(x.w)};
}

inline __device__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
inline __device__ float4 operator-(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
inline __device__ float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
inline __device__ float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
inline __device__ float total(float4 a) { return (a.x + a.y) + (a.z + a.w); }

}  // namespace lockstep
