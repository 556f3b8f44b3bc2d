// The pass for AVX-512. A tile is kRows items by 32 values of the second layer; its sums stay in registers.
#include <algorithm>
#include <vector>

#include "runner/kernels/pair_scores.h"

namespace lockstep::pair_scores_detail {

#if defined(__x86_64__)

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kRows = 12;  // two registers of sums for each: 24 of the 32 there are
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using LanesInMemory [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

#define LOCKSTEP_AVX512 __attribute__((target("avx512f")))
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 16")

// hidden_RH = relu(user + item) for `rows` items.
LOCKSTEP_AVX512 inline void first_layer(int64_t rows, int64_t hidden, const float* user_H, const float* items_IH,
                                        float* hidden_RH) {
  for (int64_t i = 0; i < rows * hidden; i += kLanes) {
    const Lanes sum = *reinterpret_cast<const LanesInMemory*>(user_H + i % hidden) +
                      *reinterpret_cast<const LanesInMemory*>(items_IH + i);
    *reinterpret_cast<LanesInMemory*>(hidden_RH + i) = sum < 0.0F ? Lanes{} : sum;  // NaN stays
  }
}

// Adds 32 values of the second layer, times their weights in the last layer, to the sums of each item.
LOCKSTEP_AVX512 inline void second_and_last_layer(PairSizes sizes, const float* hidden_RH, const float* second_HS,
                                                  const float* second_bias_S, const float* last_S, Lanes* sums_R) {
  const auto* const bias = reinterpret_cast<const LanesInMemory*>(second_bias_S);
  const auto* const last = reinterpret_cast<const LanesInMemory*>(last_S);
  Lanes left[kRows];
  Lanes right[kRows];
  LOCKSTEP_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    left[r] = bias[0];
    right[r] = bias[1];
  }
  for (int64_t h = 0; h < sizes.hidden; ++h) {
    const auto* const weights = reinterpret_cast<const LanesInMemory*>(second_HS + h * sizes.second);
    LOCKSTEP_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const float value = hidden_RH[r * sizes.hidden + h];
      left[r] += value * weights[0];
      right[r] += value * weights[1];
    }
  }
  LOCKSTEP_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    sums_R[r] += (left[r] < 0.0F ? Lanes{} : left[r]) * last[0] + (right[r] < 0.0F ? Lanes{} : right[r]) * last[1];
  }
}

}  // namespace

bool has_avx512() { return __builtin_cpu_supports("avx512f") != 0; }

LOCKSTEP_AVX512 void avx512_scores(PairSizes sizes, const float* user_H, const float* items_IH, const float* second_HS,
                                   const float* second_bias_S, const float* last_S, float last_bias, float* scores_I) {
  std::vector<float> hidden_RH(static_cast<size_t>(kRows * sizes.hidden));  // the last tile may not fill it
  for (int64_t item = 0; item < sizes.items; item += kRows) {
    const int64_t rows = std::min(kRows, sizes.items - item);
    first_layer(rows, sizes.hidden, user_H, items_IH + item * sizes.hidden, hidden_RH.data());
    Lanes sums_R[kRows] = {};
    for (int64_t s = 0; s < sizes.second; s += kSecondMultiple) {
      second_and_last_layer(sizes, hidden_RH.data(), second_HS + s, second_bias_S + s, last_S + s, sums_R);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float score = last_bias;
      for (int64_t lane = 0; lane < kLanes; ++lane) score += sums_R[r][lane];
      scores_I[item + r] = score;
    }
  }
}

#else

bool has_avx512() { return false; }
void avx512_scores(PairSizes, const float*, const float*, const float*, const float*, const float*, float, float*) {}

#endif

}  // namespace lockstep::pair_scores_detail
