// TestClock: a clock that moves only when the test turns it.
// Threads: safe from all threads.
#pragma once

#include <atomic>

#include "operator/control/clock.h"

namespace lockstep::control {

class TestClock {
 public:
  [[nodiscard]] Clock::time_point now() const { return Clock::time_point(since_.load()); }
  void turn(Clock::duration by) { since_ = since_.load() + by; }
  // For options; the clock outlives their user.
  [[nodiscard]] Now source() const {
    return [this] { return now(); };
  }

 private:
  std::atomic<Clock::duration> since_{std::chrono::hours(1)};
};

}  // namespace lockstep::control
