// CLOCK_MONOTONIC in nanoseconds, which processes of one machine can compare, and durations as text.
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

inline int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// "300 s", "1500 ms".
inline std::string seconds_text(std::chrono::milliseconds time) {
  if (time.count() % 1000 == 0) return std::to_string(time.count() / 1000) + " s";
  return std::to_string(time.count()) + " ms";
}

}  // namespace lockstep
