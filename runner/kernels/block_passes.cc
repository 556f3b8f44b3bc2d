#include "runner/kernels/block_passes.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "runner/base/check.h"
#include "runner/kernels/quads.h"

namespace lockstep {
namespace {

using namespace block_passes_detail;

// A piece is a run of tokens of one sample whose values fit into a core's cache. Sums are computed per piece and then
// added in the order of the pieces, so that they do not depend on the number of threads.
constexpr int64_t kFloatsOfPiece = int64_t{1} << 15;

struct Pieces {
  int64_t samples;
  int64_t tokens;           // per sample
  int64_t tokens_of_piece;  // per piece; the last piece of a sample may have fewer
  int64_t of_sample;

  Pieces(int64_t samples, int64_t tokens, int64_t width)
      : samples(samples),
        tokens(tokens),
        tokens_of_piece(std::max<int64_t>(1, kFloatsOfPiece / std::max<int64_t>(1, width))),
        of_sample((tokens + tokens_of_piece - 1) / tokens_of_piece) {}
};

Pieces pieces_of(const at::Tensor& x_BND) { return {x_BND.size(0), x_BND.size(1), x_BND.size(2)}; }

struct Piece {
  int64_t number = 0;
  int64_t sample = 0;
  int64_t first = 0;  // number of the first token within its sample
  int64_t tokens = 0;
  int64_t begin = 0;  // number of the first token among the tokens of all samples
};

void for_each_piece(const Pieces& pieces, const std::function<void(const Piece&)>& use) {
  at::parallel_for(0, pieces.samples * pieces.of_sample, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      const int64_t sample = number / pieces.of_sample;
      const int64_t first = (number % pieces.of_sample) * pieces.tokens_of_piece;
      use({.number = number,
           .sample = sample,
           .first = first,
           .tokens = std::min(pieces.tokens_of_piece, pieces.tokens - first),
           .begin = sample * pieces.tokens + first});
    }
  });
}

// Memory for one row of sums per piece, [B, pieces of a sample, width].
at::Tensor sums_by_piece(const Pieces& pieces, int64_t width, const at::Tensor& like) {
  return at::empty({pieces.samples, pieces.of_sample, width}, like.options());
}

#ifdef LOCKSTEP_CUDA
constexpr bool kHasCudaPasses = true;
#else
constexpr bool kHasCudaPasses = false;
#endif
constexpr int64_t kWidthOfNormMax = 3072;  // four rows in fp32 take 48 KiB of shared memory
constexpr int64_t kWidthOfHeadMax = 128;

template <typename... Tensors>
bool all_of_type(at::ScalarType type, const Tensors&... tensors) {
  return ((tensors.scalar_type() == type) && ...);
}

template <typename... Tensors>
bool all_fp32_on_cpu(const Tensors&... tensors) {
  return all_of_type(at::kFloat, tensors...) && (tensors.is_cpu() && ...);
}

// The rows of each sample; on a GPU they may be strided.
at::Tensor in_rows(const at::Tensor& x_BD) {
  const bool has_quads = x_BD.stride(1) == 1 && x_BD.stride(0) % kQuad == 0 && starts_quads(x_BD);
  return x_BD.is_cuda() && has_quads ? x_BD : in_a_row(x_BD);
}

// In fp32, whatever x's type is: a GPU has one kernel for it where x and the weight have the same type.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  return at::rms_norm(x.to(at::kFloat), weight.sizes(), weight.to(at::kFloat), kNormEps);
}

