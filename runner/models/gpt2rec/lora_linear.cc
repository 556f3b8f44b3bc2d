#include "runner/models/gpt2rec/lora_linear.h"

#include <ATen/ATen.h>

#include "runner/layers/initial_values.h"

namespace lockstep {

LoraLinear make_lora_linear(int64_t in, int64_t out, const LoraOptions& options, at::Device device) {
  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  return {.weight = at::zeros({in, out}, fp32),
          .bias = at::zeros({out}, fp32),
          .lora_A = trained({options.rank, in}, device),
          .lora_B = trained({out, options.rank}, device)};
}

at::Tensor apply(const LoraLinear& layer, double scale, const at::Tensor& x, Dropouts& dropouts) {
  const at::Tensor low_SR = at::linear(dropouts(x), layer.lora_A);
  const at::Tensor out = at::addmm(layer.bias, x, layer.weight);
  // Added in place, which autocast does not cast for.
  return out.addmm_(low_SR, layer.lora_B.t().to(out.scalar_type()), 1.0, scale);
}

}  // namespace lockstep
