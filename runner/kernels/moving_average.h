// Moves averages towards values, all tensors of a list in one pass over the memory.
//
// Threads: as ATen operators. Shapes: any; fp32. Not differentiable.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep {

// average += weight · (value − average), for the tensors at the same place of both lists, which have the same shapes.
// weight: fp32, one element, on the tensors' device; read there, so that the host does not wait for it.
void move_averages(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values,
                   const at::Tensor& weight);

namespace moving_average_detail {

// Without gaps in memory, an average and its value in the same order there.
void move_averages_cuda(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values,
                        const at::Tensor& weight);

}  // namespace moving_average_detail
}  // namespace lockstep
