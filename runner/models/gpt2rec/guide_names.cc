#include "runner/models/gpt2rec/guide_names.h"

#include <string>
#include <string_view>
#include <utility>

#include "runner/models/gpt2rec/peft_adapter.h"

namespace lockstep {
namespace {

constexpr std::string_view kGpt2 = "gpt2.";
constexpr std::string_view kWrapped = "base_model.model.";
constexpr char kTokenTable[] = "wte.weight";

// "h.0.ln_1.weight" → "gpt2.base_model.model.transformer.h.0.ln_1.weight"
std::string guide_name_of_gpt2(const std::string& name) {
  const std::string in_peft = peft_state_name(name);
  return std::string(kGpt2) + std::string(kWrapped) + "transformer." + in_peft.substr(kWrapped.size());
}

}  // namespace

TorchTree guide_state_dict(const RecommenderModel& model, const TextEncoder& encoder, uint64_t seed) {
  NamedTensors all;
  for (const NamedTensor& weight : encoder.weights()) {
    all.push_back({guide_name_of_gpt2(weight.name), weight.tensor});
    if (weight.name == kTokenTable)
      all.push_back({std::string(kGpt2) + std::string(kWrapped) + "lm_head.weight", weight.tensor});
  }
  for (const NamedTensor& adapter : encoder.adapters()) {
    all.push_back({guide_name_of_gpt2(adapter.name), adapter.tensor});
  }
  all.insert(all.end(), model.parameters().begin(), model.parameters().end());
  for (const NamedTensor& tensor : model.unused(seed)) all.push_back(tensor);
  TorchTree tree;
  tree.root = std::get<PickleDict>(tree.value(all).value);
  return tree;
}

}  // namespace lockstep
