// Files of torch.save: a zip of stored entries, `NAME/data.pkl` (pickle protocol 2) and `NAME/data/<key>` (storages).
//
// Role: reads and writes `.pt` and `.pth` without Python. torch.load(weights_only=True) can open what is written here.
// Files that are read are not trusted: the unpickler knows tensors, parameters and plain containers, refuses any other
// global by name, and bounds stack, memo, depth, sizes and the memory that a small file can make it use.
// Threads: pure functions.
// Errors: kCorrupt (damaged), kInvalid (a global, dtype or protocol that is not supported; a legacy file that is not a
// zip, with how to save it again).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/formats/tensor_file.h"

namespace lockstep {

struct PickleValue;
// In order; keys of other types than text appear as their text ("0").
using PickleDict = std::vector<std::pair<std::string, PickleValue>>;
using PickleList = std::vector<PickleValue>;  // lists and tuples

struct PickleValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, TensorView, PickleDict, PickleList> value{};
};

struct TorchZipOptions {
  // Sizes and offsets from here on are written in zip64 fields. Lower only in tests.
  uint64_t zip64_from = 0xFFFFFFFFU;
};

// Sends the file to `sink`. The root and nested dicts that hold a tensor become OrderedDict, as of a state_dict.
Status write_torch_zip(const PickleDict& root, const ByteSink& sink, const TorchZipOptions& options = {});

struct TorchFile {
  PickleValue root;
  std::vector<std::shared_ptr<const std::string>> memory;  // what the TensorViews in root point into
};

// `what` names the file in errors.
Result<TorchFile> read_torch_zip(std::shared_ptr<const std::string> bytes, std::string_view what);

// The state dict of such a file: the root when it holds tensors; else a nested dict with a usual name (model,
// state_dict, model_state_dict, …); else the only nested dict that holds tensors; else, when all of them are named
// X_state_dict, their tensors as "X.name", without a `module.` that all names of X have. Otherwise kInvalid, which
// names the candidates.
Result<TensorFile> state_dict_of(const TorchFile& file, std::string_view what);

}  // namespace lockstep
