// What the kernels that work on quads (quads.cuh) need of a tensor.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace lockstep {

inline constexpr int64_t kQuad = 4;

// The types of launch_for.
inline bool has_quad_type(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

inline bool starts_quads(const at::Tensor& x) { return x.storage_offset() % kQuad == 0; }

// Contiguous, on a GPU at an address where quads can be loaded.
inline at::Tensor in_a_row(const at::Tensor& x) {
  return x.is_cuda() && x.is_contiguous() && !starts_quads(x) ? x.clone() : x.contiguous();
}

}  // namespace lockstep
