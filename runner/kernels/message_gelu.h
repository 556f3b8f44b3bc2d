// The element-wise operations between the matrix products of a message-passing layer: the sum of an edge's values with
// those of its two nodes, GELU (exact), and the sum over a node's neighbours. Each is one pass over the edges, forward
// and backward.
//
// Role: the edges' values are larger than the caches, and on a CPU each pass over them costs as much as a third of a
// product. fp32 on a CPU, all types of floats on CUDA; others take ATen's operators.
// Threads: as ATen operators; the CPU twin splits the nodes over ATen's threads, with the same results for any number.
// Shapes: N nodes, K neighbours, D values, R rows of a table. Differentiable once, in all but rows and weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// gelu(edges + own of the node + row of the table): [N, K, D]. edges_NKD may be overwritten: it belongs to nobody else.
// own_ND; table_RD; rows_NK: int64.
at::Tensor gelu_of_sum(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                       const at::Tensor& rows_NK);

// gelu(x + bias): [N, K, D]. bias_D.
at::Tensor gelu_with_bias(const at::Tensor& x_NKD, const at::Tensor& bias_D);

// Σ over the neighbours of weight · gelu(x + bias): [N, D]. weights_NK: fp32.
at::Tensor weighted_gelu_sum(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK);

namespace message_gelu_detail {

struct Sizes {
  int64_t neighbours = 0;
  int64_t width = 0;
};
inline Sizes sizes_of(const at::Tensor& x_NKD) { return {.neighbours = x_NKD.size(1), .width = x_NKD.size(2)}; }

// On a CPU, of the nodes from `begin` to `end`. Pointers are to the first node's values; rows of D contiguous floats.
// edges: becomes the sum; out: its GELU.
void sum_forward(Sizes sizes, int64_t begin, int64_t end, float* edges, const float* own, const float* table,
                 const int64_t* rows, float* out);
// grad_sum: the gradient of the sum; grad_own: its sum over the neighbours.
void sum_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* sum, float* grad_sum,
                  float* grad_own);
// grad_table += grad_sum by rows; columns from `first` to `last` alone.
void scatter_rows(Sizes sizes, int64_t begin, int64_t end, int64_t first, int64_t last, const float* grad_sum,
                  const int64_t* rows, float* grad_table);
void bias_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, float* out);
// grad_bias: of these nodes, added to.
void bias_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x, const float* bias,
                   float* grad_x, float* grad_bias);
void weighted_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, const float* weights,
                      float* out);
void weighted_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x,
                       const float* bias, const float* weights, float* grad_x, float* grad_bias);

// On CUDA, of all nodes; contiguous and, but for rows and weights, of one type. edges: becomes the sum.
void sum_forward_cuda(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                      const at::Tensor& rows_NK, const at::Tensor& out_NKD);
void sum_backward_cuda(const at::Tensor& grad_NKD, const at::Tensor& sum_NKD, const at::Tensor& grad_sum_NKD,
                       const at::Tensor& grad_own_ND);
// weights_NK: undefined where the GELUs are not summed; `out` and `grad_out` are [N, K, D] then, else [N, D].
void bias_forward_cuda(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK,
                       const at::Tensor& out);
void bias_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x_NKD, const at::Tensor& bias_D,
                        const at::Tensor& weights_NK, const at::Tensor& grad_x_NKD);

}  // namespace message_gelu_detail
}  // namespace lockstep
