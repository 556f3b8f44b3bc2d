// Loops over the values of a row that the compiler can vectorise, and a vectorisable exponential and sigmoid.
// Threads: pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

// Put before a function: it is compiled once for each vector width, and the widest that the processor supports is
// chosen when the program starts. Not for ThreadSanitizer: the choice is made before it is ready, and it would crash.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_VECTOR_CLONES
#endif

// Put before a loop whose iterations are independent. (Nothing for Clang, which is used only for fuzzers and lint.)
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT
#else
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Begins a lambda of an index, to be passed to the functions below: LOCKSTEP_EACH(d) { y[d] = 2.0F * x[d]; }
#define LOCKSTEP_EACH(d) [&](int64_t d) __attribute__((always_inline))

namespace lockstep {

constexpr int64_t kVectorLanes = 16;

// Calls use(0) … use(width - 1), sixteen at a time. use(i) must touch only element i.
template <typename Use>
[[gnu::always_inline]] inline void for_each_value(int64_t width, const Use& use) {
  int64_t first = 0;
  for (; first + kVectorLanes <= width; first += kVectorLanes) {
    LOCKSTEP_INDEPENDENT
    for (int64_t lane = 0; lane < kVectorLanes; ++lane) use(first + lane);
  }
  for (; first < width; ++first) use(first);
}

// value(0) + … + value(width - 1). Adds every sixteenth value first, whatever the processor's vector width, so that the
// rounding is the same on all processors.
template <typename Value>
[[gnu::always_inline]] inline float sum_of_values(int64_t width, const Value& value) {
  float sums[kVectorLanes] = {};
  int64_t first = 0;
  for (; first + kVectorLanes <= width; first += kVectorLanes) {
    LOCKSTEP_INDEPENDENT
    for (int64_t lane = 0; lane < kVectorLanes; ++lane) sums[lane] += value(first + lane);
  }
  for (int64_t lane = 0; first < width; ++first, ++lane) sums[lane] += value(first);
  for (int64_t half = kVectorLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// eˣ for -1e6 < x ≤ 0 to about two units in the last place: x = n ln 2 + r, 2ⁿ from the exponent's bits, eʳ by its
// series; 0 when the result would be subnormal. Does not compare floats, because that would prevent vectorisation.
[[gnu::always_inline]] inline float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 · 2²³: adding it rounds to a whole number
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float series = 1.0F / 720.0F;
  series = series * r + 1.0F / 120.0F;
  series = series * r + 1.0F / 24.0F;
  series = series * r + 1.0F / 6.0F;
  series = series * r + 0.5F;
  series = series * r + 1.0F;
  series = series * r + 1.0F;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound) + 127;
  return series * std::bit_cast<float>(std::max(exponent, 0) << 23);
}

// 1 / (1 + e⁻ˣ). Tests sign and bound on the bits, because a comparison of floats would prevent vectorisation.
[[gnu::always_inline]] inline float sigmoid(float x) {
  constexpr float kFarthest = 1e4F;  // |x| is clamped to it: the exponential is 0 for much smaller ones
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t magnitude = std::min(bits & 0x7fffffff, std::bit_cast<int32_t>(kFarthest));
  const float exponential = exp_of_negative(-std::bit_cast<float>(magnitude));
  const int32_t is_negative = bits >> 31;  // all ones, or 0
  const int32_t numerator =
      (std::bit_cast<int32_t>(exponential) & is_negative) | (std::bit_cast<int32_t>(1.0F) & ~is_negative);
  return std::bit_cast<float>(numerator) / (1.0F + exponential);
}

}  // namespace lockstep
