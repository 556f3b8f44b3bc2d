#include "runner/layers/linear.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <optional>

#include "runner/kernels/column_sums.h"
#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x · cast_weightᵀ + cast_bias; the gradients of the fp32 parameters come without a cast.
class CastLinearFunction : public torch::autograd::Function<CastLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& bias, const Linear& layer) {
    context->save_for_backward({x, layer.cast_weight});
    context->saved_data["has_bias"] = bias.has_value();
    return at::linear(x, layer.cast_weight, bias.has_value() ? std::optional(layer.cast_bias) : std::nullopt);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad_RO = grads[0].reshape({-1, weight.size(0)});
    return {context->needs_input_grad(0) ? at::mm(grad_RO, weight).view(x.sizes()) : at::Tensor(),
            at::mm(grad_RO.t(), x.reshape({-1, weight.size(1)}), at::kFloat),
            context->saved_data["has_bias"].toBool() ? column_sums(grad_RO) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (!cast_weight.defined()) return at::linear(x, weight, bias);
  return CastLinearFunction::apply(x.to(cast_weight.scalar_type()), weight, std::optional(bias), *this);
}

at::Tensor Linear::without_bias(const at::Tensor& x) const {
  if (!cast_weight.defined()) return at::linear(x, weight);
  return CastLinearFunction::apply(x.to(cast_weight.scalar_type()), weight, std::optional<at::Tensor>(), *this);
}

Linear trained_linear(int64_t in, int64_t out, at::Device device) {
  return {.weight = trained({out, in}, device), .bias = trained({out}, device)};
}

void add_linear(NamedTensors& list, const std::string& name, const Linear& layer) {
  list.push_back({name + ".weight", layer.weight});
  list.push_back({name + ".bias", layer.bias});
}

void cast_together(const std::vector<Linear*>& layers) {
  for (Linear* layer : layers) {
    layer->cast_weight.reset();
    layer->cast_bias.reset();
  }
  if (layers.empty() || !layers.front()->weight.is_cuda() || !at::autocast::is_autocast_enabled(at::kCUDA)) return;
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCUDA);
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> given;
  std::vector<at::Tensor> cast;
  const auto add = [&](const at::Tensor& parameter) {
    given.push_back(parameter);
    return cast.emplace_back(at::empty_like(parameter, parameter.options().dtype(type).requires_grad(false)));
  };
  for (Linear* layer : layers) {
    layer->cast_weight = add(layer->weight);
    layer->cast_bias = add(layer->bias);
  }
  at::_foreach_copy_(cast, given);
}

}  // namespace lockstep
