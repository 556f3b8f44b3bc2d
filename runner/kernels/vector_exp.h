// The exponential of negative numbers, for loops that the compiler is to turn into vectors. Threads: pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lockstep {

// eˣ for -1e6 < x ≤ 0 to about two units in the last place: x = n ln 2 + r, 2ⁿ from the exponent's bits, eʳ by its
// series; 0 where the result has no normal number. Without comparisons of floats: they would keep vectors away.
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

}  // namespace lockstep
