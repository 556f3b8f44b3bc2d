// Clock: the steady clock of this room. It is always passed in, so that tests control the time.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep::control {

using Clock = std::chrono::steady_clock;
using Now = std::function<Clock::time_point()>;

// An output of the room's state machines: the caller sends the timer event at this time.
struct WaitUntil {
  Clock::time_point at;
};

// Returns random numbers from [0, 1), for jitter.
using Random = std::function<double()>;
// Seeded from the system; safe from one thread at a time.
Random system_random();

}  // namespace lockstep::control
