#include "runner/kernels/message_gelu.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>

namespace lockstep {
namespace {

using namespace message_gelu_detail;

// Nodes of one piece: its values stay in a core's cache. Sums are made piece by piece, in the order of the pieces, so
// that they do not depend on the number of threads.
constexpr int64_t kFloatsOfPiece = int64_t{1} << 16;

int64_t nodes_of_piece(Sizes sizes) {
  return std::max<int64_t>(1, kFloatsOfPiece / std::max<int64_t>(1, sizes.neighbours * sizes.width));
}

Sizes sizes_of(const at::Tensor& x_NKD) { return {.neighbours = x_NKD.size(1), .width = x_NKD.size(2)}; }

// Calls use(piece, begin, end) for the nodes of each piece.
void for_each_piece(const at::Tensor& x_NKD, const std::function<void(int64_t, int64_t, int64_t)>& use) {
  const int64_t nodes = x_NKD.size(0);
  const int64_t each = nodes_of_piece(sizes_of(x_NKD));
  at::parallel_for(0, (nodes + each - 1) / each, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      use(piece, piece * each, std::min((piece + 1) * each, nodes));
    }
  });
}

at::Tensor zeros_by_piece(const at::Tensor& x_NKD) {
  const int64_t each = nodes_of_piece(sizes_of(x_NKD));
  return at::zeros({(x_NKD.size(0) + each - 1) / each, x_NKD.size(2)}, x_NKD.options());
}

bool has_kernel(const at::Tensor& x_NKD, const at::Tensor& other) {
  return x_NKD.is_cpu() && x_NKD.scalar_type() == at::kFloat && other.scalar_type() == at::kFloat;
}

class SumFunction : public torch::autograd::Function<SumFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& edges_NKD,
                            const at::Tensor& own_ND, const at::Tensor& table_RD, const at::Tensor& rows_NK) {
    const at::Tensor sum_NKD = edges_NKD.detach().contiguous();
    const at::Tensor own = own_ND.contiguous();
    const at::Tensor table = table_RD.contiguous();
    const at::Tensor rows = rows_NK.contiguous();
    const at::Tensor out_NKD = at::empty_like(sum_NKD);
    const Sizes sizes = sizes_of(sum_NKD);
    for_each_piece(sum_NKD, [&](int64_t, int64_t begin, int64_t end) {
      sum_forward(sizes, begin, end, sum_NKD.mutable_data_ptr<float>(), own.const_data_ptr<float>(),
                  table.const_data_ptr<float>(), rows.const_data_ptr<int64_t>(), out_NKD.mutable_data_ptr<float>());
    });
    context->save_for_backward({sum_NKD, rows});
    context->saved_data["rows"] = table_RD.size(0);
    return out_NKD;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& sum_NKD = saved[0];
    const at::Tensor& rows = saved[1];
    const at::Tensor grad = grads[0].contiguous();
    const Sizes sizes = sizes_of(sum_NKD);
    const at::Tensor grad_sum = at::empty_like(sum_NKD);
    const at::Tensor grad_own = at::empty({sum_NKD.size(0), sizes.width}, sum_NKD.options());
    const at::Tensor grad_table = at::zeros({context->saved_data["rows"].toInt(), sizes.width}, sum_NKD.options());
    const auto scatter = [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
      scatter_rows(sizes, begin, end, first, last, grad_sum.const_data_ptr<float>(), rows.const_data_ptr<int64_t>(),
                   grad_table.mutable_data_ptr<float>());
    };
    // Two nodes may have a neighbour in common. One thread adds while the values are in its cache; several take a part
    // of the columns each.
    const bool is_alone = at::get_num_threads() == 1;
    for_each_piece(sum_NKD, [&](int64_t, int64_t begin, int64_t end) {
      sum_backward(sizes, begin, end, grad.const_data_ptr<float>(), sum_NKD.const_data_ptr<float>(),
                   grad_sum.mutable_data_ptr<float>(), grad_own.mutable_data_ptr<float>());
      if (is_alone) scatter(begin, end, 0, sizes.width);
    });
    if (!is_alone) {
      constexpr int64_t kColumns = 16;  // of one cache line
      at::parallel_for(0, sizes.width, kColumns,
                       [&](int64_t first, int64_t last) { scatter(0, sum_NKD.size(0), first, last); });
    }
    return {grad_sum, grad_own, grad_table, at::Tensor()};
  }
};

