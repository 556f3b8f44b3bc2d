#include "runner/layers/layer_norm.h"

#include <ATen/ATen.h>

#include "runner/layers/initial_values.h"

namespace lockstep {

at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

LayerNorm trained_layer_norm(int64_t d, at::Device device, double eps) {
  return {.weight = trained({d}, device), .bias = trained({d}, device), .eps = eps};
}

void add_layer_norm(NamedTensors& list, const std::string& name, const LayerNorm& norm) {
  list.push_back({name + ".weight", norm.weight});
  list.push_back({name + ".bias", norm.bias});
}

}  // namespace lockstep
