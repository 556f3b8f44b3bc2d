#include "runner/optim/fused_adam.h"

#include <torch/types.h>

#include <utility>

#include "runner/base/check.h"

namespace lockstep {

Adam::Adam(NamedTensors parameters, const AdamOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  LOCKSTEP_CHECK(!parameters_.empty(), "an optimizer needs parameters");
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters_) {
    exp_avgs_.push_back(torch::zeros_like(parameter.tensor));
    exp_avg_sqs_.push_back(torch::zeros_like(parameter.tensor));
  }
  step_ = torch::zeros({}, parameters_.front().tensor.options().dtype(torch::kFloat32).requires_grad(false));
}

void Adam::step(double lr, const at::Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& parameter : parameters_) {
    LOCKSTEP_CHECK(parameter.tensor.grad().defined(), parameter.name.c_str());
    values.push_back(parameter.tensor);
    gradients.push_back(parameter.tensor.grad());
  }
  // The operator reads the counter after its increment; a skipped update must not count.
  step_.add_(1).sub_(found_inf);
  const std::vector<at::Tensor> steps(parameters_.size(), step_);
  const auto update = [&](auto&& fused) {
    fused(values, gradients, exp_avgs_, exp_avg_sqs_, at::TensorList(), steps, lr, options_.beta1, options_.beta2,
          options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/std::nullopt,
          found_inf);
  };
  if (options_.decoupled_weight_decay) {
    update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

NamedTensors Adam::state() const {
  NamedTensors state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({"exp_avg." + parameters_[i].name, exp_avgs_[i]});
    state.push_back({"exp_avg_sq." + parameters_[i].name, exp_avg_sqs_[i]});
  }
  state.push_back({"step", step_});
  return state;
}

}  // namespace lockstep
