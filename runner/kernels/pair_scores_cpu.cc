// The pass for AVX2 and for AVX-512. A tile is some items by 32 values of the second layer; its sums stay in registers.
#include <algorithm>
#include <vector>

#include "runner/kernels/pair_scores.h"

namespace lockstep::pair_scores_detail {

#if defined(__x86_64__)

namespace {

// kRows: the items of a tile. Its sums take 12 of AVX2's 16 registers, and 24 of AVX-512's 32.
struct Avx2 {
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kRows = 3;
  using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  using LanesInMemory [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
      float;
};
struct Avx512 {
  static constexpr int64_t kLanes = 16;
  static constexpr int64_t kRows = 12;
  using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  using LanesInMemory [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
      float;
};

#define LOCKSTEP_UNROLL _Pragma("GCC unroll 16")

// hidden_RH = relu(user + item) for `rows` items.
template <typename Isa>
[[gnu::always_inline]] inline void first_layer(int64_t rows, int64_t hidden, const float* user_H, const float* items_IH,
                                               float* hidden_RH) {
  using Lanes = typename Isa::Lanes;
  using LanesInMemory = typename Isa::LanesInMemory;
  for (int64_t i = 0; i < rows * hidden; i += Isa::kLanes) {
    const Lanes sum = *reinterpret_cast<const LanesInMemory*>(user_H + i % hidden) +
                      *reinterpret_cast<const LanesInMemory*>(items_IH + i);
    *reinterpret_cast<LanesInMemory*>(hidden_RH + i) = sum < 0.0F ? Lanes{} : sum;  // NaN stays
  }
}

// Adds 32 values of the second layer, times their weights in the last layer, to the sums of each item.
template <typename Isa>
[[gnu::always_inline]] inline void second_and_last_layer(PairSizes sizes, const float* hidden_RH,
                                                         const float* second_HS, const float* second_bias_S,
                                                         const float* last_S, typename Isa::Lanes* sums_R) {
  using Lanes = typename Isa::Lanes;
  using LanesInMemory = typename Isa::LanesInMemory;
  constexpr int64_t kColumns = kSecondMultiple / Isa::kLanes;
  const LanesInMemory* const bias = reinterpret_cast<const LanesInMemory*>(second_bias_S);
  const LanesInMemory* const last = reinterpret_cast<const LanesInMemory*>(last_S);
  Lanes second[Isa::kRows][kColumns];
  LOCKSTEP_UNROLL
  for (int64_t r = 0; r < Isa::kRows; ++r) {
    LOCKSTEP_UNROLL
    for (int64_t c = 0; c < kColumns; ++c) second[r][c] = bias[c];
  }
  for (int64_t h = 0; h < sizes.hidden; ++h) {
    const LanesInMemory* const weights = reinterpret_cast<const LanesInMemory*>(second_HS + h * sizes.second);
    LOCKSTEP_UNROLL
    for (int64_t r = 0; r < Isa::kRows; ++r) {
      const float value = hidden_RH[r * sizes.hidden + h];
      LOCKSTEP_UNROLL
      for (int64_t c = 0; c < kColumns; ++c) second[r][c] += value * weights[c];
    }
  }
  LOCKSTEP_UNROLL
  for (int64_t r = 0; r < Isa::kRows; ++r) {
    LOCKSTEP_UNROLL
    for (int64_t c = 0; c < kColumns; ++c) sums_R[r] += (second[r][c] < 0.0F ? Lanes{} : second[r][c]) * last[c];
  }
}

template <typename Isa>
[[gnu::always_inline]] inline void user_scores(PairSizes sizes, const float* user_H, const float* items_IH,
                                               const float* second_HS, const float* second_bias_S, const float* last_S,
                                               float last_bias, float* scores_I) {
  std::vector<float> hidden_RH(static_cast<size_t>(Isa::kRows * sizes.hidden));  // the last tile may not fill it
  for (int64_t item = 0; item < sizes.items; item += Isa::kRows) {
    const int64_t rows = std::min(Isa::kRows, sizes.items - item);
    first_layer<Isa>(rows, sizes.hidden, user_H, items_IH + item * sizes.hidden, hidden_RH.data());
    typename Isa::Lanes sums_R[Isa::kRows] = {};
    for (int64_t s = 0; s < sizes.second; s += kSecondMultiple) {
      second_and_last_layer<Isa>(sizes, hidden_RH.data(), second_HS + s, second_bias_S + s, last_S + s, sums_R);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float score = last_bias;
      for (int64_t lane = 0; lane < Isa::kLanes; ++lane) score += sums_R[r][lane];
      scores_I[item + r] = score;
    }
  }
}

__attribute__((target("avx2,fma"))) void avx2_scores(PairSizes sizes, const float* user_H, const float* items_IH,
                                                     const float* second_HS, const float* second_bias_S,
                                                     const float* last_S, float last_bias, float* scores_I) {
  user_scores<Avx2>(sizes, user_H, items_IH, second_HS, second_bias_S, last_S, last_bias, scores_I);
}

__attribute__((target("avx512f"))) void avx512_scores(PairSizes sizes, const float* user_H, const float* items_IH,
                                                      const float* second_HS, const float* second_bias_S,
                                                      const float* last_S, float last_bias, float* scores_I) {
  user_scores<Avx512>(sizes, user_H, items_IH, second_HS, second_bias_S, last_S, last_bias, scores_I);
}

}  // namespace

std::vector<UserScores> passes() {
  std::vector<UserScores> found;
  if (__builtin_cpu_supports("avx512f")) found.push_back(avx512_scores);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(avx2_scores);
  return found;
}

#else

std::vector<UserScores> passes() { return {}; }

#endif

}  // namespace lockstep::pair_scores_detail
