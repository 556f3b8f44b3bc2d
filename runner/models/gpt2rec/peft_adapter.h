// The adapters of a text encoder as a folder that Python's `peft` opens: adapter_config.json and
// adapter_model.safetensors, for transformers' GPT2Model.
//
//   model = PeftModel.from_pretrained(AutoModel.from_pretrained("gpt2"), "FOLDER")
//
// Threads: functions.
#pragma once

#include <string>

#include "runner/base/result.h"
#include "runner/models/gpt2rec/gpt2.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

inline constexpr const char* kPeftConfigFile = "adapter_config.json";
inline constexpr const char* kPeftWeightsFile = "adapter_model.safetensors";

struct PeftFiles {
  std::string config;   // of adapter_config.json
  std::string weights;  // of adapter_model.safetensors
};

// Pure. base_model: what Python would load GPT-2 by, or empty. Errors: kInvalid, of what safetensors does not hold.
Result<PeftFiles> peft_files(const NamedTensors& adapters, const LoraOptions& lora, const std::string& base_model);

// Copies a folder of such files into `adapters` (Gpt2::adapters); that of a GPT2LMHeadModel as well.
// Errors: kNotFound, kInvalid, kCorrupt: another rank, alpha or place of adapters, or another size of GPT-2.
Status load_peft_folder(const std::string& folder, const LoraOptions& lora, const NamedTensors& adapters);

// What a weight or an adapter of Gpt2 is called in the state dict of a PeftModel that is in memory:
// "base_model.model.h.0.attn.c_attn.base_layer.weight", "base_model.model.h.0.attn.c_attn.lora_A.default.weight".
std::string peft_state_name(const std::string& name);

}  // namespace lockstep
