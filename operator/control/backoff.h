// Backoff: how long to wait after the n-th failure in a row: twice as long each time. Pure.
#pragma once

#include "operator/control/clock.h"

namespace lockstep::control {

struct BackoffPolicy {
  Clock::duration first{};
  Clock::duration max{};
  double jitter = 0.0;  // adds up to this fraction of the delay, above `max` too, as apimachinery's wait.Jitter
};

// `failures` counts from 1; `random` is drawn from [0, 1).
Clock::duration backoff_delay(const BackoffPolicy& policy, int failures, double random);

}  // namespace lockstep::control
