// BeatPage: memory that a worker shares with its agent, in which it writes all the time what it is doing.
//
// Role: a beat costs the training loop a few stores and no system call; the agent reads the page when it needs to. The
// page is a memfd that the agent makes for each worker (env::kBeatFd in the worker); a worker without an agent has a
// page of its own that nobody reads.
// Threads: every field is a lock-free atomic that the training thread writes, except `alive_ns` (written by the
// worker's link thread) and `phase` (also written by autograd's threads, when the last gradient of a step is there).
// Fields are read one by one: a reader may see a new step with the phase before it, but never half a number.
// Units: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
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
  // Before Hello: how many pieces of its data are ready, and how many there are. Both 0: the workload does not count.
  std::atomic<int64_t> prepared{0};
  std::atomic<int64_t> to_prepare{0};
  // Time per phase so far, without the one that is running.
  std::array<std::atomic<int64_t>, kPhaseCount> phase_ns{};
};
// Behind the page, in the same file: memory of a rank of the user's program that outlives its process. The agent copies
// it to the successor's file, and reads nothing of it.
inline constexpr size_t kRankMemoryOffset = 4096;
inline constexpr size_t kRankMemoryBytes = size_t{128} << 10;
static_assert(sizeof(BeatPage) <= kRankMemoryOffset);

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<Activity>::is_always_lock_free &&
              std::atomic<Phase>::is_always_lock_free);

}  // namespace lockstep
