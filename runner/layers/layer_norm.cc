#include "runner/layers/layer_norm.h"

#include <ATen/ATen.h>

#include "runner/layers/initial_values.h"

namespace lockstep {

at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  constexpr double kEps = 1e-5;
  return at::layer_norm(x, weight.sizes(), weight, bias, kEps);
}

LayerNorm trained_layer_norm(int64_t d, at::Device device) {
  return {.weight = trained({d}, device), .bias = trained({d}, device)};
}

void add_layer_norm(NamedTensors& list, const std::string& name, const LayerNorm& norm) {
  list.push_back({name + ".weight", norm.weight});
  list.push_back({name + ".bias", norm.bias});
}

}  // namespace lockstep
