// BeatPage: memory that a worker shares with its agent, in which it writes all the time what it is doing.
//
// Role: a beat costs the training loop a few stores and no system call; the agent reads the page when it needs to. The
// page is a memfd that the agent makes for each worker (env::kBeatFd in the worker); a worker without an agent has a
// page of its own that nobody reads.
// Threads: every field is a lock-free atomic that the training thread writes, except `alive_ns` (written by the
// worker's link thread) and `phase` (also written by autograd's threads, when the last gradient of a step is there).
// Fields are read one by one: a reader may see a new step with the phase before it, but never half a number.
// Units: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
// docs/worker-protocol.md has the fields and their offsets, for programs that are not C++ (scripts/worker_protocol.py).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runner/contract/phase.h"

namespace lockstep {

// The first two fields are at the same place in each version of the page. The agent writes them before the process
// starts.
inline constexpr uint32_t kBeatPageMagic = 0x4542'4b4c;  // the bytes "LKBE"
// Raised when a field moves or changes its meaning. A field may be added at the end without that.
inline constexpr uint32_t kBeatPageVersion = 1;

struct BeatPage {
  uint32_t magic = kBeatPageMagic;
  uint32_t version = kBeatPageVersion;
  std::atomic<uint64_t> generation{0};                 // of the group that it is in, or was in last
  std::atomic<int64_t> step{0};                        // committed
  std::atomic<int64_t> committed_ns{0};                // when `step` was committed
  std::atomic<Activity> activity{Activity::kLoading};  // a number, see Activities
  std::atomic<Phase> phase{Phase::kStartup};           // a number, see Phases
  std::atomic<int64_t> changed_ns{0};                  // last sign of progress: a phase, an activity or a step began
  std::atomic<int64_t> alive_ns{0};                    // once in kAliveInterval, whatever the training thread does
  // Before Hello: how many pieces of its data are ready, and how many there are. Both 0: the workload does not count.
  std::atomic<int64_t> prepared{0};
  std::atomic<int64_t> to_prepare{0};
  // Time per phase so far, without the one that is running.
  std::array<std::atomic<int64_t>, kPhaseCount> phase_ns{};
};
// Behind the page, in the same file: memory of a rank of the user's program that outlives its process. The agent copies
// it to the successor's file, and reads nothing of it. The file ends before it where files may not be as large (ulimit
// -f).
inline constexpr size_t kRankMemoryOffset = 4096;
inline constexpr size_t kRankMemoryBytes = size_t{2} << 20;
static_assert(sizeof(BeatPage) <= kRankMemoryOffset);

static_assert(offsetof(BeatPage, magic) == 0 && offsetof(BeatPage, version) == 4 &&
              offsetof(BeatPage, generation) == 8 && offsetof(BeatPage, step) == 16 &&
              offsetof(BeatPage, committed_ns) == 24 && offsetof(BeatPage, activity) == 32 &&
              offsetof(BeatPage, phase) == 36 && offsetof(BeatPage, changed_ns) == 40 &&
              offsetof(BeatPage, alive_ns) == 48 && offsetof(BeatPage, prepared) == 56 &&
              offsetof(BeatPage, to_prepare) == 64 && offsetof(BeatPage, phase_ns) == 72);
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<Activity>::is_always_lock_free &&
              std::atomic<Phase>::is_always_lock_free);

}  // namespace lockstep
