#include "runner/checkpoint/reader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <system_error>

#include "runner/checkpoint/weights.h"
#include "runner/formats/pickle_zip.h"
#include "runner/formats/safetensors.h"

namespace lockstep {
namespace {

constexpr std::string_view kLightningPrefix = "model.";

Result<NamedTensors> load_tensors(FileSystem& fs, const CheckpointEntry& entry, const std::string& name) {
  TRY_ASSIGN(std::string bytes, read_checkpoint_file(fs, entry, name));
  const auto file = std::make_shared<std::string>(std::move(bytes));
  TRY_ASSIGN(const TensorFile content, read_safetensors(file, join_path(entry.path, name)));
  return tensors_in(file, content.tensors);  // not copies, which would need the size of the file once more
}

Result<LoadedCheckpoint> load_entry(FileSystem& fs, const CheckpointEntry& entry) {
  if (entry.error) return *entry.error;
  LoadedCheckpoint loaded;
  loaded.path = entry.path;
  loaded.state = *entry.state;
  for (const auto& [name, file] : loaded.state.files) {
    TRY_ASSIGN(NamedTensors tensors, load_tensors(fs, entry, name));
    const std::optional<std::string> ema = parse_ema_file_name(name);
    if (name == kModelFile) {
      loaded.model = std::move(tensors);
    } else if (name == kOptimizerFile) {
      loaded.optimizer = std::move(tensors);
    } else if (ema) {
      loaded.ema.emplace_back(*ema, std::move(tensors));
    }
  }
  return loaded;
}

// Loads the first entry that can be loaded, and adds those before it to passed_over.
Result<ResumeResult> load_first(FileSystem& fs, const std::string& folder, const std::vector<CheckpointEntry>& entries,
                                std::vector<PassedOver> passed_over) {
  ResumeResult result;
  for (const CheckpointEntry& entry : entries) {
    Result<LoadedCheckpoint> loaded = load_entry(fs, entry);
    if (loaded.ok()) {
      result.checkpoint = std::move(*loaded);
      break;
    }
    if (!may_be_passed_over(loaded.error())) return loaded.error();
    result.passed_over.push_back({entry.path, loaded.error().message});
  }
  result.passed_over.insert(result.passed_over.end(), passed_over.begin(), passed_over.end());
  if (!result.checkpoint && !result.passed_over.empty()) return all_damaged(folder, result.passed_over);
  return result;
}

std::vector<std::string_view> names_of(const NamedTensors& tensors) {
  std::vector<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.emplace_back(tensor.name);
  return names;
}

void remove_wrappers(NamedTensors& tensors) {
  const size_t bytes = bytes_of_wrappers(names_of(tensors));
  for (NamedTensor& tensor : tensors) tensor.name.erase(0, bytes);
}

bool all_begin_with(const std::vector<std::string_view>& names, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) { return name.starts_with(prefix); });
}

// What the names of a file of another model have in common: "; all its names begin with "net."". Empty when that is
// nothing, or some wanted name begins so, too.
std::string common_prefix_text(const std::vector<std::string_view>& names, const NamedTensors& wanted) {
  if (names.size() < 2) return {};
  const size_t dot = names.front().find('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view prefix = names.front().substr(0, dot + 1);
  const bool is_wanted = std::any_of(wanted.begin(), wanted.end(),
                                     [&](const NamedTensor& tensor) { return tensor.name.starts_with(prefix); });
  if (is_wanted || !all_begin_with(names, prefix)) return {};
  return "; all its names begin with \"" + std::string(prefix) + "\": save it without that prefix";
}

Result<std::shared_ptr<const std::string>> bytes_of(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(std::string text, read_file(fs, path, std::numeric_limits<int64_t>::max()));
  return std::make_shared<const std::string>(std::move(text));
}

// Resolves links in a path that a user gave ("latest"), because the step number is read from the step folder's name.
std::string real_path(const std::string& path) {
  std::error_code is_missing;
  const std::filesystem::path real = std::filesystem::canonical(path, is_missing);
  return is_missing ? path : real.string();
}

// A number or a list of numbers as JSON; null for anything else.
Json figures_of(const PickleValue& value) {
  if (const auto* const whole = std::get_if<int64_t>(&value.value)) return *whole;
  if (const auto* const real = std::get_if<double>(&value.value)) return *real;
  const auto* const list = std::get_if<PickleList>(&value.value);
  if (list == nullptr) return nullptr;
  Json figures = Json::array();
  for (const PickleValue& element : *list) {
    const Json figure = std::holds_alternative<PickleList>(element.value) ? Json() : figures_of(element);
    if (figure.is_null()) return nullptr;
    figures.push_back(figure);
  }
  return figures;
}

Result<NamedTensors> load_weight_file(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const std::shared_ptr<const std::string> bytes, bytes_of(fs, path));
  const bool is_torch = bytes->starts_with("PK") || bytes->starts_with("\x80\x02");
  TensorFile file;
  if (is_torch) {
    TRY_ASSIGN(const TorchFile torch_file, read_torch_zip(bytes, path));
    TRY_ASSIGN(file, state_dict_of(torch_file, path));
  } else {
    TRY_ASSIGN(file, read_safetensors(bytes, path));
  }
  NamedTensors tensors = tensors_of(file.tensors);
  remove_wrappers(tensors);
  return tensors;
}

