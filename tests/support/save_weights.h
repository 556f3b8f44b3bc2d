// Writes weight files as a user of torch or safetensors has them.
#pragma once

#include <string>
#include <vector>

#include "runner/base/atomic_file.h"
#include "runner/checkpoint/weights.h"
#include "runner/formats/safetensors.h"

namespace lockstep {

// `.pt` and `.pth` for torch.load(weights_only=True), else safetensors. Tensors may be on any device.
inline Status save_weights(FileSystem& fs, const std::string& path, const NamedTensors& tensors) {
  NamedTensors on_host;
  for (const NamedTensor& tensor : tensors) {
    on_host.push_back({tensor.name, tensor.tensor.detach().to(at::kCPU).contiguous()});
  }
  TRY_ASSIGN(const std::vector<TensorView> views, views_of(on_host));
  const bool is_pickle = path.ends_with(".pt") || path.ends_with(".pth");
  return write_file_atomically(fs, path, [&](const ByteSink& sink) -> Status {
    if (!is_pickle) return write_safetensors(views, {{"format", "pt"}}, sink);
    PickleDict root;
    for (const TensorView& view : views) root.emplace_back(view.name, PickleValue{view});
    return write_torch_zip(root, sink);
  });
}

}  // namespace lockstep