class BiasFunction : public torch::autograd::Function<BiasFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NKD,
                            const at::Tensor& bias_D) {
    const at::Tensor x = x_NKD.contiguous();
    const at::Tensor bias = bias_D.contiguous();
    const at::Tensor out_NKD = at::empty_like(x);
    for_each_piece(x, [&](int64_t, int64_t begin, int64_t end) {
      bias_forward(sizes_of(x), begin, end, x.const_data_ptr<float>(), bias.const_data_ptr<float>(),
                   out_NKD.mutable_data_ptr<float>());
    });
    context->save_for_backward({x, bias});
    return out_NKD;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const at::Tensor by_piece = zeros_by_piece(x);
    for_each_piece(x, [&](int64_t piece, int64_t begin, int64_t end) {
      bias_backward(sizes_of(x), begin, end, grad.const_data_ptr<float>(), x.const_data_ptr<float>(),
                    saved[1].const_data_ptr<float>(), grad_x.mutable_data_ptr<float>(),
                    by_piece.mutable_data_ptr<float>() + piece * x.size(2));
    });
    return {grad_x, by_piece.sum(0)};
  }
};

class WeightedFunction : public torch::autograd::Function<WeightedFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NKD,
                            const at::Tensor& bias_D, const at::Tensor& weights_NK) {
    const at::Tensor x = x_NKD.contiguous();
    const at::Tensor bias = bias_D.contiguous();
    const at::Tensor weights = weights_NK.contiguous();
    const at::Tensor out_ND = at::empty({x.size(0), x.size(2)}, x.options());
    for_each_piece(x, [&](int64_t, int64_t begin, int64_t end) {
      weighted_forward(sizes_of(x), begin, end, x.const_data_ptr<float>(), bias.const_data_ptr<float>(),
                       weights.const_data_ptr<float>(), out_ND.mutable_data_ptr<float>());
    });
    context->save_for_backward({x, bias, weights});
    return out_ND;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const at::Tensor by_piece = zeros_by_piece(x);
    for_each_piece(x, [&](int64_t piece, int64_t begin, int64_t end) {
      weighted_backward(sizes_of(x), begin, end, grad.const_data_ptr<float>(), x.const_data_ptr<float>(),
                        saved[1].const_data_ptr<float>(), saved[2].const_data_ptr<float>(),
                        grad_x.mutable_data_ptr<float>(), by_piece.mutable_data_ptr<float>() + piece * x.size(2));
    });
    return {grad_x, by_piece.sum(0), at::Tensor()};
  }
};

}  // namespace

at::Tensor gelu_of_sum(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                       const at::Tensor& rows_NK) {
  if (has_kernel(edges_NKD, table_RD)) return SumFunction::apply(edges_NKD, own_ND, table_RD, rows_NK);
  at::Tensor sum_NKD = edges_NKD;
  sum_NKD.add_(own_ND.unsqueeze(1)).add_(at::embedding(table_RD, rows_NK));
  return at::gelu(sum_NKD);
}

at::Tensor gelu_with_bias(const at::Tensor& x_NKD, const at::Tensor& bias_D) {
  if (has_kernel(x_NKD, bias_D)) return BiasFunction::apply(x_NKD, bias_D);
  return at::gelu(x_NKD + bias_D.to(x_NKD.scalar_type()));
}

at::Tensor weighted_gelu_sum(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK) {
  if (has_kernel(x_NKD, bias_D)) return WeightedFunction::apply(x_NKD, bias_D, weights_NK);
  const at::Tensor gelu_NKD = at::gelu(x_NKD + bias_D.to(x_NKD.scalar_type()));
  return at::matmul(weights_NK.unsqueeze(1).to(gelu_NKD.scalar_type()), gelu_NKD).squeeze(1);
}

}  // namespace lockstep
