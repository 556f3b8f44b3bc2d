// A step that a group has committed, and when. (The commit itself: loop/train_step.cc.)
// Threads: none.
#pragma once

#include <cstdint>

#include "runner/base/clock.h"

namespace lockstep {

struct Commit {
  int64_t step = 0;
  TimePoint at;
};

}  // namespace lockstep
