// A step that a group has committed, and when.
// Threads: none.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

struct Commit {
  int64_t step = 0;
  std::chrono::steady_clock::time_point at;
};

}  // namespace lockstep