// Uses append, because g++ 12 warns of an overflow in "\"" + std::string(name) where there is none.
std::string quote(std::string_view name) { return std::string("\"").append(name).append("\""); }

// "; 3 missing, the first is "a.weight""; empty when there are no names.
std::string first_of(const std::vector<std::string>& names, const std::string& kind) {
  if (names.empty()) return "";
  return "; " + std::to_string(names.size()) + " " + kind + ", the first is " + names.front();
}

std::string describe(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " + shape_text(tensor.sizes().vec());
}

}  // namespace

Result<ResumeResult> load_newest_checkpoint(FileSystem& fs, const std::string& folder, const RunIdentity& identity) {
  TRY_ASSIGN(ResumeCandidates candidates, resume_candidates(fs, folder, identity));
  return load_first(fs, folder, candidates.entries, std::move(candidates.passed_over));
}

Result<ResumeResult> load_checkpoint(FileSystem& fs, const std::string& path) {
  TRY(fs.stat(path));
  if (parse_step_folder_name(base_name(path))) {
    TRY_ASSIGN(LoadedCheckpoint loaded, load_entry(fs, inspect_checkpoint(fs, path)));
    return ResumeResult{std::move(loaded), {}};
  }
  TRY_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(fs, path));
  if (entries.empty()) {
    return Error{ErrorCode::kNotFound,
                 path + " holds no checkpoint; give a folder step-00001200, or the folder that holds such folders"};
  }
  return load_first(fs, path, entries, {});
}

Result<NamedTensors> load_weights(FileSystem& fs, const std::string& path) {
  const std::string target = real_path(path);
  TRY_ASSIGN(const FileInfo info, fs.stat(target));
  if (info.kind != FileKind::kDirectory) return load_weight_file(fs, target);
  TRY_ASSIGN(ResumeResult found, load_checkpoint(fs, target));
  remove_wrappers(found.checkpoint->model);
  return std::move(found.checkpoint->model);
}

Result<TrainingFile> load_training_file(FileSystem& fs, const std::string& path) {
  constexpr std::string_view kOptimizer = "optimizer_state_dict";
  TRY_ASSIGN(const std::shared_ptr<const std::string> bytes, bytes_of(fs, path));
  TrainingFile training;
  TRY_ASSIGN(training.file, read_torch_zip(bytes, path));
  TRY_ASSIGN(const TensorFile tensors, state_dict_of(training.file, path));
  training.model = tensors_of(tensors.tensors);
  remove_wrappers(training.model);
  training.fields = Json::object();
  const PickleDict* optimizer = nullptr;
  for (const auto& [name, value] : std::get<PickleDict>(training.file.root.value)) {
    if (name == kOptimizer) optimizer = std::get_if<PickleDict>(&value.value);
    if (Json figures = figures_of(value); !figures.is_null()) training.fields[name] = std::move(figures);
  }
  if (optimizer == nullptr) {
    return Error{ErrorCode::kInvalid, path + ": has no " + std::string(kOptimizer) +
                                          " and is of weights alone: give it with --state_dict_path"};
  }
  training.optimizer = *optimizer;
  return training;
}

Status copy_tensors(const NamedTensors& source, const NamedTensors& destination, const std::string& what) {
  std::map<std::string_view, const at::Tensor*> unused;
  for (const NamedTensor& tensor : source) unused.emplace(tensor.name, &tensor.tensor);
  const std::vector<std::string_view> names = names_of(source);
  // A model of a plugin whose own names begin with what is removed as Lightning's when weights are read.
  const bool is_removed = !names.empty() && all_begin_with(names_of(destination), kLightningPrefix) &&
                          !all_begin_with(names, kLightningPrefix);
  std::vector<std::string> missing;
  std::vector<std::string> mismatched;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const NamedTensor& wanted : destination) {
    const auto found = unused.find(std::string_view(wanted.name).substr(is_removed ? kLightningPrefix.size() : 0));
    if (found == unused.end()) {
      missing.push_back(quote(wanted.name));
      continue;
    }
    const at::Tensor& given = *found->second;
    if (given.sizes() != wanted.tensor.sizes() || given.scalar_type() != wanted.tensor.scalar_type()) {
      mismatched.push_back(quote(wanted.name) + ": " + describe(given) + ", " + describe(wanted.tensor) +
                           " was expected");
    }
    copies.emplace_back(wanted.tensor, given);
    unused.erase(found);
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : unused) unexpected.push_back(quote(name));
  if (!missing.empty() || !unexpected.empty() || !mismatched.empty()) {
    return Error{ErrorCode::kInvalid, what + " is of another model" + first_of(missing, "missing") +
                                          first_of(unexpected, "unexpected") + first_of(mismatched, "mismatched") +
                                          common_prefix_text(names, destination) +
                                          "; give the flags that it was trained with"};
  }
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
  return {};
}

}  // namespace lockstep
