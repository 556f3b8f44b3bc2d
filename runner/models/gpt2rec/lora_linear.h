// LoraLinear: a frozen linear layer and a trained one of low rank beside it (Hu et al., "LoRA: Low-Rank Adaptation of
// Large Language Models", 2021): y = x W + b + (alpha / rank) · dropout(x) Aᵀ Bᵀ.
//
// Threads: one. Shapes: S rows, R rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "runner/layers/dropouts.h"

namespace lockstep {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 32.0;
  double dropout = 0.1;  // on the adapter's input

  [[nodiscard]] double scale() const { return alpha / static_cast<double>(rank); }
};

struct LoraLinear {
  at::Tensor weight;  // [in, out], frozen
  at::Tensor bias;    // [out], frozen
  at::Tensor lora_A;  // [R, in]
  at::Tensor lora_B;  // [out, R]
};

LoraLinear make_lora_linear(int64_t in, int64_t out, const LoraOptions& options, at::Device device);
// x [S, in] → [S, out]
at::Tensor apply(const LoraLinear& layer, double scale, const at::Tensor& x, Dropouts& dropouts);

}  // namespace lockstep
