// A linear layer with a bias, as torch.nn.Linear has it.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out]
  // What cast_together has made for the products, not differentiable; or undefined.
  at::Tensor cast_weight;
  at::Tensor cast_bias;

  // x [..., in] → [..., out]
  at::Tensor operator()(const at::Tensor& x) const;
  // For an operation that adds the bias itself.
  [[nodiscard]] at::Tensor without_bias(const at::Tensor& x) const;
};

// Trainable leaves of zeros.
Linear trained_linear(int64_t in, int64_t out, at::Device device);
// Appends "<name>.weight" and "<name>.bias".
void add_linear(NamedTensors& list, const std::string& name, const Linear& layer);

// Under autocast on a GPU: casts all weights and biases, fp32 and of that GPU, to the type of the products in one
// launch or a few; the products then give the gradients in fp32. Autocast by itself casts each parameter and each
// gradient in a launch of its own, and with hundreds of parameters these are a large part of a step. Elsewhere forgets
// what an earlier call has cast.
void cast_together(const std::vector<Linear*>& layers);

}  // namespace lockstep
