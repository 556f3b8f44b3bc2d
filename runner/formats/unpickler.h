// An unpickler for tensors and plain containers only.
//
// Role: turns `data.pkl` of torch.save (pickle protocol 2) into a graph. No Python global is ever called or imported:
// the few names that torch.save of a state dict uses are interpreted here, and any other is refused by name.
// Threads: pure.
// Bounds: nodes, stack, memo, what containers hold, and numbers; see the .cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/formats/tensor_file.h"

namespace lockstep {

using PickleNodeId = uint32_t;

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kDict,
  kList,
  kTuple,
  kGlobal,
  kStorageType,
  kStorage,
  kTensor
};

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  DType dtype = DType::kF32;        // kStorageType, kStorage
  int64_t integer = 0;              // kBool, kInt; kStorage: elements; kTensor: offset in elements
  double real = 0.0;                // kFloat
  std::string text;                 // kText; kGlobal: "module.name"; kStorage: key
  std::vector<PickleNodeId> items;  // kList, kTuple; kDict: key, value, key, value, …
  PickleNodeId storage = 0;         // kTensor
  std::vector<int64_t> shape;       // kTensor
  std::vector<int64_t> strides;     // kTensor, in elements
};

// Containers may contain themselves, so code that walks the graph must limit the depth.
struct PickleGraph {
  std::vector<PickleNode> nodes;
  PickleNodeId root = 0;
};

inline constexpr size_t kPickleNodesMax = 2'000'000;  // a state dict takes about 20 for each tensor

// `what` names the file in errors. kCorrupt; kInvalid for a global or a feature that is refused.
Result<PickleGraph> unpickle(std::string_view bytes, std::string_view what);

}  // namespace lockstep
