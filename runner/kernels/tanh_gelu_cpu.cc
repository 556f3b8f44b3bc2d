// CPU implementation: inner loops over the values of one row, written with vector_loops.h. (1 + tanh(u)) / 2 is the
// sigmoid of 2u.
#include <cstdint>

#include "runner/base/vector_loops.h"
#include "runner/kernels/tanh_gelu.h"

namespace lockstep::tanh_gelu_detail {
namespace {

constexpr float kTwiceRoot = 1.59576912F;  // 2 √(2/π)
constexpr float kCubic = 0.044715F;

}  // namespace

LOCKSTEP_VECTOR_CLONES
void forward(int64_t rows, int64_t width, const float* x, const float* bias, float* out) {
  for (int64_t row = 0; row < rows; ++row, x += width, out += width) {
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          const float z = x[d] + bias[d];
          out[d] = z * sigmoid(kTwiceRoot * z * (1.0F + kCubic * z * z));
        });
  }
}

LOCKSTEP_VECTOR_CLONES
void backward(int64_t rows, int64_t width, const float* grad, const float* x, const float* bias, float* grad_x) {
  for (int64_t row = 0; row < rows; ++row, grad += width, x += width, grad_x += width) {
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          const float z = x[d] + bias[d];
          const float s = sigmoid(kTwiceRoot * z * (1.0F + kCubic * z * z));
          const float of_argument = kTwiceRoot * (1.0F + 3.0F * kCubic * z * z);
          grad_x[d] = grad[d] * s * (1.0F + z * (1.0F - s) * of_argument);
        });
  }
}

}  // namespace lockstep::tanh_gelu_detail
