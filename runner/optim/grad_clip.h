// Clipping by global norm, unscaling and the finite check, all on the device.
// Threads: the training thread. Errors: what torch throws passes through to the train step.
#pragma once

#include <ATen/core/Tensor.h>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct GradClipOptions {
  double max_norm = 0.0;    // 0 = no clipping
  double loss_scale = 1.0;  // gradients are divided by it first (fp16)
};

struct GradClipResult {
  at::Tensor norm;       // fp32 scalar: global L2 norm of the unscaled gradients, before clipping
  at::Tensor found_inf;  // fp32 scalar: 1 when the norm is not finite, else 0
};

// Changes the gradients of `parameters` (all must be defined) in place as torch.nn.utils.clip_grad_norm_ does:
// g *= min(1, max_norm / (norm + 1e-6)). With max_norm 0 and loss_scale 1 nothing is changed, only measured.
// Called on reduced gradients, so that every rank finds the same.
GradClipResult clip_gradients(const NamedTensors& parameters, const GradClipOptions& options);

}  // namespace lockstep
