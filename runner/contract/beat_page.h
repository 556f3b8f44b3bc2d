// BeatPage: what a worker tells its agent all the time, in memory that both have mapped.
//
// Role: a beat costs the training loop a few stores and no system call; the agent looks when it wants to. The page is
// a memfd that the agent makes for each worker (env::kBeatFd in the worker); a worker without an agent has a page of
// its own that nobody reads.
// Threads: every field is a lock-free atomic with one writer: the training thread, but `alive_ns` (the worker's link
// thread) and `phase` (also autograd's threads, when the last gradient of a step is there). Fields are read one by one:
// a reader may see a step's number with the phase before it, never a torn number.
// Units: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runner/contract/phase.h"

namespace lockstep {

struct BeatPage {
  std::atomic<uint64_t> generation{0};   // of the group that it is in, or was in last
  std::atomic<int64_t> step{0};          // committed
  std::atomic<int64_t> committed_ns{0};  // when `step` was committed
  std::atomic<Activity> activity{Activity::kLoading};
  std::atomic<Phase> phase{Phase::kStartup};
  std::atomic<int64_t> changed_ns{0};  // last sign of progress: a phase, an activity or a step began
  std::atomic<int64_t> alive_ns{0};    // once in kAliveInterval, whatever the training thread does
  // Of its data, before hello: pieces that are ready for use, and all; 0 of 0 where nobody counts.
  std::atomic<int64_t> prepared{0};
  std::atomic<int64_t> to_prepare{0};
  // Time per phase so far, without the one that is running.
  std::array<std::atomic<int64_t>, kPhaseCount> phase_ns{};
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<Activity>::is_always_lock_free &&
              std::atomic<Phase>::is_always_lock_free);

}  // namespace lockstep
