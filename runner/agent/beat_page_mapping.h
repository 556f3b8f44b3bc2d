// BeatPageMapping: the agent's mapping of one worker's beat page (contract/beat_page.h), and figures derived from it.
// Threads: the event loop's only; the worker writes the page at the same time.
#pragma once

#include <array>
#include <cstdint>

#include "runner/base/result.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/coordination.h"

namespace lockstep {

// A copy of the page, read field by field. Times in nanoseconds of CLOCK_MONOTONIC; 0: not yet.
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

class BeatPageMapping {
 public:
  // A new page for one worker, empty except that changed_ns is now. kUnavailable when the system has no memory for it.
  // `earlier`: of this rank's last process, whose memory behind the page is copied; null: there was none.
  static Result<BeatPageMapping> create(const BeatPageMapping* earlier = nullptr);
  ~BeatPageMapping();
  BeatPageMapping(BeatPageMapping&& other) noexcept;
  BeatPageMapping& operator=(BeatPageMapping&& other) noexcept;

  // The descriptor for the worker; needed until the worker has started.
  [[nodiscard]] int fd() const { return fd_; }
  void close_fd();
  // Writes for a program that does not know its page.
  void set_activity(Activity activity, Phase phase);
  // An activity or phase that is not known, of a newer worker or a broken one, is shown as loading or other, and its
  // beat is no progress: changed_ns is then that of the last commit, or of create().
  [[nodiscard]] BeatSnapshot read() const;

 private:
  BeatPageMapping(int fd, BeatPage* page, size_t bytes, int64_t created_ns)
      : fd_(fd), page_(page), bytes_(bytes), created_ns_(created_ns) {}

  int fd_ = -1;
  BeatPage* page_ = nullptr;  // mapped, with the rank's memory behind it
  size_t bytes_ = 0;          // of the mapping
  int64_t created_ns_ = 0;
};

// The last time at which the process is known to have been running; 0: never.
int64_t last_sign_of_life_ns(const BeatSnapshot& beats);

// Seconds of the worker's own work so far, including the present phase (coordination.h, WorkerBeat::busy_seconds).
double busy_seconds(const BeatSnapshot& beats, int64_t now_ns);

WorkerBeat worker_beat(const BeatSnapshot& beats, int local_rank, int64_t now_ns);

// True when the worker may be waiting for its peers in a collective, which it cannot leave by itself
// (recovery/node_machine.h).
bool is_in_collective(const BeatSnapshot& beats);

}  // namespace lockstep
