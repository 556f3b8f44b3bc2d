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

namespace lockstep {

// In a collective, or forming the group, which is waiting for its members whatever the phase says.
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
  // All ranks wait, for a peer or for a device that may wait for one: it may not be this rank that hangs.
  bool group_is_stuck = false;
  std::string where;    // "collective", "device", "data", "compute", "disk", "evaluation", "start-up"
  std::string message;  // "rank 1 (node 0) has shown no progress for 600 s at step 12, waiting for data; …"
};

// The ranks to blame when at least one has been unchanged for `timeout`. A rank that waits in a collective, or for its
// device, where a collective may run, is blamed only when every rank of the group does (then the one at the lowest
// step; of equals all: the group is stuck). Ranks that await an assignment are never blamed.
std::vector<Stall> find_stalls(const std::vector<RankBeat>& beats, std::chrono::milliseconds timeout);

struct Slowest {
  int rank = -1;  // -1: not known, or one rank alone
  int node_rank = -1;
  double busy_seconds_per_step = 0.0;
  double median_seconds_per_step = 0.0;
  double lag_seconds = 0.0;  // per step, above the median
};

// Work per step of each rank over the last window of beats (kStragglerWindow steps or more).
inline constexpr int kStragglerWindowSteps = 20;
class StragglerView {
 public:
  void forget();  // a new generation
  void add(const std::vector<RankBeat>& beats);
  [[nodiscard]] const Slowest& slowest() const { return slowest_; }

 private:
  std::map<int, WorkerBeat> window_begin_;  // by rank
  Slowest slowest_;
};

}  // namespace lockstep
