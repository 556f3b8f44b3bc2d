// The adapters of a text encoder as a folder that Python's `peft` opens: adapter_config.json and
// adapter_model.safetensors, for transformers' GPT2Model.
//
//   model = PeftModel.from_pretrained(AutoModel.from_pretrained("gpt2"), "FOLDER")
//
// Threads: pure.
#pragma once

#include <string>
#include <string_view>

#include "runner/base/result.h"
#include "runner/models/gpt2rec/gpt2.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";  // of every name in a PeftModel's state dict
inline constexpr const char* kPeftConfigFile = "adapter_config.json";
inline constexpr const char* kPeftWeightsFile = "adapter_model.safetensors";

struct PeftFiles {
  std::string config;   // of adapter_config.json
  std::string weights;  // of adapter_model.safetensors
};

// base_model: the name or path by which Python loads GPT-2; may be empty. Error (kInvalid): an adapter has a type that
// safetensors does not have.
Result<PeftFiles> peft_files(const NamedTensors& adapters, const LoraOptions& lora, const std::string& base_model);

// The name of a weight or an adapter of Gpt2 in the state dict of a PeftModel in memory:
// "base_model.model.h.0.attn.c_attn.base_layer.weight", "base_model.model.h.0.attn.c_attn.lora_A.default.weight".
std::string peft_state_name(const std::string& name);

}  // namespace lockstep
