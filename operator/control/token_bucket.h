// TokenBucket: how often something may happen. Pure; time is an argument.
#pragma once

#include <algorithm>

#include "operator/control/clock.h"

namespace lockstep::control {

class TokenBucket {
 public:
  // The bucket is full at `now`: `burst` tokens at once, then one more per `interval`.
  TokenBucket(double burst, Clock::duration interval, Clock::time_point now)
      : burst_(burst), interval_(interval), tokens_(burst), filled_at_(now) {}

  bool take(Clock::time_point now) {
    const std::chrono::duration<double> passed = std::max(now - filled_at_, Clock::duration::zero());
    tokens_ = std::min(burst_, tokens_ + passed / std::chrono::duration<double>(interval_));
    filled_at_ = std::max(filled_at_, now);
    if (tokens_ < 1.0) return false;
    tokens_ -= 1.0;
    return true;
  }

  [[nodiscard]] Clock::time_point last_used() const { return filled_at_; }

 private:
  double burst_;
  Clock::duration interval_;
  double tokens_;
  Clock::time_point filled_at_;
};

}  // namespace lockstep::control
