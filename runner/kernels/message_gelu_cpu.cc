// CPU implementation: inner loops over the values of one row, which the compiler vectorises. The widest vectors that
// the processor has are chosen at run time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "runner/base/vector_loops.h"
#include "runner/kernels/message_gelu.h"

namespace lockstep::message_gelu_detail {
namespace {

struct Gelu {
  float value;
  float slope;
};

// x Φ(x), and its derivative Φ(x) + x φ(x). 1 - erf by Abramowitz and Stegun 7.1.26, to 1.5e-7.
[[gnu::always_inline]] inline Gelu gelu_of(float x) {
  constexpr float kRootHalf = 0.70710678F;
  constexpr float kDensity = 0.39894228F;  // 1 / √(2 π)
  constexpr float kFarthest = 1e4F;        // x²/2 is clamped to it: the exponential is 0 for much smaller values
  const float magnitude = std::fabs(x) * kRootHalf;
  // Non-negative floats are ordered like their bits. A comparison of floats would prevent vectorisation.
  const int32_t square = std::min(std::bit_cast<int32_t>(magnitude * magnitude), std::bit_cast<int32_t>(kFarthest));
  const float t = 1.0F / (1.0F + 0.3275911F * magnitude);
  const float bell = exp_of_negative(-std::bit_cast<float>(square));
  const float series =
      t * (0.254829592F + t * (-0.284496736F + t * (1.421413741F + t * (-1.453152027F + t * 1.061405429F))));
  const float erf = 1.0F - series * bell;
  const float cdf = 0.5F + 0.5F * std::copysign(erf, x);
  return {x * cdf, cdf + x * kDensity * bell};
}

}  // namespace

LOCKSTEP_VECTOR_CLONES
void sum_forward(Sizes sizes, int64_t begin, int64_t end, float* edges, const float* own, const float* table,
                 const int64_t* rows, float* out) {
  const int64_t width = sizes.width;
  for (int64_t n = begin; n < end; ++n) {
    const float* const node = own + n * width;
    for (int64_t e = n * sizes.neighbours; e < (n + 1) * sizes.neighbours; ++e) {
      const float* const row = table + rows[e] * width;
      float* const sum = edges + e * width;
      float* const result = out + e * width;
      for_each_value(
          width, LOCKSTEP_EACH(d) {
            sum[d] += node[d] + row[d];
            result[d] = gelu_of(sum[d]).value;
          });
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void sum_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* sum, float* grad_sum,
                  float* grad_own) {
  const int64_t width = sizes.width;
  for (int64_t n = begin; n < end; ++n) {
    float* const node = grad_own + n * width;
    std::fill_n(node, width, 0.0F);
    for (int64_t e = n * sizes.neighbours; e < (n + 1) * sizes.neighbours; ++e) {
      for_each_value(
          width, LOCKSTEP_EACH(d) {
            const float grad = grad_out[e * width + d] * gelu_of(sum[e * width + d]).slope;
            grad_sum[e * width + d] = grad;
            node[d] += grad;
          });
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void scatter_rows(Sizes sizes, int64_t begin, int64_t end, int64_t first, int64_t last, const float* grad_sum,
                  const int64_t* rows, float* grad_table) {
  const int64_t width = sizes.width;
  for (int64_t e = begin * sizes.neighbours; e < end * sizes.neighbours; ++e) {
    float* const row = grad_table + rows[e] * width + first;
    const float* const grad = grad_sum + e * width + first;
    for_each_value(
        last - first, LOCKSTEP_EACH(d) { row[d] += grad[d]; });
  }
}

LOCKSTEP_VECTOR_CLONES
void bias_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, float* out) {
  const int64_t width = sizes.width;
  for (int64_t e = begin * sizes.neighbours; e < end * sizes.neighbours; ++e) {
    for_each_value(
        width, LOCKSTEP_EACH(d) { out[e * width + d] = gelu_of(x[e * width + d] + bias[d]).value; });
  }
}

LOCKSTEP_VECTOR_CLONES
void bias_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x, const float* bias,
                   float* grad_x, float* grad_bias) {
  const int64_t width = sizes.width;
  for (int64_t e = begin * sizes.neighbours; e < end * sizes.neighbours; ++e) {
    for_each_value(
        width, LOCKSTEP_EACH(d) {
          const float grad = grad_out[e * width + d] * gelu_of(x[e * width + d] + bias[d]).slope;
          grad_x[e * width + d] = grad;
          grad_bias[d] += grad;
        });
  }
}

LOCKSTEP_VECTOR_CLONES
void weighted_forward(Sizes sizes, int64_t begin, int64_t end, const float* x, const float* bias, const float* weights,
                      float* out) {
  const int64_t width = sizes.width;
  for (int64_t n = begin; n < end; ++n) {
    float* const node = out + n * width;
    std::fill_n(node, width, 0.0F);
    for (int64_t e = n * sizes.neighbours; e < (n + 1) * sizes.neighbours; ++e) {
      const float weight = weights[e];
      for_each_value(
          width, LOCKSTEP_EACH(d) { node[d] += weight * gelu_of(x[e * width + d] + bias[d]).value; });
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void weighted_backward(Sizes sizes, int64_t begin, int64_t end, const float* grad_out, const float* x,
                       const float* bias, const float* weights, float* grad_x, float* grad_bias) {
  const int64_t width = sizes.width;
  for (int64_t n = begin; n < end; ++n) {
    const float* const node = grad_out + n * width;
    for (int64_t e = n * sizes.neighbours; e < (n + 1) * sizes.neighbours; ++e) {
      const float weight = weights[e];
      for_each_value(
          width, LOCKSTEP_EACH(d) {
            const float grad = weight * node[d] * gelu_of(x[e * width + d] + bias[d]).slope;
            grad_x[e * width + d] = grad;
            grad_bias[d] += grad;
          });
    }
  }
}

}  // namespace lockstep::message_gelu_detail