// cos + i sin for each pair of elements: [N, 1, E / 2].
at::Tensor turns_of(const HeadRotation& rotation) {
  const auto of_pairs = [](const at::Tensor& x_NE) { return x_NE.unflatten(-1, {-1, 2}).select(-1, 0); };
  return at::complex(of_pairs(rotation.cos_NE), of_pairs(rotation.sin_NE)).unsqueeze(1);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The norm of x or, where there is a change, of x + gate · change: {normed} or {sum, normed}.
class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x_BND,
                               const std::optional<at::Tensor>& gate_BD, const std::optional<at::Tensor>& change_BND,
                               const at::Tensor& weight_D, const at::Tensor& shift_BD, const at::Tensor& scale_BD) {
    const bool has_change = change_BND.has_value();
    NormTensors norm{.x_BND = in_a_row(x_BND),
                     .gate_BD = has_change ? in_rows(*gate_BD) : at::Tensor(),
                     .change_BND = has_change ? in_a_row(*change_BND) : at::Tensor(),
                     .weight_D = in_a_row(weight_D),
                     .scale_BD = in_rows(scale_BD)};
    const at::Tensor sum_BND = has_change ? at::empty_like(norm.x_BND) : at::Tensor();
    const at::Tensor normed_BND = at::empty(x_BND.sizes(), shift_BD.options());
    forward_pass(norm, in_rows(shift_BD), sum_BND, normed_BND);
    if (has_change) norm.x_BND = sum_BND;
    context->save_for_backward({norm.x_BND, norm.gate_BD, norm.change_BND, norm.weight_D, norm.scale_BD});
    context->set_materialize_grads(false);
    return has_change ? variable_list{sum_BND, normed_BND} : variable_list{normed_BND};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const NormTensors norm{
        .x_BND = saved[0], .gate_BD = saved[1], .change_BND = saved[2], .weight_D = saved[3], .scale_BD = saved[4]};
    const auto given = [](const at::Tensor& grad) { return grad.defined() ? in_a_row(grad) : grad; };
    const at::Tensor grad_sum_BND = norm.change_BND.defined() ? given(grads[0]) : at::Tensor();
    const at::Tensor grad_BND =
        grads.back().defined() ? given(grads.back()) : at::zeros_like(norm.x_BND, norm.scale_BD.options());
    const NormGrads of = backward_pass(norm, grad_BND, grad_sum_BND);
    return {of.x_BND, of.gate_BD, of.change_BND, of.weight_D, of.shift_BD, of.scale_BD};
  }

 private:
  static void forward_pass(const NormTensors& norm, const at::Tensor& shift_BD, const at::Tensor& sum_BND,
                           const at::Tensor& normed_BND) {
#ifdef LOCKSTEP_CUDA
    if (normed_BND.is_cuda()) return norm_forward_cuda(norm, shift_BD, sum_BND, normed_BND);
#endif
    const at::Tensor factor_BD = (norm.scale_BD + 1.0) * norm.weight_D;
    const int64_t d = normed_BND.size(2);
    for_each_piece(pieces_of(normed_BND), [&](const Piece& p) {
      const float* x = norm.x_BND.const_data_ptr<float>() + p.begin * d;
      if (sum_BND.defined()) {
        float* const sum = sum_BND.mutable_data_ptr<float>() + p.begin * d;
        sum_forward(p.tokens, d, x, norm.gate_BD.const_data_ptr<float>() + p.sample * d,
                    norm.change_BND.const_data_ptr<float>() + p.begin * d, sum);
        x = sum;
      }
      norm_forward(p.tokens, d, x, factor_BD.const_data_ptr<float>() + p.sample * d,
                   shift_BD.const_data_ptr<float>() + p.sample * d, normed_BND.mutable_data_ptr<float>() + p.begin * d);
    });
  }

  static NormGrads backward_pass(const NormTensors& norm, const at::Tensor& grad_BND, const at::Tensor& grad_sum_BND) {
#ifdef LOCKSTEP_CUDA
    if (grad_BND.is_cuda()) return norm_backward_cuda(norm, grad_BND, grad_sum_BND);
#endif
    const at::Tensor& x = norm.x_BND;
    const int64_t d = x.size(2);
    const bool has_change = norm.change_BND.defined();
    const Pieces pieces = pieces_of(x);
    const at::Tensor one_and_scale_BD = norm.scale_BD + 1.0;
    const at::Tensor factor_BD = one_and_scale_BD * norm.weight_D;
    const at::Tensor of_shift = sums_by_piece(pieces, d, x);
    const at::Tensor of_factor = sums_by_piece(pieces, d, x);
    const at::Tensor of_gate = has_change ? sums_by_piece(pieces, d, x) : at::Tensor();
    NormGrads of;
    of.x_BND = at::empty_like(x);
    if (has_change) of.change_BND = at::empty_like(x);
    for_each_piece(pieces, [&](const Piece& p) {
      const int64_t at = p.begin * d;
      float* const of_x = of.x_BND.mutable_data_ptr<float>() + at;
      norm_backward(p.tokens, d, grad_BND.const_data_ptr<float>() + at,
                    grad_sum_BND.defined() ? grad_sum_BND.const_data_ptr<float>() + at : nullptr,
                    x.const_data_ptr<float>() + at, factor_BD.const_data_ptr<float>() + p.sample * d, of_x,
                    of_shift.mutable_data_ptr<float>() + p.number * d,
                    of_factor.mutable_data_ptr<float>() + p.number * d);
      if (!has_change) return;
      sum_backward(p.tokens, d, of_x, norm.gate_BD.const_data_ptr<float>() + p.sample * d,
                   norm.change_BND.const_data_ptr<float>() + at, of_gate.mutable_data_ptr<float>() + p.number * d,
                   of.change_BND.mutable_data_ptr<float>() + at);
    });
    const at::Tensor of_factor_BD = of_factor.sum(1);
    if (has_change) of.gate_BD = of_gate.sum(1);
    of.weight_D = (of_factor_BD * one_and_scale_BD).sum(0);
    of.shift_BD = of_shift.sum(1);
    of.scale_BD = of_factor_BD * norm.weight_D;
    return of;
  }
};

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  // bias_F: only on a GPU.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_and_value_BNF,
                            const std::optional<at::Tensor>& bias_F) {
    const at::Tensor x = in_a_row(gate_and_value_BNF);
    const int64_t f = x.size(2) / 2;
    const at::Tensor out_BNF = at::empty({x.size(0), x.size(1), f}, x.options());
    const at::Tensor bias = bias_F ? bias_F->contiguous() : at::Tensor();
    context->save_for_backward({x, bias});
#ifdef LOCKSTEP_CUDA
    if (x.is_cuda()) {
      swiglu_forward_cuda(x, bias, out_BNF);
      return out_BNF;
    }
#endif
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      swiglu_forward(p.tokens, f, x.const_data_ptr<float>() + p.begin * 2 * f,
                     out_BNF.mutable_data_ptr<float>() + p.begin * f);
    });
    return out_BNF;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad = in_a_row(grads[0]);
    const at::Tensor grad_x = at::empty_like(x);
