// TestClock: a clock that a test turns.
// Threads: safe from all threads.
#pragma once

#include <atomic>

#include "operator/control/clock.h"

namespace lockstep::control {

class TestClock {
 public:
  [[nodiscard]] Clock::time_point now() const { return Clock::time_point(since_.load()); }
  void turn(Clock::duration by) { since_ = since_.load() + by; }
  // For options; the clock outlives who asks.
  [[nodiscard]] Now source() const {
    return [this] { return now(); };
  }

 private:
  std::atomic<Clock::duration> since_{std::chrono::hours(1)};
};

}  // namespace lockstep::control
