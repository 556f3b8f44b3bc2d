// GELU by its tanh form, of a sum with a bias that is not trained.
//
// Role: GPT-2's activation (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), with the bias of the layer
// before it in the same pass. Only fp32 on a CPU has a pass of its own; other devices and types use the ATen operators.
// Threads: as ATen operators; the same results for any number of threads. Differentiable once, in x.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// z · (1 + tanh(√(2/π) (z + 0.044715 z³))) / 2, where z = x + bias: x [S, F], bias [F] → [S, F], in the type of x.
at::Tensor tanh_gelu(const at::Tensor& x_SF, const at::Tensor& bias_F);

namespace tanh_gelu_detail {

void forward(int64_t rows, int64_t width, const float* x, const float* bias, float* out);
void backward(int64_t rows, int64_t width, const float* grad, const float* x, const float* bias, float* grad_x);

}  // namespace tanh_gelu_detail
}  // namespace lockstep