#ifdef LOCKSTEP_CUDA
    if (x.is_cuda()) {
      const at::Tensor grad_bias_F = swiglu_backward_cuda(grad, x, saved[1], grad_x);
      return {grad_x, grad_bias_F};
    }
#endif
    const int64_t f = grad.size(2);
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      swiglu_backward(p.tokens, f, grad.const_data_ptr<float>() + p.begin * f,
                      x.const_data_ptr<float>() + p.begin * 2 * f, grad_x.mutable_data_ptr<float>() + p.begin * 2 * f);
    });
    return {grad_x, at::Tensor()};
  }
};

// Splits a token's 3 A rows into its heads: [B, N, 3 A, E] → three of [B, A, N, E].
class HeadsFunction : public torch::autograd::Function<HeadsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv_BNF, const at::Tensor& q_weight_E,
                               const at::Tensor& k_weight_E, const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor qkv = in_a_row(qkv_BNF);
    const at::Tensor q_norm_E = in_a_row(q_weight_E);
    const at::Tensor k_norm_E = in_a_row(k_weight_E);
    const at::Tensor cos_NE = in_a_row(cos);
    const at::Tensor sin_NE = in_a_row(sin);
    const int64_t width = qkv.size(2) / 3;
    const int64_t e = q_norm_E.size(0);
    const int64_t heads = width / e;
    context->save_for_backward({qkv, q_norm_E, k_norm_E, cos_NE, sin_NE});
#ifdef LOCKSTEP_CUDA
    if (qkv.is_cuda()) {
      const auto of_tokens = [&] { return at::empty({qkv.size(0), qkv.size(1), heads, e}, qkv.options()); };
      const at::Tensor q_BNAE = of_tokens();
      const at::Tensor k_BNAE = of_tokens();
      heads_forward_cuda({qkv, q_norm_E, k_norm_E, { cos_NE, sin_NE }}, q_BNAE, k_BNAE);
      const at::Tensor v_BNAE = qkv.detach().slice(2, 2 * width).unflatten(2, {heads, e});
      return {q_BNAE.transpose(1, 2), k_BNAE.transpose(1, 2), v_BNAE.transpose(1, 2)};
    }
#endif
    variable_list out;
    for (int i = 0; i < 3; ++i) out.push_back(at::empty({qkv.size(0), heads, qkv.size(1), e}, qkv.options()));
    const std::array<const float*, 3> weights = {q_norm_E.const_data_ptr<float>(), k_norm_E.const_data_ptr<float>(),
                                                 nullptr};
    for_each_piece(pieces_of(qkv), [&](const Piece& p) {
      HeadPass pass{.tokens = p.tokens,
                    .width = e,
                    .cos = cos_NE.const_data_ptr<float>() + p.first * e,
                    .sin = sin_NE.const_data_ptr<float>() + p.first * e};
      for (size_t i = 0; i < 3; ++i) {
        pass.weight = weights[i];
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t row = (p.sample * heads + head) * qkv.size(1) + p.first;
          head_forward(pass,
                       qkv.const_data_ptr<float>() + p.begin * 3 * width + static_cast<int64_t>(i) * width + head * e,
                       3 * width, out[i].mutable_data_ptr<float>() + row * e, e);
        }
      }
    });
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const int64_t width = qkv.size(2) / 3;
    const int64_t e = saved[1].size(0);
    const int64_t heads = width / e;
    std::array<at::Tensor, 3> rows;  // the E elements of a head are contiguous; heads and tokens may be in either order
    std::transform(grads.begin(), grads.end(), rows.begin(), in_rows_of_heads);
    const at::Tensor grad_qkv = at::empty_like(qkv);
