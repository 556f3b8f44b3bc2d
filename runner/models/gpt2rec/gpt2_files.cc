#include "runner/models/gpt2rec/gpt2_files.h"

#include <torch/types.h>

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/one_line.h"
#include "runner/checkpoint/weights.h"
#include "runner/formats/safetensors.h"
#include "runner/formats/tensor_file.h"

namespace lockstep {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kConfigBytesMax = uint64_t{16} << 20;
constexpr int64_t kDimensionMax = 10'000'000;
constexpr double kEpsilon = 1e-5;
constexpr std::string_view kPrefix = "transformer.";

Error invalid_gpt2(std::string message) { return Error{ErrorCode::kInvalid, std::move(message)}; }

// The file's path without symbolic links, since the files of a download may be links into a cache; nullopt if there is
// no such file.
std::optional<std::string> real_file(const std::string& folder, const std::string& name) {
  std::error_code is_missing;
  const std::filesystem::path real = std::filesystem::canonical(join_path(folder, name), is_missing);
  if (is_missing) return std::nullopt;
  return real.string();
}

Result<Json> read_config_object(FileSystem& fs, const std::string& folder, const std::string& name) {
  const std::string shown = join_path(folder, name);
  const std::optional<std::string> path = real_file(folder, name);
  if (!path) {
    return Error{ErrorCode::kNotFound,
                 shown +
                     " is not there; --gpt2_path is a folder that save_pretrained of Python's "
                     "transformers wrote: config.json, model.safetensors, and the tokenizer's files"};
  }
  TRY_ASSIGN(const std::string text, read_file(fs, *path, kConfigBytesMax));
  TRY_ASSIGN(Json json, parse_json(text, shown));
  if (!json.is_object()) return invalid_gpt2(shown + ": expected an object, found " + std::string(json.type_name()));
  return json;
}

// The files that hold the weights: one, or the shards of an index.
Result<std::vector<std::string>> weight_files(FileSystem& fs, const std::string& folder) {
  if (real_file(folder, kWeightsName)) return std::vector<std::string>{kWeightsName};
  if (!real_file(folder, kIndexName)) {
    const bool has_pickle = real_file(folder, "pytorch_model.bin").has_value();
    return Error{ErrorCode::kNotFound,
                 folder + " holds no model.safetensors" +
                     (has_pickle ? ", but pytorch_model.bin: load it with Python's transformers and save it with "
                                   "save_pretrained(safe_serialization=True)"
                                 : "; --gpt2_path is a folder that save_pretrained of Python's transformers wrote")};
  }
  TRY_ASSIGN(const Json index, read_config_object(fs, folder, kIndexName));
  const std::string shown = join_path(folder, kIndexName);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    return invalid_gpt2(shown + ": expected weight_map, an object that names the file of each tensor");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || file.get<std::string>().empty() ||
        file.get<std::string>().find('/') != std::string::npos) {
      return invalid_gpt2(shown + ": the file of tensor " + one_line(tensor) + " is " + one_line(dump_line(file)) +
                          "; expected the name of a file in the same folder");
    }
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    if (real_file(folder, name)) continue;
    return Error{ErrorCode::kNotFound, join_path(folder, one_line(name)) + " is not there, but " + shown +
                                           " names it; copy all shards, or save the model as one file with "
                                           "save_pretrained(max_shard_size=\"10GB\")"};
  }
  return std::vector<std::string>(names.begin(), names.end());
}

