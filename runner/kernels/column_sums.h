// Sums over the rows of a matrix, as the gradient of a bias needs them.
//
// Role: torch's reduction over the first dimension of a large bf16 matrix takes up to twice as long as reading it.
// Threads: as ATen operators; the same sums each time. Shapes: [R, C] → [C], added in fp32 and given in fp32.
// Not differentiable.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

at::Tensor column_sums(const at::Tensor& x_RC);

namespace column_sums_detail {

// x_RC: contiguous, fp32, bf16 or fp16; C is a multiple of 4. Returns the sums of runs of rows, [runs, C], in fp32.
at::Tensor sums_by_run_cuda(const at::Tensor& x_RC);

}  // namespace column_sums_detail
}  // namespace lockstep