#ifdef LOCKSTEP_CUDA
    if (qkv.is_cuda()) {
      const HeadTensors tensors{.qkv_BNF = qkv, .q_norm_E = saved[1], .k_norm_E = saved[2], .rotation = {
                                  .cos_NE = saved[3],
                                  .sin_NE = saved[4]
                                }};
      const at::Tensor grad_norms_2E = heads_backward_cuda(tensors, rows, grad_qkv);
      return {grad_qkv, grad_norms_2E[0], grad_norms_2E[1], at::Tensor(), at::Tensor()};
    }
#endif
    const Pieces pieces = pieces_of(qkv);
    const at::Tensor grad_norms = sums_by_piece(pieces, 2 * e, qkv).zero_();
    for_each_piece(pieces, [&](const Piece& p) {
      HeadPass pass{.tokens = p.tokens,
                    .width = e,
                    .cos = saved[3].const_data_ptr<float>() + p.first * e,
                    .sin = saved[4].const_data_ptr<float>() + p.first * e};
      for (size_t i = 0; i < 3; ++i) {
        pass.weight = i == 2 ? nullptr : saved[1 + i].const_data_ptr<float>();
        const at::Tensor& grad = rows[i];
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t place = p.begin * 3 * width + static_cast<int64_t>(i) * width + head * e;
          head_backward(pass,
                        grad.const_data_ptr<float>() + p.sample * grad.stride(0) + head * grad.stride(1) +
                            p.first * grad.stride(2),
                        grad.stride(2), qkv.const_data_ptr<float>() + place, grad_qkv.mutable_data_ptr<float>() + place,
                        3 * width, grad_norms.mutable_data_ptr<float>() + p.number * 2 * e + (i == 1 ? e : 0));
        }
      }
    });
    const at::Tensor grad_norms_2E = grad_norms.flatten(0, 1).sum(0);
    return {grad_qkv, grad_norms_2E.slice(0, 0, e), grad_norms_2E.slice(0, e), at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor in_rows_of_heads(const at::Tensor& grad_BANE) {
    if (grad_BANE.is_cpu()) return grad_BANE.stride(3) == 1 ? grad_BANE : grad_BANE.contiguous();
    const at::IntArrayRef strides = grad_BANE.strides();
    const bool has_quads = starts_quads(grad_BANE) && std::all_of(strides.begin(), strides.end() - 1,
                                                                  [](int64_t stride) { return stride % kQuad == 0; });
    return has_quads && strides.back() == 1 ? grad_BANE : in_a_row(grad_BANE);
  }
};

bool norm_has_kernel(const at::Tensor& x_BND, const at::Tensor& weight_D, const at::Tensor& shift_BD,
                     const at::Tensor& scale_BD) {
  if (x_BND.is_cuda()) {
    return kHasCudaPasses && all_of_type(at::kFloat, x_BND, weight_D) && has_quad_type(shift_BD) &&
           all_of_type(shift_BD.scalar_type(), scale_BD) && x_BND.size(2) % kQuad == 0 &&
           x_BND.size(2) <= kWidthOfNormMax;
  }
  return all_fp32_on_cpu(x_BND, weight_D, shift_BD, scale_BD);
}

void check_rows_of_samples(const at::Tensor& x_BND, const at::Tensor& rows_BD) {
  LOCKSTEP_CHECK(rows_BD.dim() == 2 && rows_BD.size(0) == x_BND.size(0) && rows_BD.size(1) == x_BND.size(2),
                 "shift, scale and gate have a row for each sample");
}

bool swiglu_has_kernel(const at::Tensor& gate_and_value_BNF) {
  if (gate_and_value_BNF.is_cuda()) return kHasCudaPasses && has_quad_type(gate_and_value_BNF);
  return all_fp32_on_cpu(gate_and_value_BNF);
}

bool heads_have_kernel(const at::Tensor& qkv_BNF, const at::Tensor& q_norm_E, const at::Tensor& k_norm_E) {
  if (qkv_BNF.is_cuda()) {
    const int64_t e = q_norm_E.size(0);
    return kHasCudaPasses && has_quad_type(qkv_BNF) && all_of_type(at::kFloat, q_norm_E, k_norm_E) && e % kQuad == 0 &&
           e <= kWidthOfHeadMax;
  }
  return all_fp32_on_cpu(qkv_BNF, q_norm_E, k_norm_E);
}

}  // namespace

