// The steady clock (CLOCK_MONOTONIC, which the processes of one machine can compare), and durations as text.
// Threads: any.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace lockstep {

using TimePoint = std::chrono::steady_clock::time_point;

inline TimePoint now() { return std::chrono::steady_clock::now(); }

inline double seconds_between(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

inline int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// "2.34 s"
inline std::string seconds_since(TimePoint began) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f s", seconds_between(began, now()));
  return text.data();
}

// "300 s", "1500 ms".
inline std::string seconds_text(std::chrono::milliseconds time) {
  if (time.count() % 1000 == 0) return std::to_string(time.count() / 1000) + " s";
  return std::to_string(time.count()) + " ms";
}

}  // namespace lockstep
