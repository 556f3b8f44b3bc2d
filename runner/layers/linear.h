// A linear layer with a bias, as torch.nn.Linear has it.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out]

  // x [..., in] → [..., out]
  at::Tensor operator()(const at::Tensor& x) const;
};

// Trainable leaves of zeros.
Linear trained_linear(int64_t in, int64_t out, at::Device device);
// Appends "<name>.weight" and "<name>.bias".
void add_linear(NamedTensors& list, const std::string& name, const Linear& layer);

}  // namespace lockstep
