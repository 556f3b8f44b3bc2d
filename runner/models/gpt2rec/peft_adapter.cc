#include "runner/models/gpt2rec/peft_adapter.h"

#include <ATen/ATen.h>

#include <cmath>

#include "runner/base/json.h"
#include "runner/checkpoint/weights.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

// A whole number as an integer: 32, not 32.0.
Json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

Result<PeftFiles> peft_files(const NamedTensors& adapters, const LoraOptions& lora, const std::string& base_model) {
  const OrderedJson config = {{"peft_type", "LORA"},
                              {"task_type", "FEATURE_EXTRACTION"},
                              {"base_model_name_or_path", base_model.empty() ? OrderedJson() : OrderedJson(base_model)},
                              {"r", lora.rank},
                              {"lora_alpha", plain_number(lora.alpha)},
                              {"lora_dropout", lora.dropout},
                              {"target_modules", {"c_attn", "c_proj"}},
                              {"fan_in_fan_out", true},
                              {"bias", "none"},
                              {"modules_to_save", OrderedJson()},
                              {"inference_mode", true}};
  NamedTensors on_host;
  for (const NamedTensor& adapter : adapters) {
    on_host.push_back({std::string(kPeftPrefix) + adapter.name, adapter.tensor.detach().to(at::kCPU).contiguous()});
  }
  TRY_ASSIGN(const std::vector<TensorView> views, views_of(on_host));
  PeftFiles files{.config = dump_pretty(config), .weights = {}};
  TRY(write_safetensors(views, {{"format", "pt"}}, [&](const void* data, size_t bytes) -> Status {
    files.weights.append(static_cast<const char*>(data), bytes);
    return {};
  }));
  return files;
}

std::string peft_state_name(const std::string& name) {
  const size_t last = name.rfind('.');
  const std::string module = name.substr(0, last);
  const bool is_adapter = module.ends_with("lora_A") || module.ends_with("lora_B");
  const bool is_adapted = module.ends_with(".c_attn") || module.ends_with(".c_proj");
  const char* const between = is_adapter ? ".default" : is_adapted ? ".base_layer" : "";
  return std::string(kPeftPrefix) + module + between + name.substr(last);
}

}  // namespace lockstep
