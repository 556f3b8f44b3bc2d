// NamedTensor: a tensor with the name it has in the reference PyTorch implementation's state_dict.
// Role: the one vocabulary type that dist, optim, checkpoint, models and loop share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

inline int64_t count_elements(const NamedTensors& tensors) {
  int64_t sum = 0;
  for (const NamedTensor& entry : tensors) sum += entry.tensor.numel();
  return sum;
}

}  // namespace lockstep
