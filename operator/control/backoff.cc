#include "operator/control/backoff.h"

#include <algorithm>
#include <cmath>

#include "runner/base/check.h"

namespace lockstep::control {

Clock::duration backoff_delay(const BackoffPolicy& policy, int failures, double random) {
  LOCKSTEP_CHECK(failures >= 1, "a delay follows a failure");
  using Seconds = std::chrono::duration<double>;
  // In floating point, so that the thousandth failure is infinity and not an overflow.
  const double grown = Seconds(policy.first).count() * std::pow(2.0, failures - 1);
  const double capped = std::min(grown, Seconds(policy.max).count());
  return std::chrono::duration_cast<Clock::duration>(Seconds(capped * (1.0 + policy.jitter * random)));
}

}  // namespace lockstep::control
