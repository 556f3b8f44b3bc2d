// Straggler and stall detection over all ranks, from their beats. Pure.
//
// Role: which rank is slow, which one hangs, and where. In data-parallel training all ranks end a step together, so
// the slowest one is found by its own work per step (busy seconds), not by its step time; and of the ranks that show
// no progress only those that are not waiting for a peer are to blame.
// Threads: none.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/coordination.h"
#include "runner/contract/run_status.h"

namespace lockstep {

// True when the worker is in a collective, or its group is forming: then it waits for other ranks in any phase.
bool waits_for_a_peer(const WorkerBeat& beat);

struct RankBeat {
  int rank = 0;
  int node_rank = 0;
  WorkerBeat beat;
};

struct Stall {
  int rank = 0;
  int node_rank = 0;
  int local_rank = 0;
  int64_t step = 0;
  // True when all ranks wait, for a peer or for a device that may wait for a peer. Then this rank may not be the one
  // that hangs.
  bool group_is_stuck = false;
  std::string message;  // "rank 1 (node 0) has shown no progress for 600 s at step 12, waiting for data; …"
};

// The ranks that have shown no progress for `timeout` and for which the others wait. A rank that waits in a collective,
// or for its device (which may run a collective), is reported only when all ranks have waited like that for `timeout`:
// then the group is stuck, and the ranks at the lowest step are reported. Ranks that await an assignment are ignored.
std::vector<Stall> find_stalls(const std::vector<RankBeat>& beats, std::chrono::milliseconds timeout);

// Work per step of each rank over the last window of beats (kStragglerWindowSteps or more).
inline constexpr int kStragglerWindowSteps = 20;
class StragglerView {
 public:
  void forget();  // a new generation
  void add(const std::vector<RankBeat>& beats);
  // nullopt: not known, or one rank alone.
  [[nodiscard]] const std::optional<SlowestStatus>& slowest() const { return slowest_; }

 private:
  std::map<int, WorkerBeat> window_begin_;  // by rank
  std::optional<SlowestStatus> slowest_;
};

}  // namespace lockstep
