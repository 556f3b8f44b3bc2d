#include "runner/formats/tensor_file.h"

#include <algorithm>
#include <array>
#include <limits>

namespace lockstep {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<DTypeRow, 10> kDTypes = {{{DType::kBool, "BOOL", 1},
                                               {DType::kU8, "U8", 1},
                                               {DType::kI8, "I8", 1},
                                               {DType::kI16, "I16", 2},
                                               {DType::kI32, "I32", 4},
                                               {DType::kI64, "I64", 8},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBF16, "BF16", 2},
                                               {DType::kF32, "F32", 4},
                                               {DType::kF64, "F64", 8}}};

}  // namespace

size_t size_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

std::string_view safetensors_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<uint64_t> bytes_of(DType dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = size_of(dtype);
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return std::nullopt;
  }
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return bytes;
}

size_t bytes_of_wrappers(const std::vector<std::string_view>& names) {
  constexpr std::array<std::string_view, 3> kWrappers = {"module.", "_orig_mod.", "model."};
  size_t bytes = 0;
  const auto all_begin_with = [&](std::string_view wrapper) {
    return !names.empty() && std::all_of(names.begin(), names.end(), [&](std::string_view name) {
      return name.substr(bytes).starts_with(wrapper);
    });
  };
  for (;;) {
    const auto* const found = std::find_if(kWrappers.begin(), kWrappers.end(), all_begin_with);
    if (found == kWrappers.end()) return bytes;
    bytes += found->size();
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

}  // namespace lockstep
