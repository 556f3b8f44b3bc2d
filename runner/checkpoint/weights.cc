#include "runner/checkpoint/weights.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "runner/base/atomic_file.h"

namespace lockstep {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::kBool, at::kBool}, {DType::kU8, at::kByte},   {DType::kI8, at::kChar},  {DType::kI16, at::kShort},
    {DType::kI32, at::kInt},   {DType::kI64, at::kLong},  {DType::kF16, at::kHalf}, {DType::kBF16, at::kBFloat16},
    {DType::kF32, at::kFloat}, {DType::kF64, at::kDouble}};

std::optional<DType> dtype_of(at::ScalarType type) {
  for (const auto& [dtype, scalar_type] : kTypes) {
    if (scalar_type == type) return dtype;
  }
  return std::nullopt;
}

at::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [known, scalar_type] : kTypes) {
    if (known == dtype) return scalar_type;
  }
  LOCKSTEP_CHECK(false, "a DType without a scalar type");
}

}  // namespace

PickleValue TorchTree::value(const at::Tensor& tensor) {
  const at::Tensor& copy =
      memory_.emplace_back(tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous());
  const Result<std::vector<TensorView>> views = views_of({{"", copy}});
  TORCH_CHECK(views.ok(), views.error().message);
  return {views->front()};
}

PickleValue TorchTree::value(const NamedTensors& tensors) {
  PickleDict dict;
  for (const NamedTensor& tensor : tensors) dict.emplace_back(tensor.name, value(tensor.tensor));
  return {std::move(dict)};
}

Status save_output(FileSystem& fs, const std::string& path, const OutputContent& content,
                   const std::string& temporary) {
  TRY(make_directories(fs, parent_path(path)));
  if (const auto* const bytes = std::get_if<std::string>(&content)) {
    return write_file_atomically(fs, path, *bytes, temporary);
  }
  const TorchTree& tree = std::get<TorchTree>(content);
  return write_file_atomically(
      fs, path, [&](const ByteSink& sink) { return write_torch_zip(tree.root, sink); }, temporary);
}

Result<std::vector<TensorView>> views_of(const NamedTensors& tensors) {
  std::vector<TensorView> views;
  for (const NamedTensor& tensor : tensors) {
    LOCKSTEP_CHECK(tensor.tensor.is_cpu() && tensor.tensor.is_contiguous(), "views are of contiguous CPU tensors");
    const std::optional<DType> dtype = dtype_of(tensor.tensor.scalar_type());
    if (!dtype) {
      return Error{ErrorCode::kInvalid, "tensor \"" + tensor.name + "\" has dtype " +
                                            c10::toString(tensor.tensor.scalar_type()) + ", which is not saved"};
    }
    views.push_back({tensor.name, *dtype, tensor.tensor.sizes().vec(), tensor.tensor.const_data_ptr(),
                     static_cast<uint64_t>(tensor.tensor.nbytes())});
  }
  return views;
}

NamedTensors tensors_of(const std::vector<TensorView>& views) {
  NamedTensors tensors;
  for (const TensorView& view : views) {
    at::Tensor tensor = at::empty(view.shape, at::TensorOptions().dtype(scalar_type_of(view.dtype)));
    if (view.bytes > 0) std::memcpy(tensor.mutable_data_ptr(), view.data, view.bytes);
    tensors.push_back({view.name, std::move(tensor)});
  }
  return tensors;
}

NamedTensors tensors_in(const std::shared_ptr<std::string>& file, const std::vector<TensorView>& views) {
  NamedTensors tensors;
  for (const TensorView& view : views) {
    if (view.bytes == 0 || reinterpret_cast<uintptr_t>(view.data) % size_of(view.dtype) != 0) {
      tensors.push_back(std::move(tensors_of({view}).front()));
      continue;
    }
    char* const data = file->data() + (static_cast<const char*>(view.data) - file->data());
    tensors.push_back(
        {view.name, at::from_blob(
                        data, view.shape, [file](void*) {}, at::TensorOptions().dtype(scalar_type_of(view.dtype)))});
  }
  return tensors;
}

}  // namespace lockstep
