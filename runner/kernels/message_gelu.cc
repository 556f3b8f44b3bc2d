#include "runner/kernels/message_gelu.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "runner/kernels/column_sums.h"
#include "runner/kernels/quads.h"

namespace lockstep {
namespace {

using namespace message_gelu_detail;

// A piece is a run of nodes whose edges' values fit into a core's cache. Sums are computed per piece and then added in
// the order of the pieces, so that they do not depend on the number of threads.
constexpr int64_t kFloatsOfPiece = int64_t{1} << 16;

int64_t nodes_of_piece(Sizes sizes) {
  return std::max<int64_t>(1, kFloatsOfPiece / std::max<int64_t>(1, sizes.neighbours * sizes.width));
}

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

bool has_kernel(const at::Tensor& x_NKD) {
#ifdef LOCKSTEP_CUDA
  if (x_NKD.is_cuda()) return has_quad_type(x_NKD);
#endif
  return x_NKD.is_cpu() && x_NKD.scalar_type() == at::kFloat;
}

void apply_sum(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
               const at::Tensor& rows_NK, const at::Tensor& out_NKD) {
#ifdef LOCKSTEP_CUDA
  if (edges_NKD.is_cuda()) return sum_forward_cuda(edges_NKD, own_ND, table_RD, rows_NK, out_NKD);
#endif
  for_each_piece(edges_NKD, [&](int64_t, int64_t begin, int64_t end) {
    sum_forward(sizes_of(edges_NKD), begin, end, edges_NKD.mutable_data_ptr<float>(), own_ND.const_data_ptr<float>(),
                table_RD.const_data_ptr<float>(), rows_NK.const_data_ptr<int64_t>(), out_NKD.mutable_data_ptr<float>());
  });
}

// Returns the gradients of the sum, of the nodes' own values and of the table of `table_rows` rows.
torch::autograd::variable_list sum_gradients(const at::Tensor& grad_NKD, const at::Tensor& sum_NKD,
                                             const at::Tensor& rows_NK, int64_t table_rows) {
  const Sizes sizes = sizes_of(sum_NKD);
  const at::Tensor grad_sum_NKD = at::empty_like(sum_NKD);
  const at::Tensor grad_own_ND = at::empty({sum_NKD.size(0), sizes.width}, sum_NKD.options());
#ifdef LOCKSTEP_CUDA
  if (sum_NKD.is_cuda()) {
    sum_backward_cuda(grad_NKD, sum_NKD, grad_sum_NKD, grad_own_ND);
    const at::Tensor grad_table_RD = at::embedding_dense_backward(grad_sum_NKD, rows_NK, table_rows, /*padding_idx=*/-1,
                                                                  /*scale_grad_by_freq=*/false);
    return {grad_sum_NKD, grad_own_ND, grad_table_RD};
  }
#endif
  const at::Tensor grad_table_RD = at::zeros({table_rows, sizes.width}, sum_NKD.options());
  const auto scatter = [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    scatter_rows(sizes, begin, end, first, last, grad_sum_NKD.const_data_ptr<float>(),
                 rows_NK.const_data_ptr<int64_t>(), grad_table_RD.mutable_data_ptr<float>());
  };
  // Two nodes may have a neighbour in common, so that two threads must not add to the same columns of the table. A
  // single thread adds each piece while its values are in the cache; several threads add at the end, each to its own
  // columns.
  const bool has_one_thread = at::get_num_threads() == 1;
  for_each_piece(sum_NKD, [&](int64_t, int64_t begin, int64_t end) {
    sum_backward(sizes, begin, end, grad_NKD.const_data_ptr<float>(), sum_NKD.const_data_ptr<float>(),
                 grad_sum_NKD.mutable_data_ptr<float>(), grad_own_ND.mutable_data_ptr<float>());
    if (has_one_thread) scatter(begin, end, 0, sizes.width);
  });
  if (!has_one_thread) {
    constexpr int64_t kColumns = 16;  // the floats of one cache line
    at::parallel_for(0, sizes.width, kColumns,
                     [&](int64_t first, int64_t last) { scatter(0, sum_NKD.size(0), first, last); });
  }
  return {grad_sum_NKD, grad_own_ND, grad_table_RD};
}

// weights_NK: undefined if the GELUs are not summed.
void apply_bias(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK,
                const at::Tensor& out) {
#ifdef LOCKSTEP_CUDA
  if (x_NKD.is_cuda()) return bias_forward_cuda(x_NKD, bias_D, weights_NK, out);
#endif
  const Sizes sizes = sizes_of(x_NKD);
  const auto* const x = x_NKD.const_data_ptr<float>();
  const auto* const bias = bias_D.const_data_ptr<float>();
  for_each_piece(x_NKD, [&](int64_t, int64_t begin, int64_t end) {
    if (weights_NK.defined()) {
      weighted_forward(sizes, begin, end, x, bias, weights_NK.const_data_ptr<float>(), out.mutable_data_ptr<float>());
    } else {
      bias_forward(sizes, begin, end, x, bias, out.mutable_data_ptr<float>());
    }
  });
}

// Returns the gradients of x and of the bias.
torch::autograd::variable_list bias_gradients(const at::Tensor& grad_out, const at::Tensor& x_NKD,
                                              const at::Tensor& bias_D, const at::Tensor& weights_NK) {
  const at::Tensor grad_x_NKD = at::empty_like(x_NKD);
#ifdef LOCKSTEP_CUDA
  if (x_NKD.is_cuda()) {
    bias_backward_cuda(grad_out, x_NKD, bias_D, weights_NK, grad_x_NKD);
    return {grad_x_NKD, column_sums(grad_x_NKD.flatten(0, 1))};
  }
#endif
  const Sizes sizes = sizes_of(x_NKD);
  const auto* const grad = grad_out.const_data_ptr<float>();
  const auto* const x = x_NKD.const_data_ptr<float>();
  const auto* const bias = bias_D.const_data_ptr<float>();
  const at::Tensor by_piece = zeros_by_piece(x_NKD);
  for_each_piece(x_NKD, [&](int64_t piece, int64_t begin, int64_t end) {
    auto* const grad_bias = by_piece.mutable_data_ptr<float>() + piece * sizes.width;
    auto* const grad_x = grad_x_NKD.mutable_data_ptr<float>();
    if (weights_NK.defined()) {
      weighted_backward(sizes, begin, end, grad, x, bias, weights_NK.const_data_ptr<float>(), grad_x, grad_bias);
    } else {
      bias_backward(sizes, begin, end, grad, x, bias, grad_x, grad_bias);
    }
  });
  return {grad_x_NKD, by_piece.sum(0)};
}

class SumFunction : public torch::autograd::Function<SumFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& edges_NKD,
                            const at::Tensor& own_ND, const at::Tensor& table_RD, const at::Tensor& rows_NK) {
    const at::Tensor sum_NKD = edges_NKD.detach().contiguous();
    const at::Tensor rows = rows_NK.contiguous();
    const at::Tensor out_NKD = at::empty_like(sum_NKD);
    apply_sum(sum_NKD, own_ND.contiguous(), table_RD.contiguous(), rows, out_NKD);
    context->save_for_backward({sum_NKD, rows});
    context->saved_data["rows"] = table_RD.size(0);
    return out_NKD;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    torch::autograd::variable_list all =
        sum_gradients(grads[0].contiguous(), saved[0], saved[1], context->saved_data["rows"].toInt());
    all.emplace_back();  // the rows have no gradient
    return all;
  }
};