at::Tensor modulated_rms_norm(const at::Tensor& x_BND, const at::Tensor& weight_D, const at::Tensor& shift_BD,
                              const at::Tensor& scale_BD) {
  for (const at::Tensor& rows : {shift_BD, scale_BD}) check_rows_of_samples(x_BND, rows);
  if (norm_has_kernel(x_BND, weight_D, shift_BD, scale_BD)) {
    const std::optional<at::Tensor> none;
    return NormFunction::apply(x_BND, none, none, weight_D, shift_BD, scale_BD)[0];
  }
  return at::addcmul(shift_BD.unsqueeze(1), rms_norm(x_BND, weight_D), 1.0 + scale_BD.unsqueeze(1));
}

NormedSum normed_gated_sum(const at::Tensor& x_BND, const at::Tensor& gate_BD, const at::Tensor& change_BND,
                           const at::Tensor& weight_D, const at::Tensor& shift_BD, const at::Tensor& scale_BD) {
  for (const at::Tensor& rows : {gate_BD, shift_BD, scale_BD}) check_rows_of_samples(x_BND, rows);
  if (norm_has_kernel(x_BND, weight_D, shift_BD, scale_BD) &&
      all_of_type(shift_BD.scalar_type(), gate_BD, change_BND)) {
    const auto both =
        NormFunction::apply(x_BND, std::optional(gate_BD), std::optional(change_BND), weight_D, shift_BD, scale_BD);
    return {.sum_BND = both[0], .normed_BND = both[1]};
  }
  const at::Tensor sum_BND = x_BND + gate_BD.unsqueeze(1) * change_BND;
  return {.sum_BND = sum_BND, .normed_BND = modulated_rms_norm(sum_BND, weight_D, shift_BD, scale_BD)};
}

at::Tensor swiglu(const at::Tensor& gate_and_value_BNF, const at::Tensor& bias_F) {
  const bool has_bias = bias_F.defined();
  const bool has_kernel = swiglu_has_kernel(gate_and_value_BNF);
  if (has_bias && !(has_kernel && gate_and_value_BNF.is_cuda())) return swiglu(gate_and_value_BNF + bias_F);
  if (has_kernel) return SwigluFunction::apply(gate_and_value_BNF, has_bias ? std::optional(bias_F) : std::nullopt);
  const auto halves = gate_and_value_BNF.chunk(2, -1);
  return torch::silu(halves[0]) * halves[1];
}

Heads rotated_heads(const at::Tensor& qkv_BNF, const at::Tensor& q_norm_E, const at::Tensor& k_norm_E,
                    const HeadRotation& rotation) {
  const int64_t e = q_norm_E.size(0);
  LOCKSTEP_CHECK(e % 2 == 0 && qkv_BNF.size(2) % (3 * e) == 0, "queries, keys and values of whole heads, in pairs");
  const std::array<int64_t, 2> of_tokens = {qkv_BNF.size(1), e};
  LOCKSTEP_CHECK(rotation.cos_NE.sizes().equals(of_tokens) && rotation.sin_NE.sizes().equals(of_tokens),
                 "an angle of each token");
  if (heads_have_kernel(qkv_BNF, q_norm_E, k_norm_E)) {
    const auto heads = HeadsFunction::apply(qkv_BNF, q_norm_E, k_norm_E, rotation.cos_NE, rotation.sin_NE);
    return {.q_BANE = heads[0], .k_BANE = heads[1], .v_BANE = heads[2]};
  }
  const auto qkv_BNAE = qkv_BNF.unflatten(-1, {3, -1, e}).unbind(2);
  const at::Tensor turns = turns_of(rotation);
  // A pair is a complex number, which one product turns.
  const auto turned = [&](const at::Tensor& x_BNAE, const at::Tensor& norm_E) {
    const at::Tensor pairs = at::view_as_complex(rms_norm(x_BNAE, norm_E).unflatten(-1, {-1, 2}));
    return at::view_as_real(pairs * turns).flatten(-2).to(x_BNAE.scalar_type()).transpose(1, 2);
  };
  return {.q_BANE = turned(qkv_BNAE[0], q_norm_E),
          .k_BANE = turned(qkv_BNAE[1], k_norm_E),
          .v_BANE = qkv_BNAE[2].transpose(1, 2)};
}

}  // namespace lockstep
