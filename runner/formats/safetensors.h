// safetensors: 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, the bytes.
// https://huggingface.co/docs/safetensors. The header is padded with spaces to 8 bytes, so that the data is aligned.
//
// Threads: pure functions. Nothing from a file is trusted: bounds, overflow, order and overlap are checked.
// Errors: kCorrupt (names the file and the tensor), kInvalid for a dtype that this project does not know.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/formats/tensor_file.h"

namespace lockstep {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the reference implementation's bound

// Sends the file to `sink`. Tensors are laid out by element size, then name, so that each is aligned to its elements.
// kInvalid: a duplicate or reserved name, bytes that do not fit dtype and shape, a header above the bound.
Status write_safetensors(const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata,
                         const ByteSink& sink);

// Views into `bytes`, in the file's order; `what` names the file in errors.
Result<TensorFile> read_safetensors(std::shared_ptr<const std::string> bytes, std::string_view what);

}  // namespace lockstep
