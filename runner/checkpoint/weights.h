// Weight files that Python opens, and the way between torch's tensors and the formats' views.
// Threads: functions.
#pragma once

#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/formats/tensor_file.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// Atomically; `.pt` and `.pth` for torch.load(weights_only=True), else safetensors. Tensors may be on any device.
Status save_weights(FileSystem& fs, const std::string& path, const NamedTensors& tensors);

// Views of contiguous CPU tensors, which must outlive them. kInvalid names a dtype that the formats do not know.
Result<std::vector<TensorView>> views_of(const NamedTensors& tensors);
// Copies, on the CPU.
NamedTensors tensors_of(const std::vector<TensorView>& views);

}  // namespace lockstep
