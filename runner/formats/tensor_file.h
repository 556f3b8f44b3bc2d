// TensorView and TensorFile: tensors as files hold them, without torch.
//
// Role: the types that the readers and writers of safetensors and torch zip files share.
// Ownership: a view borrows its bytes from its creator. The views of a TensorFile are valid as long as the TensorFile
// or a copy of it, which share the bytes.
// Layout: contiguous, row-major, little-endian. `data` has no alignment that a reader may rely on: memcpy it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };

size_t size_of(DType dtype);                     // bytes of one element
std::string_view safetensors_name(DType dtype);  // "F32"
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // may be null when bytes == 0
  uint64_t bytes = 0;
};

struct TensorFile {
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata;             // safetensors only
  std::vector<std::shared_ptr<const std::string>> memory;  // what the views point into
};

// Elements × size; nullopt when a dimension is negative or the product overflows.
std::optional<uint64_t> bytes_of(DType dtype, const std::vector<int64_t>& shape);

// The length of what wrappers have put before all of these names: DistributedDataParallel "module.", torch.compile
// "_orig_mod.", Lightning "model.", in any order and number. 0 when one of the names has none.
size_t bytes_of_wrappers(const std::vector<std::string_view>& names);

// "[3, 4]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace lockstep
