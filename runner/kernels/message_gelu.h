// The element-wise operations between the matrix products of a message-passing layer: the sum of an edge's values and
// those of its two nodes, GELU (the exact form, with erf), and the sum over a node's neighbours. Each takes one pass
// over the edges, forward and backward.
//
// Role: the edges' values do not fit into the caches, so that on a CPU each pass over them takes a third of the time of
// a matrix product. These fused passes exist for fp32 on a CPU and for fp32, bf16 and fp16 on CUDA;
// everything else uses the ATen operators.
// Threads: as ATen operators; on a CPU the nodes are split over ATen's threads, with the same results for any number.
// Shapes: N nodes, K neighbours, D values, R rows of a table. Differentiable once, with respect to everything except
// rows and weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// gelu(edges + own + table[rows]): [N, K, D]. own_ND: each node's own values, which are added to all of its edges.
// rows_NK (int64): the row of table_RD that is added to each edge. edges_NKD may be overwritten, so that no other code
// may use it afterwards.
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

// The CPU passes over the nodes [begin, end). All pointers point to the values of node 0; a row has D contiguous
// floats. Replaces `edges` by the sum and writes the sum's GELU to `out`.
void sum_forward(Sizes sizes, int64_t begin, int64_t end, float* edges, const float* own, const float* table,
                 const int64_t* rows, float* out);
// grad_sum: the gradient with respect to the sum; grad_own: grad_sum, added up over the neighbours.
void sum_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* sum, float* grad_sum,
                  float* grad_own);
// Adds each edge's grad_sum to its row of grad_table; only the columns [first, last).
void scatter_rows(Sizes sizes, int64_t begin, int64_t end, int64_t first, int64_t last, const float* grad_sum,
                  const int64_t* rows, float* grad_table);
void bias_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, float* out);
// Adds the gradient from these nodes to grad_bias.
void bias_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x, const float* bias,
                   float* grad_x, float* grad_bias);
void weighted_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, const float* weights,
                      float* out);
void weighted_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x,
                       const float* bias, const float* weights, float* grad_x, float* grad_bias);

// The CUDA passes over all nodes. Tensors are contiguous and, except for rows and weights, of one type.
// Replaces edges_NKD by the sum.
void sum_forward_cuda(const at::Tensor& edges_NKD, const at::Tensor& own_ND, const at::Tensor& table_RD,
                      const at::Tensor& rows_NK, const at::Tensor& out_NKD);
void sum_backward_cuda(const at::Tensor& grad_NKD, const at::Tensor& sum_NKD, const at::Tensor& grad_sum_NKD,
                       const at::Tensor& grad_own_ND);
// weights_NK: undefined if the GELUs are not summed; `out` and `grad_out` are then [N, K, D], otherwise [N, D].
void bias_forward_cuda(const at::Tensor& x_NKD, const at::Tensor& bias_D, const at::Tensor& weights_NK,
                       const at::Tensor& out);
void bias_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x_NKD, const at::Tensor& bias_D,
                        const at::Tensor& weights_NK, const at::Tensor& grad_x_NKD);

}  // namespace message_gelu_detail
}  // namespace lockstep
