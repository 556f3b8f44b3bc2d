#include "runner/models/adam_state_dict.h"

#include <string>

#include "runner/base/check.h"

namespace lockstep {

PickleDict adam_state_dict(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, TorchTree& tree) {
  const auto find = [&](const auto& is_it) -> const at::Tensor* {
    for (const NamedTensor& tensor : state.optimizer) {
      if (is_it(tensor.name)) return &tensor.tensor;
    }
    return nullptr;
  };
  const auto find_name = [&](const std::string& wanted) {
    return find([&](const std::string& name) { return name == wanted; });
  };
  // Groups that are trained in the same steps have the same count.
  const at::Tensor* const step =
      find([](const std::string& name) { return name == "step" || name.starts_with("step."); });
  LOCKSTEP_CHECK(step != nullptr, "the optimizer counts its steps");
  PickleDict moments;
  PickleList names;
  for (const NamedTensor& parameter : parameters) {
    names.push_back({parameter.name});
    const at::Tensor* const exp_avg = find_name("exp_avg." + parameter.name);
    const at::Tensor* const exp_avg_sq = find_name("exp_avg_sq." + parameter.name);
    LOCKSTEP_CHECK((exp_avg == nullptr) == (exp_avg_sq == nullptr), "the optimizer has both moments of a parameter");
    if (exp_avg == nullptr) continue;
    const PickleDict of_parameter = {
        {"step", tree.value(*step)}, {"exp_avg", tree.value(*exp_avg)}, {"exp_avg_sq", tree.value(*exp_avg_sq)}};
    moments.emplace_back(parameter.name, PickleValue{of_parameter});
  }
  PickleList betas;
  betas.push_back({training.adam_beta1});
  betas.push_back({training.adam_beta2});
  const PickleDict group = {{"lr", {state.lr}},           {"betas", {betas}},
                            {"eps", {training.adam_eps}}, {"weight_decay", {training.weight_decay}},
                            {"amsgrad", {false}},         {"params", {names}}};
  return {{"state", {moments}}, {"param_groups", {PickleList{{group}}}}};
}

}  // namespace lockstep
