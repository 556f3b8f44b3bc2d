// Quads: four adjacent values of any type, which a thread loads at once and computes with in fp32.
//
// Threads: device code. Addresses are multiples of a quad's size.
#pragma once

#include <cstdint>

namespace lockstep {

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
