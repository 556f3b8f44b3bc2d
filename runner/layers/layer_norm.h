// Layer norm (Ba et al., 2016), as torch.nn.LayerNorm has it.
//
// Threads: one. Shapes: D width.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

inline constexpr double kLayerNormEps = 1e-5;  // torch.nn.LayerNorm's default

struct LayerNorm {
  at::Tensor weight;  // [D]
  at::Tensor bias;    // [D]
  double eps = kLayerNormEps;

  // x [..., D]
  at::Tensor operator()(const at::Tensor& x) const;
};

// Trainable leaves of zeros.
LayerNorm trained_layer_norm(int64_t d, at::Device device, double eps = kLayerNormEps);
// Appends "<name>.weight" and "<name>.bias".
void add_layer_norm(NamedTensors& list, const std::string& name, const LayerNorm& norm);

}  // namespace lockstep
