#include "runner/optim/grad_clip.h"

#include <torch/types.h>

#include <vector>

#include "runner/base/check.h"

namespace lockstep {

GradClipResult clip_gradients(const NamedTensors& parameters, const GradClipOptions& options) {
  constexpr double kNormEpsilon = 1e-6;  // as torch.nn.utils.clip_grad_norm_
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.tensor.grad().defined(), parameter.name.c_str());
    gradients.push_back(parameter.tensor.grad());
  }
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2, torch::kFloat32);
  const double unscale = 1.0 / options.loss_scale;
  at::Tensor norm = at::linalg_vector_norm(at::stack(norms)).mul_(unscale);

  if (options.max_norm > 0.0) {
    const at::Tensor factor = (options.max_norm / (norm + kNormEpsilon)).clamp_max_(1.0).mul_(unscale);
    // A CPU need not go through all gradients to multiply them by 1. Of a GPU the host would have to wait to know.
    if (!factor.is_cpu() || factor.item<float>() != 1.0F) at::_foreach_mul_(gradients, factor);
  } else if (unscale != 1.0) {
    at::_foreach_mul_(gradients, unscale);
  }
  return {.norm = norm, .found_inf = norm.isfinite().logical_not_().to(torch::kFloat32)};
}

}  // namespace lockstep
