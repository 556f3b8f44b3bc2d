// A pixel as a vector of four numbers, which the compiler adds and multiplies in one instruction.
// Threads: pure.
#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep {

using FourBytes [[gnu::vector_size(4)]] = uint8_t;
using FourSums [[gnu::vector_size(16)]] = int32_t;
using SixteenBytes [[gnu::vector_size(16)]] = uint8_t;

// Four bytes are read: those of an RGBA pixel, or of an RGB pixel and one more. __builtin_convertvector would do the
// same, but GCC 12 makes a dozen instructions of it, and two of a shuffle.
[[gnu::always_inline]] inline FourSums widened(const uint8_t* pixel) {
  SixteenBytes bytes = {};
  std::memcpy(&bytes, pixel, sizeof(FourBytes));
  return reinterpret_cast<FourSums>(
      __builtin_shufflevector(bytes, SixteenBytes{}, 0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3, 16, 16, 16));
}

// Four bytes are written. sums: in 0 … 255.
[[gnu::always_inline]] inline void store_narrowed(FourSums sums, uint8_t* pixel) {
  const auto bytes = reinterpret_cast<SixteenBytes>(sums);
  const FourBytes lowest = __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12);
  std::memcpy(pixel, &lowest, sizeof lowest);
}

}  // namespace lockstep
