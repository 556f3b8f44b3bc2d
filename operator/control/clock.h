// Clock: the time that this room measures with: steady, and always handed in, so that tests turn it.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep::control {

using Clock = std::chrono::steady_clock;
using Now = std::function<Clock::time_point()>;

// An output of the room's state machines: send the timer event then.
struct WaitUntil {
  Clock::time_point at;
};

// Draws from [0, 1): the source of jitter.
using Random = std::function<double()>;
// Seeded from the system; safe from one thread at a time.
Random system_random();

}  // namespace lockstep::control
