#include "operator/kube/rate_limit.h"

#include <algorithm>
#include <limits>

namespace lockstep::kube {

RateLimit::RateLimit(double per_second, int burst)
    : per_second_(per_second), burst_(std::max(burst, 1)), tokens_(std::max(burst, 1)) {}

double RateLimit::tokens_at(Clock::time_point now) const {
  if (!started_ || now <= as_of_) return tokens_;
  const double elapsed_seconds = std::chrono::duration<double>(now - as_of_).count();
  return std::min(burst_, tokens_ + elapsed_seconds * per_second_);
}

RateLimit::Clock::duration RateLimit::reserve(Clock::time_point now, int count) {
  if (per_second_ <= 0.0) return Clock::duration::zero();
  tokens_ = tokens_at(now) - count;
  as_of_ = started_ ? std::max(as_of_, now) : now;
  started_ = true;
  if (tokens_ >= 0.0) return Clock::duration::zero();
  return std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(-tokens_ / per_second_));
}

int RateLimit::available(Clock::time_point now) const {
  if (per_second_ <= 0.0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::max(0.0, tokens_at(now)));
}

}  // namespace lockstep::kube
