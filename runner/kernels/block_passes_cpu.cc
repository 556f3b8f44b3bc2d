// CPU implementation: inner loops over the values of one row, written with vector_loops.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "runner/base/vector_loops.h"
#include "runner/kernels/block_passes.h"

namespace lockstep::block_passes_detail {
namespace {

[[gnu::always_inline]] inline float inverse_rms(int64_t width, const float* x) {
  const float squares = sum_of_values(
      width, LOCKSTEP_EACH(d) { return x[d] * x[d]; });
  return 1.0F / std::sqrt(squares / static_cast<float>(width) + kNormEps);
}

}  // namespace

LOCKSTEP_VECTOR_CLONES
void norm_forward(int64_t tokens, int64_t width, const float* x, const float* factor, const float* shift, float* out) {
  for (int64_t n = 0; n < tokens; ++n, x += width, out += width) {
    const float inverse = inverse_rms(width, x);
    for_each_value(
        width, LOCKSTEP_EACH(d) { out[d] = x[d] * inverse * factor[d] + shift[d]; });
  }
}

LOCKSTEP_VECTOR_CLONES
void norm_backward(int64_t tokens, int64_t width, const float* grad, const float* grad_sum, const float* x,
                   const float* factor, float* grad_x, float* grad_shift, float* grad_factor) {
  std::fill_n(grad_shift, width, 0.0F);
  std::fill_n(grad_factor, width, 0.0F);
  for (int64_t n = 0; n < tokens; ++n, grad += width, x += width, grad_x += width) {
    const float inverse = inverse_rms(width, x);
    const float dot = sum_of_values(
        width, LOCKSTEP_EACH(d) { return grad[d] * factor[d] * x[d]; });
    // The normed value does not depend on the length of x, so the gradient has no component along x: subtract it.
    const float along_x = dot * inverse * inverse / static_cast<float>(width);
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          grad_shift[d] += grad[d];
          grad_factor[d] += grad[d] * x[d] * inverse;
          grad_x[d] = inverse * (grad[d] * factor[d] - x[d] * along_x);
        });
    if (grad_sum == nullptr) continue;
    for_each_value(
        width, LOCKSTEP_EACH(d) { grad_x[d] += grad_sum[d]; });
    grad_sum += width;
  }
}

LOCKSTEP_VECTOR_CLONES
void sum_forward(int64_t tokens, int64_t width, const float* x, const float* gate, const float* change, float* out) {
  for (int64_t n = 0; n < tokens; ++n, x += width, change += width, out += width) {
    for_each_value(
        width, LOCKSTEP_EACH(d) { out[d] = x[d] + gate[d] * change[d]; });
  }
}

LOCKSTEP_VECTOR_CLONES
void sum_backward(int64_t tokens, int64_t width, const float* grad, const float* gate, const float* change,
                  float* grad_gate, float* grad_change) {
  std::fill_n(grad_gate, width, 0.0F);
  for (int64_t n = 0; n < tokens; ++n, grad += width, change += width, grad_change += width) {
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          grad_gate[d] += grad[d] * change[d];
          grad_change[d] = grad[d] * gate[d];
        });
  }
}

LOCKSTEP_VECTOR_CLONES
void swiglu_forward(int64_t tokens, int64_t width, const float* gate_and_value, float* out) {
  for (int64_t n = 0; n < tokens; ++n, gate_and_value += 2 * width, out += width) {
    const float* const value = gate_and_value + width;
    for_each_value(
        width, LOCKSTEP_EACH(d) { out[d] = gate_and_value[d] * sigmoid(gate_and_value[d]) * value[d]; });
  }
}

LOCKSTEP_VECTOR_CLONES
void swiglu_backward(int64_t tokens, int64_t width, const float* grad, const float* gate_and_value,
                     float* grad_gate_and_value) {
  for (int64_t n = 0; n < tokens; ++n, grad += width, gate_and_value += 2 * width, grad_gate_and_value += 2 * width) {
    const float* const gate = gate_and_value;
    const float* const value = gate_and_value + width;
    float* const grad_gate = grad_gate_and_value;
    float* const grad_value = grad_gate_and_value + width;
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          const float s = sigmoid(gate[d]);
          grad_gate[d] = grad[d] * value[d] * s * (1.0F + gate[d] * (1.0F - s));
          grad_value[d] = grad[d] * gate[d] * s;
        });
  }
}

LOCKSTEP_VECTOR_CLONES
void head_forward(const HeadPass& pass, const float* x, int64_t from_stride, float* out, int64_t to_stride) {
  const int64_t width = pass.width;
  for (int64_t n = 0; n < pass.tokens; ++n, x += from_stride, out += to_stride) {
    if (pass.weight == nullptr) {
      std::copy_n(x, width, out);
      continue;
    }
    const float* const weight = pass.weight;
    const float* const cos = pass.cos + n * width;
    const float* const sin = pass.sin + n * width;
    const float inverse = inverse_rms(width, x);
    for_each_value(
        width / 2, LOCKSTEP_EACH(pair) {
          const int64_t a = 2 * pair;
          const int64_t b = a + 1;
          const float normed_a = x[a] * inverse * weight[a];
          const float normed_b = x[b] * inverse * weight[b];
          out[a] = normed_a * cos[a] - normed_b * sin[a];
          out[b] = normed_b * cos[a] + normed_a * sin[a];
        });
  }
}

LOCKSTEP_VECTOR_CLONES
void head_backward(const HeadPass& pass, const float* grad, int64_t grad_stride, const float* x, float* grad_x,
                   int64_t stride, float* grad_weight) {
  const int64_t width = pass.width;
  for (int64_t n = 0; n < pass.tokens; ++n, grad += grad_stride, x += stride, grad_x += stride) {
    if (pass.weight == nullptr) {
      std::copy_n(grad, width, grad_x);
      continue;
    }
    const float* const weight = pass.weight;
    const float* const cos = pass.cos + n * width;
    const float* const sin = pass.sin + n * width;
    const float inverse = inverse_rms(width, x);
    // Rotating back gives the gradient of the normed values.
    for_each_value(
        width / 2, LOCKSTEP_EACH(pair) {
          const int64_t a = 2 * pair;
          const int64_t b = a + 1;
          grad_x[a] = grad[a] * cos[a] + grad[b] * sin[a];
          grad_x[b] = grad[b] * cos[a] - grad[a] * sin[a];
        });
    const float dot = sum_of_values(
        width, LOCKSTEP_EACH(d) { return grad_x[d] * weight[d] * x[d]; });
    const float along_x = dot * inverse * inverse / static_cast<float>(width);
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          grad_weight[d] += grad_x[d] * x[d] * inverse;
          grad_x[d] = inverse * (grad_x[d] * weight[d] - x[d] * along_x);
        });
  }
}

}  // namespace lockstep::block_passes_detail
