#include "runner/models/gpt2rec/peft_adapter.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <set>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/one_line.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kHeadModelPrefix = "transformer.";
constexpr uint64_t kPeftConfigBytesMax = uint64_t{1} << 20;

// A whole number as an integer: 32, not 32.0.
Json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

Status check_peft_config(const Json& config, const LoraOptions& lora, const std::string& path) {
  if (!config.is_object()) return Error{ErrorCode::kInvalid, path + ": expected an object"};
  const auto check = [&](const char* field, const Json& expected, const std::string& what_to_do) -> Status {
    const Json found = config.value(field, Json());
    if (found == expected) return {};
    return Error{ErrorCode::kInvalid, path + ": " + field + " is " + one_line(dump_line(found)) + "; expected " +
                                          dump_line(expected) + what_to_do};
  };
  TRY(check("peft_type", "LORA", ": other kinds of adapters are not known here"));
  TRY(check("r", lora.rank, ", the rank of this run: give --lora_rank"));
  TRY(check("lora_alpha", plain_number(lora.alpha), ", that of this run: give --lora_alpha"));
  for (const char* variant : {"use_dora", "use_rslora"}) {
    if (config.value(variant, Json(false)) != Json(false)) {
      return Error{ErrorCode::kInvalid, path + ": " + variant + " is set; expected plain LoRA"};
    }
  }
  return {};
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

Status load_peft_folder(const std::string& folder, const LoraOptions& lora, const NamedTensors& adapters) {
  PosixFileSystem files;
  const std::string config_path = join_path(folder, kPeftConfigFile);
  TRY_ASSIGN(const std::string text, read_file(files, config_path, kPeftConfigBytesMax));
  TRY_ASSIGN(const Json config, parse_json(text, config_path));
  TRY(check_peft_config(config, lora, config_path));
  const std::string weights_path = join_path(folder, kPeftWeightsFile);
  TRY_ASSIGN(NamedTensors read, load_weights(files, weights_path));
  for (NamedTensor& tensor : read) {
    for (const std::string_view prefix : {kPeftPrefix, kHeadModelPrefix}) {
      if (tensor.name.starts_with(prefix)) tensor.name.erase(0, prefix.size());
    }
    if (tensor.tensor.is_floating_point()) tensor.tensor = tensor.tensor.to(at::kFloat);
  }
  return copy_tensors(read, adapters, weights_path);
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
