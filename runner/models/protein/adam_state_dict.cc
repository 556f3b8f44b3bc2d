#include "runner/models/protein/adam_state_dict.h"

#include <algorithm>
#include <string>

#include "runner/base/check.h"

namespace lockstep {

PickleDict adam_state_dict(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, TorchTree& tree) {
  const auto tensor_named = [&](const std::string& name) -> const at::Tensor& {
    const auto found = std::find_if(state.optimizer.begin(), state.optimizer.end(),
                                    [&](const NamedTensor& tensor) { return tensor.name == name; });
    LOCKSTEP_CHECK(found != state.optimizer.end(), "the optimizer has a state for each parameter");
    return found->tensor;
  };
  PickleDict moments;
  PickleList names;
  for (const NamedTensor& parameter : parameters) {
    const PickleDict of_parameter = {{"step", tree.value(tensor_named("step"))},
                                     {"exp_avg", tree.value(tensor_named("exp_avg." + parameter.name))},
                                     {"exp_avg_sq", tree.value(tensor_named("exp_avg_sq." + parameter.name))}};
    moments.emplace_back(parameter.name, PickleValue{of_parameter});
    names.push_back({parameter.name});
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
