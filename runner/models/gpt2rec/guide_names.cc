#include "runner/models/gpt2rec/guide_names.h"

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "runner/models/gpt2rec/peft_adapter.h"

namespace lockstep {
namespace {

constexpr std::string_view kGpt2 = "gpt2.";
constexpr char kTokenTable[] = "wte.weight";

// "h.0.ln_1.weight" → "gpt2.base_model.model.transformer.h.0.ln_1.weight"
std::string guide_name_of_gpt2(const std::string& name) {
  const std::string in_peft = peft_state_name(name);
  return std::string(kGpt2) + std::string(kPeftPrefix) + "transformer." + in_peft.substr(kPeftPrefix.size());
}

std::string head_name() { return std::string(kGpt2) + std::string(kPeftPrefix) + "lm_head.weight"; }

}  // namespace

TorchTree guide_state_dict(const RecommenderModel& model, const TextEncoder& encoder, uint64_t seed) {
  NamedTensors all;
  for (const NamedTensor& weight : encoder.weights()) {
    all.push_back({guide_name_of_gpt2(weight.name), weight.tensor});
    if (weight.name == kTokenTable) all.push_back({head_name(), weight.tensor});
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

Result<NamedTensors> without_guide_names(NamedTensors file, const RecommenderModel& model, const TextEncoder& encoder,
                                         bool trains_adapters) {
  std::map<std::string, at::Tensor> frozen;
  for (const NamedTensor& weight : encoder.weights()) frozen.emplace(guide_name_of_gpt2(weight.name), weight.tensor);
  frozen.emplace(head_name(), frozen.at(guide_name_of_gpt2(kTokenTable)));
  std::map<std::string, std::string> adapters;
  for (const NamedTensor& adapter : encoder.adapters()) {
    adapters.emplace(guide_name_of_gpt2(adapter.name), adapter.name);
  }
  std::set<std::string> unused;
  for (const NamedTensor& tensor : model.unused(/*seed=*/0)) unused.insert(tensor.name);
  NamedTensors ours;
  for (NamedTensor& tensor : file) {
    // Masks, which older versions of transformers save.
    if (tensor.name.ends_with(".attn.bias") || tensor.name.ends_with(".attn.masked_bias")) continue;
    const auto weight = frozen.find(tensor.name);
    const auto adapter = adapters.find(tensor.name);
    if (weight != frozen.end()) {
      const at::Tensor given = tensor.tensor.cpu();
      const at::Tensor here = weight->second.cpu();
      if (given.scalar_type() != here.scalar_type() || !at::equal(given, here)) {
        return Error{ErrorCode::kInvalid, tensor.name +
                                              " differs from the GPT-2 of this run: give the --gpt2_path or " +
                                              "--gpt2_config that it was trained with"};
      }
    } else if (adapter != adapters.end() && trains_adapters) {
      ours.push_back({adapter->second, std::move(tensor.tensor)});
    } else if (adapter != adapters.end()) {
      if (adapter->second.find("lora_B") != std::string::npos && at::count_nonzero(tensor.tensor).item<int64_t>() > 0) {
        return Error{ErrorCode::kInvalid, tensor.name + " was trained, and this run encodes its texts once, without " +
                                              "adapters: give --use_cache false, or leave --phase2_cache out"};
      }
    } else if (unused.count(tensor.name) == 0) {
      ours.push_back(std::move(tensor));
    }
  }
  return ours;
}

}  // namespace lockstep
