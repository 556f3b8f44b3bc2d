#include "runner/models/gpt2rec/guide_names.h"

#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kWrapped = "gpt2.base_model.model.";
constexpr std::string_view kTokenTable = "wte.weight";

}  // namespace

std::string guide_name_of_gpt2(const std::string& name) {
  std::string text = name;
  const auto put_in = [&](std::string_view before, std::string_view what) {
    const size_t at = text.rfind(before);
    if (at != std::string::npos) text.insert(at, what);
  };
  if (name.find(".lora_") != std::string::npos) {
    put_in(".weight", ".default");
  } else if (name.find(".c_attn.") != std::string::npos || name.find(".c_proj.") != std::string::npos) {
    put_in(name.ends_with(".bias") ? ".bias" : ".weight", ".base_layer");
  }
  return std::string(kWrapped) + "transformer." + text;
}

TorchTree guide_state_dict(const RecommenderModel& model, const TextEncoder& encoder, uint64_t seed) {
  NamedTensors all;
  for (const NamedTensor& weight : encoder.weights()) {
    all.push_back({guide_name_of_gpt2(weight.name), weight.tensor});
    if (weight.name == kTokenTable) all.push_back({std::string(kWrapped) + "lm_head.weight", weight.tensor});
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
