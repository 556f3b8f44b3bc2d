// The operations between the matrix products of a Transformer block: RMS norm with scale and shift, of a gated sum too,
// SwiGLU, and normed and rotated heads; each in one pass over the tokens, forward and backward.
//
// Role: as ATen operators they take some forty passes over the memory per block, on a CPU a third of a step's time and
// on a GPU most of it. fp32 on a CPU has these fused passes; on a GPU x is fp32 and the rest is fp32, bf16 or fp16, in
// rows of whole quads (four values), norms up to 3072 and heads up to 128 wide. All other types and sizes use the ATen
// operators.
// Threads: as ATen operators; on a CPU the tokens are split over ATen's threads, with the same results for any number.
// Shapes: B samples, N tokens, D width, F hidden width, A heads of E elements. Differentiable once.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); Shazeer, "GLU Variants Improve
// Transformer" (2020); Su et al., "RoFormer" (2021); Peebles and Xie, "Scalable Diffusion Models with Transformers"
// (2023) for scale, shift and gate.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace lockstep {

// x / √(mean(x²) + 1e-6) · weight · (1 + scale) + shift, computed in fp32: [B, N, D]. shift_BD and scale_BD: one row
// per sample. The fused pass of a GPU gives the shift's type, which under autocast the next matrix product takes.
at::Tensor modulated_rms_norm(const at::Tensor& x_BND, const at::Tensor& weight_D, const at::Tensor& shift_BD,
                              const at::Tensor& scale_BD);

struct NormedSum {
  at::Tensor sum_BND;     // x + gate · change
  at::Tensor normed_BND;  // as modulated_rms_norm gives it for the sum
};
// gate_BD: one row per sample.
NormedSum normed_gated_sum(const at::Tensor& x_BND, const at::Tensor& gate_BD, const at::Tensor& change_BND,
                           const at::Tensor& weight_D, const at::Tensor& shift_BD, const at::Tensor& scale_BD);

// silu(first half) · second half of the last dimension of x + bias: [B, N, 2F] → [B, N, F]. bias_F: fp32, [2F]; without
// one, undefined.
at::Tensor swiglu(const at::Tensor& gate_and_value_BNF, const at::Tensor& bias_F = {});

struct Heads {
  at::Tensor q_BANE;
  at::Tensor k_BANE;
  at::Tensor v_BANE;
};

struct HeadRotation {
  at::Tensor cos_NE;  // for each token and element; equal for both elements of a pair (2i, 2i + 1)
  at::Tensor sin_NE;
};

// Splits [B, N, 3 A E] into queries, keys and values of all heads. Queries and keys are normed per head (RMS norm,
// fp32), and each pair of elements (2i, 2i + 1) is rotated by its token's angle (RoPE).
Heads rotated_heads(const at::Tensor& qkv_BNF, const at::Tensor& q_norm_E, const at::Tensor& k_norm_E,
                    const HeadRotation& rotation);

// The CPU passes over some tokens. Pointers point to the values of the first token.
namespace block_passes_detail {

constexpr float kNormEps = 1e-6F;

// factor_D: weight · (1 + scale).
void norm_forward(int64_t tokens, int64_t width, const float* x, const float* factor, const float* shift, float* out);
// grad_sum: added to grad_x; may be nullptr. grad_shift, grad_factor: sums over these tokens.
void norm_backward(int64_t tokens, int64_t width, const float* grad, const float* grad_sum, const float* x,
                   const float* factor, float* grad_x, float* grad_shift, float* grad_factor);

void sum_forward(int64_t tokens, int64_t width, const float* x, const float* gate, const float* change, float* out);
// grad_gate: sum over these tokens.
void sum_backward(int64_t tokens, int64_t width, const float* grad, const float* gate, const float* change,
                  float* grad_gate, float* grad_change);

// width: F.
void swiglu_forward(int64_t tokens, int64_t width, const float* gate_and_value, float* out);
void swiglu_backward(int64_t tokens, int64_t width, const float* grad, const float* gate_and_value,
                     float* grad_gate_and_value);

// One head of some tokens. A stride is the number of floats between the values of consecutive tokens. weight ==
// nullptr: the head is only copied, as for the values, which are neither normed nor rotated.
struct HeadPass {
  int64_t tokens = 0;
  int64_t width = 0;  // E
  const float* weight = nullptr;
  const float* cos = nullptr;  // [tokens, E]
  const float* sin = nullptr;
};
void head_forward(const HeadPass& pass, const float* x, int64_t from_stride, float* out, int64_t to_stride);
// grad_weight: added to.
void head_backward(const HeadPass& pass, const float* grad, int64_t grad_stride, const float* x, float* grad_x,
                   int64_t stride, float* grad_weight);

// The CUDA passes over all tokens. Tensors are contiguous and begin at a multiple of four values, except that the rows
// of gate, shift and scale, and in the gradients of heads all but the elements, may have any strides that are multiples
// of four.
struct NormTensors {
  at::Tensor x_BND;  // in the backward pass: what was normed, thus the sum if there is one
  at::Tensor gate_BD;
  at::Tensor change_BND;  // undefined, as the gate, where x itself is normed
  at::Tensor weight_D;
  at::Tensor scale_BD;
};
struct NormGrads {
  at::Tensor x_BND;
  at::Tensor gate_BD;
  at::Tensor change_BND;
  at::Tensor weight_D;
  at::Tensor shift_BD;
  at::Tensor scale_BD;
};
// sum_BND: undefined where x itself is normed.
void norm_forward_cuda(const NormTensors& norm, const at::Tensor& shift_BD, const at::Tensor& sum_BND,
                       const at::Tensor& normed_BND);
// grad_sum_BND: of the sum; may be undefined.
NormGrads norm_backward_cuda(const NormTensors& norm, const at::Tensor& grad_BND, const at::Tensor& grad_sum_BND);

// bias_F: may be undefined.
void swiglu_forward_cuda(const at::Tensor& gate_and_value_BNF, const at::Tensor& bias_F, const at::Tensor& out_BNF);
// Returns the gradient of the bias, undefined without one.
at::Tensor swiglu_backward_cuda(const at::Tensor& grad_BNF, const at::Tensor& gate_and_value_BNF,
                                const at::Tensor& bias_F, const at::Tensor& grad_gate_and_value_BNF);

struct HeadTensors {
  at::Tensor qkv_BNF;
  at::Tensor q_norm_E;
  at::Tensor k_norm_E;
  HeadRotation rotation;
};
void heads_forward_cuda(const HeadTensors& heads, const at::Tensor& q_BNAE, const at::Tensor& k_BNAE);
// Returns the gradients of q_norm and k_norm, [2, E].
at::Tensor heads_backward_cuda(const HeadTensors& heads, const std::array<at::Tensor, 3>& grads_BANE,
                               const at::Tensor& grad_qkv_BNF);

}  // namespace block_passes_detail
}  // namespace lockstep
