#include "runner/layers/linear.h"

#include <ATen/ATen.h>

#include "runner/layers/initial_values.h"

namespace lockstep {

at::Tensor Linear::operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }

Linear trained_linear(int64_t in, int64_t out, at::Device device) {
  return {.weight = trained({out, in}, device), .bias = trained({out}, device)};
}

void add_linear(NamedTensors& list, const std::string& name, const Linear& layer) {
  list.push_back({name + ".weight", layer.weight});
  list.push_back({name + ".bias", layer.bias});
}

}  // namespace lockstep
