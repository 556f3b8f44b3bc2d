#include "runner/models/protein/data/torch_values.h"

#include <cstring>
#include <memory>
#include <utility>
#include <variant>

namespace lockstep {
namespace {

constexpr uint64_t kTorchFileBytesMax = uint64_t{256} << 20;

Result<const PickleValue*> value_at(const PickleDict& dict, std::string_view name) {
  const PickleValue* value = find_value(dict, name);
  if (value == nullptr) return invalid("has no \"" + std::string(name) + "\"");
  return value;
}

Error not_a(std::string_view name, std::string_view expected) {
  return invalid("\"" + std::string(name) + "\" is not " + std::string(expected));
}

template <typename T>
std::vector<float> converted(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.bytes / sizeof(T)));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(tensor.data) + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(value);
  }
  return values;
}

}  // namespace

Result<TorchFile> read_torch_dict(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(std::string bytes, read_file(fs, path, kTorchFileBytesMax));
  // Returns the Result itself: g++ 12 warns of uninitialised memory when a TorchFile is moved into another Result.
  Result<TorchFile> file = read_torch_zip(std::make_shared<const std::string>(std::move(bytes)), base_name(path));
  if (file.ok() && !std::holds_alternative<PickleDict>(file->root.value)) return invalid("holds no dict");
  return file;
}

const PickleDict& dict_of(const TorchFile& file) { return std::get<PickleDict>(file.root.value); }

const PickleValue* find_value(const PickleDict& dict, std::string_view name) {
  for (const auto& [key, value] : dict) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result<TensorView> tensor_at(const PickleDict& dict, std::string_view name) {
  TRY_ASSIGN(const PickleValue* value, value_at(dict, name));
  const auto* tensor = std::get_if<TensorView>(&value->value);
  if (tensor == nullptr) return not_a(name, "a tensor");
  return *tensor;
}

Result<std::string> text_at(const PickleDict& dict, std::string_view name) {
  TRY_ASSIGN(const PickleValue* value, value_at(dict, name));
  const auto* text = std::get_if<std::string>(&value->value);
  if (text == nullptr) return not_a(name, "a text");
  return *text;
}

Result<std::vector<std::string>> texts_at(const PickleDict& dict, std::string_view name) {
  TRY_ASSIGN(const PickleValue* value, value_at(dict, name));
  std::vector<std::string> texts;
  if (const auto* text = std::get_if<std::string>(&value->value)) {
    for (const char letter : *text) texts.emplace_back(1, letter);
    return texts;
  }
  const auto* list = std::get_if<PickleList>(&value->value);
  if (list == nullptr) return not_a(name, "a list of texts");
  for (const PickleValue& element : *list) {
    const auto* text = std::get_if<std::string>(&element.value);
    if (text == nullptr) return not_a(name, "a list of texts");
    texts.push_back(*text);
  }
  return texts;
}

Result<std::vector<float>> floats_of(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kBool:
    case DType::kU8:
      return converted<uint8_t>(tensor);
    case DType::kI8:
      return converted<int8_t>(tensor);
    case DType::kI16:
      return converted<int16_t>(tensor);
    case DType::kI32:
      return converted<int32_t>(tensor);
    case DType::kI64:
      return converted<int64_t>(tensor);
    case DType::kF32:
      return converted<float>(tensor);
    case DType::kF64:
      return converted<double>(tensor);
    default:
      return invalid("has a tensor of " + std::string(safetensors_name(tensor.dtype)) + "; expected F32 or F64");
  }
}

}  // namespace lockstep
