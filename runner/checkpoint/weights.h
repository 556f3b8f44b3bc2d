// Writes weight files that Python can load, and converts between torch's tensors and the formats' views.
// Threads: functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/formats/pickle_zip.h"
#include "runner/formats/tensor_file.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// A file of torch.save that is more than a state dict: a tree of dicts, lists, numbers, texts and tensors.
class TorchTree {
 public:
  // The tensor as a value of the tree, which keeps a copy of it on the CPU. Throws for a dtype that the formats do not
  // know.
  PickleValue value(const at::Tensor& tensor);
  // The tensors as a dict by name (a state dict).
  PickleValue value(const NamedTensors& tensors);

  PickleDict root;

 private:
  std::vector<at::Tensor> memory_;  // what the values' views point into
};
// The content of a file that a run writes beside its checkpoints: bytes as they are, or a tree for
// torch.load(weights_only=True).
using OutputContent = std::variant<std::string, TorchTree>;
// Writes the file atomically and makes its folder if needed. `temporary`: see write_file_atomically.
Status save_output(FileSystem& fs, const std::string& path, const OutputContent& content, const std::string& temporary);

// Views of contiguous CPU tensors, which must outlive them. kInvalid names a dtype that the formats do not know.
Result<std::vector<TensorView>> views_of(const NamedTensors& tensors);
// Copies, on the CPU.
NamedTensors tensors_of(const std::vector<TensorView>& views);
// Tensors in the memory of `file`, into which the views point and which stays as long as one of them. A tensor that is
// not aligned there is a copy.
NamedTensors tensors_in(const std::shared_ptr<std::string>& file, const std::vector<TensorView>& views);

}  // namespace lockstep
