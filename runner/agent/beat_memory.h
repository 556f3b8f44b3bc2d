// BeatMemory: the agent's view of one worker's beat page (contract/beat_page.h), and what follows from it.
// Threads: the event loop's only; the worker writes the page at the same time.
#pragma once

#include <array>
#include <cstdint>

#include "runner/base/result.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/coordination.h"

namespace lockstep {

// The page at one moment, field by field. Nanoseconds of CLOCK_MONOTONIC; 0: not yet.
struct BeatSnapshot {
  uint64_t generation = 0;
  int64_t step = 0;
  int64_t committed_ns = 0;
  Activity activity = Activity::kLoading;
  Phase phase = Phase::kStartup;
  int64_t changed_ns = 0;
  int64_t alive_ns = 0;
  int64_t prepared = 0;
  int64_t to_prepare = 0;
  std::array<int64_t, kPhaseCount> phase_ns{};
};

class BeatMemory {
 public:
  // A page that says nothing but that its process starts now, for one worker. kUnavailable when the system has no
  // memory for it.
  static Result<BeatMemory> create();
  ~BeatMemory();
  BeatMemory(BeatMemory&& other) noexcept;
  BeatMemory& operator=(BeatMemory&& other) noexcept;

  // The worker gets this one; needed until it has started.
  [[nodiscard]] int fd() const { return fd_; }
  void close_fd();
  // What a broken worker may have written is brought into range.
  [[nodiscard]] BeatSnapshot read() const;

 private:
  BeatMemory(int fd, BeatPage* page) : fd_(fd), page_(page) {}

  int fd_ = -1;
  BeatPage* page_ = nullptr;  // mapped
};

// The last time at which the process is known to have run; 0: never.
int64_t last_sign_of_life_ns(const BeatSnapshot& beats);

// Its own work so far, in seconds, the phase that runs included (coordination.h, WorkerBeat::busy_seconds).
double busy_seconds(const BeatSnapshot& beats, int64_t now_ns);

WorkerBeat worker_beat(const BeatSnapshot& beats, int local_rank, int64_t now_ns);

// Waits for its peers: it cannot leave by itself (recovery/supervisor.h).
bool is_in_collective(const BeatSnapshot& beats);

}  // namespace lockstep
