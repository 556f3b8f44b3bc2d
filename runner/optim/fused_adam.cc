#include "runner/optim/fused_adam.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "runner/base/check.h"

namespace lockstep {

Adam::Adam(const std::vector<ParameterGroup>& groups, const AdamOptions& options) : options_(options) {
  const torch::NoGradGuard no_grad;
  for (const ParameterGroup& group : groups) {
    LOCKSTEP_CHECK(!group.parameters.empty(), "a group needs parameters");
    Group& made =
        groups_.emplace_back(Group{.group = group, .exp_avgs = {}, .exp_avg_sqs = {}, .step = {}, .is_frozen = false});
    for (const NamedTensor& parameter : group.parameters) {
      made.exp_avgs.push_back(torch::zeros_like(parameter.tensor));
      made.exp_avg_sqs.push_back(torch::zeros_like(parameter.tensor));
    }
    made.step = torch::zeros({}, group.parameters.front().tensor.options().dtype(torch::kFloat32).requires_grad(false));
  }
  LOCKSTEP_CHECK(!groups_.empty(), "an optimizer needs parameters");
}

void Adam::step(double lr, const at::Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  for (Group& g : groups_) {
    if (g.is_frozen) continue;
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
    for (const NamedTensor& parameter : g.group.parameters) {
      LOCKSTEP_CHECK(parameter.tensor.grad().defined(), parameter.name.c_str());
      values.push_back(parameter.tensor);
      gradients.push_back(parameter.tensor.grad());
    }
    // _fused_adam expects the counter after the increment; a skipped update must not count.
    g.step.add_(1).sub_(found_inf);
    const std::vector<at::Tensor> steps(values.size(), g.step);
    const double decay = g.group.weight_decay.value_or(options_.weight_decay);
    const auto update = [&](auto&& fused) {
      fused(values, gradients, g.exp_avgs, g.exp_avg_sqs, at::TensorList(), steps, lr * g.group.lr_factor,
            options_.beta1, options_.beta2, decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
            /*grad_scale=*/std::nullopt, found_inf);
    };
    if (options_.decoupled_weight_decay) {
      update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
  }
}

void Adam::freeze(const std::vector<std::string>& groups) {
  for (Group& g : groups_) g.is_frozen = std::find(groups.begin(), groups.end(), g.group.name) != groups.end();
}

NamedTensors Adam::state() const {
  NamedTensors state;
  for (const Group& g : groups_) {
    const NamedTensors& parameters = g.group.parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      state.push_back({"exp_avg." + parameters[i].name, g.exp_avgs[i]});
      state.push_back({"exp_avg_sq." + parameters[i].name, g.exp_avg_sqs[i]});
    }
    state.push_back({groups_.size() == 1 ? "step" : "step." + g.group.name, g.step});
  }
  return state;
}

}  // namespace lockstep
