#include "runner/kernels/block_passes.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>

#include "runner/base/check.h"

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

template <typename... Tensors>
bool has_kernel(const Tensors&... tensors) {
  return ((tensors.is_cpu() && tensors.scalar_type() == at::kFloat) && ...);
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

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BND, const at::Tensor& weight_D,
                            const at::Tensor& shift_BD, const at::Tensor& scale_BD) {
    const at::Tensor x = x_BND.contiguous();
    const at::Tensor shift = shift_BD.contiguous();
    const at::Tensor one_and_scale_BD = scale_BD + 1.0;
    const at::Tensor factor_BD = one_and_scale_BD * weight_D;
    const at::Tensor out_BND = at::empty_like(x);
    const int64_t d = x.size(2);
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      norm_forward(p.tokens, d, x.const_data_ptr<float>() + p.begin * d,
                   factor_BD.const_data_ptr<float>() + p.sample * d, shift.const_data_ptr<float>() + p.sample * d,
                   out_BND.mutable_data_ptr<float>() + p.begin * d);
    });
    context->save_for_backward({x, weight_D, one_and_scale_BD, factor_BD});
    return out_BND;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& factor_BD = saved[3];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const int64_t d = x.size(2);
    const Pieces pieces = pieces_of(x);
    const at::Tensor grad_shift = sums_by_piece(pieces, d, x);
    const at::Tensor grad_factor = sums_by_piece(pieces, d, x);
    for_each_piece(pieces, [&](const Piece& p) {
      norm_backward(p.tokens, d, grad.const_data_ptr<float>() + p.begin * d, x.const_data_ptr<float>() + p.begin * d,
                    factor_BD.const_data_ptr<float>() + p.sample * d, grad_x.mutable_data_ptr<float>() + p.begin * d,
                    grad_shift.mutable_data_ptr<float>() + p.number * d,
                    grad_factor.mutable_data_ptr<float>() + p.number * d);
    });
    const at::Tensor grad_factor_BD = grad_factor.sum(1);
    return {grad_x, (grad_factor_BD * saved[2]).sum(0), grad_shift.sum(1), grad_factor_BD * saved[1]};
  }
};

class GatedSumFunction : public torch::autograd::Function<GatedSumFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BND, const at::Tensor& gate_BD,
                            const at::Tensor& change_BND) {
    const at::Tensor x = x_BND.contiguous();
    const at::Tensor gate = gate_BD.contiguous();
    const at::Tensor change = change_BND.contiguous();
    const at::Tensor out_BND = at::empty_like(x);
    const int64_t d = x.size(2);
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      sum_forward(p.tokens, d, x.const_data_ptr<float>() + p.begin * d, gate.const_data_ptr<float>() + p.sample * d,
                  change.const_data_ptr<float>() + p.begin * d, out_BND.mutable_data_ptr<float>() + p.begin * d);
    });
    context->save_for_backward({gate, change});
    return out_BND;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& change = saved[1];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_change = at::empty_like(change);
    const int64_t d = change.size(2);
    const Pieces pieces = pieces_of(change);
    const at::Tensor grad_gate = sums_by_piece(pieces, d, change);
    for_each_piece(pieces, [&](const Piece& p) {
      sum_backward(p.tokens, d, grad.const_data_ptr<float>() + p.begin * d,
                   saved[0].const_data_ptr<float>() + p.sample * d, change.const_data_ptr<float>() + p.begin * d,
                   grad_gate.mutable_data_ptr<float>() + p.number * d,
                   grad_change.mutable_data_ptr<float>() + p.begin * d);
    });
    return {grads[0], grad_gate.sum(1), grad_change};
  }
};

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_and_value_BNF) {
    const at::Tensor x = gate_and_value_BNF.contiguous();
    const int64_t f = x.size(2) / 2;
    const at::Tensor out_BNF = at::empty({x.size(0), x.size(1), f}, x.options());
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      swiglu_forward(p.tokens, f, x.const_data_ptr<float>() + p.begin * 2 * f,
                     out_BNF.mutable_data_ptr<float>() + p.begin * f);
    });
    context->save_for_backward({x});
    return out_BNF;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const int64_t f = grad.size(2);
    for_each_piece(pieces_of(x), [&](const Piece& p) {
      swiglu_backward(p.tokens, f, grad.const_data_ptr<float>() + p.begin * f,
                      x.const_data_ptr<float>() + p.begin * 2 * f, grad_x.mutable_data_ptr<float>() + p.begin * 2 * f);
    });
    return {grad_x};
  }
};

// Splits a token's 3 A rows into its heads: [B, N, 3 A, E] → three of [B, A, N, E].
class HeadsFunction : public torch::autograd::Function<HeadsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv_BNF, const at::Tensor& q_norm_E,
                               const at::Tensor& k_norm_E, const at::Tensor& cos_NE, const at::Tensor& sin_NE) {
    const at::Tensor qkv = qkv_BNF.contiguous();
    const int64_t width = qkv.size(2) / 3;
    const int64_t e = q_norm_E.size(0);
    const int64_t heads = width / e;
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
    context->save_for_backward({qkv, q_norm_E, k_norm_E, cos_NE, sin_NE});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const int64_t width = qkv.size(2) / 3;
    const int64_t e = saved[1].size(0);
    const int64_t heads = width / e;
    variable_list rows;  // the E elements of a head must be contiguous; heads and tokens may be in either order
    for (const at::Tensor& grad : grads) rows.push_back(grad.stride(3) == 1 ? grad : grad.contiguous());
    const at::Tensor grad_qkv = at::empty_like(qkv);
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
};

}  // namespace

at::Tensor modulated_rms_norm(const at::Tensor& x_BND, const at::Tensor& weight_D, const at::Tensor& shift_BD,
                              const at::Tensor& scale_BD) {
  if (has_kernel(x_BND, weight_D, shift_BD, scale_BD)) return NormFunction::apply(x_BND, weight_D, shift_BD, scale_BD);
  return at::addcmul(shift_BD.unsqueeze(1), rms_norm(x_BND, weight_D), 1.0 + scale_BD.unsqueeze(1));
}

at::Tensor gated_sum(const at::Tensor& x_BND, const at::Tensor& gate_BD, const at::Tensor& change_BND) {
  if (has_kernel(x_BND, gate_BD, change_BND)) return GatedSumFunction::apply(x_BND, gate_BD, change_BND);
  return x_BND + gate_BD.unsqueeze(1) * change_BND;
}

at::Tensor swiglu(const at::Tensor& gate_and_value_BNF) {
  if (has_kernel(gate_and_value_BNF)) return SwigluFunction::apply(gate_and_value_BNF);
  const auto halves = gate_and_value_BNF.chunk(2, -1);
  return torch::silu(halves[0]) * halves[1];
}

Heads rotated_heads(const at::Tensor& qkv_BNF, const at::Tensor& q_norm_E, const at::Tensor& k_norm_E,
                    const HeadRotation& rotation) {
  const int64_t e = q_norm_E.size(0);
  LOCKSTEP_CHECK(e % 2 == 0 && qkv_BNF.size(2) % (3 * e) == 0, "queries, keys and values of whole heads, in pairs");
  if (has_kernel(qkv_BNF, q_norm_E, k_norm_E)) {
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