class BiasFunction : public torch::autograd::Function<BiasFunction> {
 public:
  // weights_NK: nullopt if the GELUs are not summed.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NKD,
                            const at::Tensor& bias_D, const std::optional<at::Tensor>& weights_NK) {
    const at::Tensor x = x_NKD.contiguous();
    const at::Tensor bias = bias_D.contiguous();
    const at::Tensor weights = weights_NK ? weights_NK->contiguous() : at::Tensor();
    const at::Tensor out = weights.defined() ? at::empty({x.size(0), x.size(2)}, x.options()) : at::empty_like(x);
    apply_bias(x, bias, weights, out);
    context->save_for_backward({x, bias, weights});
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    torch::autograd::variable_list all = bias_gradients(grads[0].contiguous(), saved[0], saved[1], saved[2]);
    all.emplace_back();  // the weights have no gradient
    return all;
  }
};

}  // namespace

at::Tensor gelu_of_sum(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                       const at::Tensor& rows_NK) {
  if (has_kernel(edges_NKD)) {
    const auto type = edges_NKD.scalar_type();
    return SumFunction::apply(edges_NKD, own_ND.to(type), table_RD.to(type), rows_NK);
  }
  at::Tensor sum_NKD = edges_NKD;
  sum_NKD.add_(own_ND.unsqueeze(1)).add_(at::embedding(table_RD, rows_NK));
  return at::gelu(sum_NKD);
}

at::Tensor gelu_with_bias(const at::Tensor& x_NKD, const at::Tensor& bias_D) {
  const at::Tensor bias = bias_D.to(x_NKD.scalar_type());
  if (has_kernel(x_NKD)) return BiasFunction::apply(x_NKD, bias, std::nullopt);
  return at::gelu(x_NKD + bias);
}

at::Tensor weighted_gelu_sum(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK) {
  const at::Tensor bias = bias_D.to(x_NKD.scalar_type());
  if (has_kernel(x_NKD)) return BiasFunction::apply(x_NKD, bias, std::optional<at::Tensor>(weights_NK));
  return at::matmul(weights_NK.unsqueeze(1).to(x_NKD.scalar_type()), at::gelu(x_NKD + bias)).squeeze(1);
}

}  // namespace lockstep
