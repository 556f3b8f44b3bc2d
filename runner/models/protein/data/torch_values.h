// Values of a .pt file by name, with errors that name them. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/formats/pickle_zip.h"

namespace lockstep {

// A file of torch.save whose root is a dict. Errors as read_torch_zip; kInvalid when its root is something else.
Result<TorchFile> read_torch_dict(FileSystem& fs, const std::string& path);
// Of a file that read_torch_dict returned.
const PickleDict& dict_of(const TorchFile& file);

// Null when there is none of that name.
const PickleValue* find_value(const PickleDict& dict, std::string_view name);

// kInvalid: there is no such name, or it has another type; the message says which.
Result<TensorView> tensor_at(const PickleDict& dict, std::string_view name);
Result<std::string> text_at(const PickleDict& dict, std::string_view name);
// A list of texts; a text is returned as a list of its letters.
Result<std::vector<std::string>> texts_at(const PickleDict& dict, std::string_view name);

// The values as fp32, whatever their dtype. kInvalid for 16-bit floats.
Result<std::vector<float>> floats_of(const TensorView& tensor);

}  // namespace lockstep
