// RateLimit: a token bucket that hands out places in a queue. Pure: the time is an argument.
//
// As golang.org/x/time/rate, which client-go uses: a caller takes its tokens at once, also when the bucket goes below
// zero, and gets the time that it must wait before it uses them. First come, first served.
// Threads: a value of one thread; the owner guards it.
#pragma once

#include <chrono>

namespace lockstep::kube {

class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // `per_second` of zero or less: no limit. `burst` is at least 1.
  RateLimit(double per_second, int burst);

  // Takes `count` tokens. How long to wait before using them: zero when they were there.
  Clock::duration reserve(Clock::time_point now, int count = 1);
  // Whole tokens that could be taken without waiting.
  [[nodiscard]] int available(Clock::time_point now) const;

 private:
  [[nodiscard]] double tokens_at(Clock::time_point now) const;

  double per_second_;
  double burst_;
  double tokens_;  // at `as_of_`
  Clock::time_point as_of_{};
  bool started_ = false;  // full until the first call, whenever that is
};

}  // namespace lockstep::kube
