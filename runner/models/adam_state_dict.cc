#include "runner/models/adam_state_dict.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/base/check.h"

namespace lockstep {
namespace {

bool is_count(const std::string& name) { return name == "step" || name.starts_with("step."); }

const PickleValue* value_in(const PickleDict* dict, const std::string& name) {
  if (dict == nullptr) return nullptr;
  const auto found = std::find_if(dict->begin(), dict->end(), [&](const auto& entry) { return entry.first == name; });
  return found == dict->end() ? nullptr : &found->second;
}

const PickleDict* dict_in(const PickleDict* dict, const std::string& name) {
  const PickleValue* const value = value_in(dict, name);
  return value == nullptr ? nullptr : std::get_if<PickleDict>(&value->value);
}

std::optional<at::Tensor> copied(const PickleValue* value) {
  const auto* const view = value == nullptr ? nullptr : std::get_if<TensorView>(&value->value);
  if (view == nullptr) return std::nullopt;
  return tensors_of({*view}).front().tensor;
}

// Newer torch stores the step count as a tensor, older torch as a number.
std::optional<at::Tensor> count_of(const PickleValue* value) {
  if (value == nullptr) return std::nullopt;
  if (const auto* const whole = std::get_if<int64_t>(&value->value)) {
    return at::full({}, static_cast<double>(*whole), at::kFloat);
  }
  const std::optional<at::Tensor> tensor = copied(value);
  return tensor && tensor->numel() == 1 ? std::optional(tensor->reshape({}).to(at::kFloat)) : std::nullopt;
}

bool holds(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const NamedTensor& tensor) { return tensor.name == name; });
}

// For each tensor of the model, the key of its state in the optimizer's dict: its name, or the number that torch's
// optimizer gave it; "" for a tensor that is not trained.
Result<std::vector<std::string>> keys_of(const PickleDict* moments, const NamedTensors& model,
                                         const NamedTensors& state) {
  std::vector<std::string> keys;
  for (const NamedTensor& tensor : model) keys.push_back(tensor.name);
  std::vector<std::string> numbers;
  if (moments != nullptr) {
    for (const auto& [key, of_parameter] : *moments) {
      if (key.find_first_not_of("0123456789") == std::string::npos) numbers.push_back(key);
    }
  }
  if (numbers.empty()) return keys;
  // Torch has no state for a parameter without gradient, so these are the numbers of the trained ones, in the model's
  // order; whether the optimizer lists the others, too, does not matter.
  std::sort(numbers.begin(), numbers.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  const auto is_trained = [&](const std::string& name) { return holds(state, "exp_avg." + name); };
  const auto trained = static_cast<size_t>(std::count_if(keys.begin(), keys.end(), is_trained));
  if (numbers.size() != trained) {
    return Error{ErrorCode::kInvalid, "the optimizer has moments of " + std::to_string(numbers.size()) +
                                          " parameters and the model trains " + std::to_string(trained) +
                                          ": they do not belong together"};
  }
  size_t used = 0;
  for (std::string& key : keys) key = is_trained(key) ? numbers[used++] : "";
  return keys;
}

}  // namespace

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
  // One group's step count stands for all: groups that are trained in the same steps have the same count.
  const at::Tensor* const step = find(is_count);
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

Result<NamedTensors> adam_tensors(const PickleDict& optimizer, const NamedTensors& model, const NamedTensors& state) {
  const PickleDict* const moments = dict_in(&optimizer, "state");
  TRY_ASSIGN(const std::vector<std::string> keys, keys_of(moments, model, state));
  NamedTensors tensors;
  std::optional<at::Tensor> steps;
  for (size_t i = 0; i < model.size(); ++i) {
    const PickleDict* const own = dict_in(moments, keys[i]);
    for (const char* const moment : {"exp_avg", "exp_avg_sq"}) {
      const std::string wanted = std::string(moment) + "." + model[i].name;
      if (!holds(state, wanted)) continue;
      const std::optional<at::Tensor> found = copied(value_in(own, moment));
      if (!found) return Error{ErrorCode::kInvalid, "the optimizer's state has no " + wanted};
      tensors.push_back({wanted, *found});
    }
    if (!steps) steps = count_of(value_in(own, "step"));
  }
  if (!steps) return Error{ErrorCode::kInvalid, "the optimizer's state does not say how many steps it has made"};
  for (const NamedTensor& tensor : state) {
    if (is_count(tensor.name)) tensors.push_back({tensor.name, steps->clone()});
  }
  return tensors;
}

}  // namespace lockstep