bool is_ignored(std::string_view name) {
  return name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

bool is_floating(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

// The field as a number from 1 on; `otherwise` if it is missing or null.
Result<int64_t> count_of(const Json& config, const char* field, std::optional<int64_t> otherwise,
                         const std::string& shown) {
  const auto found = config.find(field);
  if ((found == config.end() || found->is_null()) && otherwise) return *otherwise;
  const bool is_count = found != config.end() && found->is_number_integer() && *found > 0 && *found <= kDimensionMax;
  if (!is_count) {
    return invalid_gpt2(shown + ": " + field + " is " +
                        (found == config.end() ? "missing" : one_line(dump_line(*found))) +
                        "; expected a number from 1 on; is this the config.json of a GPT-2?");
  }
  return found->get<int64_t>();
}

}  // namespace

Result<Gpt2Shape> read_gpt2_shape(FileSystem& fs, const std::string& folder) {
  TRY_ASSIGN(const Json config, read_config_object(fs, folder, kConfigName));
  const std::string shown = join_path(folder, kConfigName);
  Gpt2Shape shape;
  TRY_ASSIGN(shape.num_layers, count_of(config, "n_layer", std::nullopt, shown));
  TRY_ASSIGN(shape.width, count_of(config, "n_embd", std::nullopt, shown));
  TRY_ASSIGN(shape.num_heads, count_of(config, "n_head", std::nullopt, shown));
  TRY_ASSIGN(shape.context, count_of(config, "n_positions", std::nullopt, shown));
  TRY_ASSIGN(shape.vocabulary, count_of(config, "vocab_size", std::nullopt, shown));
  TRY_ASSIGN(shape.inner_width, count_of(config, "n_inner", 4 * shape.width, shown));
  if (const auto found = config.find("eos_token_id"); found != config.end() && found->is_number_integer()) {
    shape.end_of_text = found->get<int64_t>();
  }
  if (shape.width % shape.num_heads != 0) {
    return invalid_gpt2(shown + ": n_embd " + std::to_string(shape.width) + " is no multiple of n_head " +
                        std::to_string(shape.num_heads));
  }
  struct Fixed {
    const char* field;
    std::vector<Json> allowed;  // the first is the value when the file lacks the field
  };
  for (const Fixed& fixed : std::vector<Fixed>{{"model_type", {"gpt2"}},
                                               {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
                                               {"layer_norm_epsilon", {kEpsilon}},
                                               {"scale_attn_weights", {true}},
                                               {"scale_attn_by_inverse_layer_idx", {false}}}) {
    const Json found = config.value(fixed.field, fixed.allowed.front());
    bool is_allowed = false;
    for (const Json& allowed : fixed.allowed) is_allowed = is_allowed || found == allowed;
    if (is_allowed) continue;
    return invalid_gpt2(shown + ": " + fixed.field + " is " + one_line(dump_line(found)) + "; expected " +
                        dump_line(fixed.allowed.front()) + ": only GPT-2 is supported");
  }
  return shape;
}

Status read_gpt2_weights(FileSystem& fs, const std::string& folder, const NamedTensors& weights) {
  const at::NoGradGuard no_grad;
  TRY_ASSIGN(const std::vector<std::string> names, weight_files(fs, folder));
  std::map<std::string_view, at::Tensor> wanted;
  for (const NamedTensor& weight : weights) wanted.emplace(weight.name, weight.tensor);
  std::set<std::string_view> read;
  for (const std::string& name : names) {
    const std::string shown = join_path(folder, name);
    const std::optional<std::string> path = real_file(folder, name);
    if (!path) return Error{ErrorCode::kNotFound, shown + " is no longer there"};
    TRY_ASSIGN(std::string bytes, read_file(fs, *path, std::numeric_limits<int64_t>::max()));
    TRY_ASSIGN(const TensorFile file, read_safetensors(std::make_shared<const std::string>(std::move(bytes)), shown));
    for (const TensorView& view : file.tensors) {
      std::string_view plain = view.name;
      if (plain.starts_with(kPrefix)) plain.remove_prefix(kPrefix.size());
      if (is_ignored(plain)) continue;
      const auto found = wanted.find(plain);
      const std::string tensor = shown + ": tensor " + one_line(view.name);
      if (found == wanted.end()) {
        return invalid_gpt2(tensor + " belongs to no GPT-2 of the size in config.json; are both of one model?");
      }
      if (!read.insert(found->first).second) return invalid_gpt2(tensor + " occurs twice");
      if (view.shape != found->second.sizes().vec()) {
        return invalid_gpt2(tensor + " has the shape " + shape_text(view.shape) + "; expected " +
                            shape_text(found->second.sizes().vec()) +
                            ", the size in config.json; are both of one model?");
      }
      if (!is_floating(view.dtype)) {
        return invalid_gpt2(tensor + " is of " + std::string(safetensors_name(view.dtype)) +
                            "; expected F32, F16 or BF16: quantised weights are not supported");
      }
      found->second.copy_(tensors_of({view}).front().tensor);
    }
  }
  for (const NamedTensor& weight : weights) {
    if (read.contains(weight.name)) continue;
    return invalid_gpt2(join_path(folder, names.size() == 1 ? names.front() : kIndexName) + " has no tensor " +
                        weight.name + " " + shape_text(weight.tensor.sizes().vec()) +
                        ", which GPT-2 of the size in config.json needs; is it another model's, or another size?");
  }
  return {};
}

}  // namespace lockstep
