// JobRecord: what node 0's agent, which outlives its workers, remembers of the job: where its time went, and each break
// of the group with what mending it cost. Pure.
// Threads: none. Time is an argument; nanoseconds are CLOCK_MONOTONIC's, as steady_clock's are.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/agent/beat_memory.h"
#include "runner/contract/coordination.h"
#include "runner/contract/messages.h"
#include "runner/contract/run_status.h"
#include "runner/recovery/commit.h"
#include "runner/recovery/goodput.h"

namespace lockstep {

// The group cannot go on, or was asked to leave together.
struct GroupBreak {
  uint64_t generation = 0;
  std::string cause;                // CamelCase
  int rank = -1;                    // of the worker that ended; -1: none did
  double detection_seconds = -1.0;  // from the last sign of life; below zero: not known
  bool step_in_flight = true;       // false: all left together at a step's end
  std::chrono::steady_clock::time_point at;
};

// Who lost a peer may be heard before who knows what became of it.
struct CauseLearned {
  std::string cause;
  int rank = -1;
  double detection_seconds = -1.0;
};

struct GroupPlaced {
  uint64_t generation = 0;
  std::string cause;  // why there is a new one, as known by now
  int world_size = 0;
  int nnodes = 0;
  std::chrono::steady_clock::time_point at;
};

// One of the parts of a recovery, over all of them.
struct DurationHistogram {
  static constexpr std::array<double, 14> kUpperBounds{0.01, 0.025, 0.05, 0.1,  0.25, 0.5,   1.0,
                                                       2.5,  5.0,   10.0, 30.0, 60.0, 120.0, 300.0};
  std::array<uint64_t, kUpperBounds.size()> counts{};  // not cumulative; what is above all bounds is in `count` alone
  uint64_t count = 0;
  double sum = 0.0;
  void observe(double seconds);
};

// Who says that something took longer is not believed.
inline constexpr std::chrono::hours kToldTimeMax{24};

class JobRecord {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // What became of a peer is told within `told_within` of its loss, or the time goes to PeerLost.
  explicit JobRecord(TimePoint start, std::chrono::milliseconds told_within = kHeartbeatTimeout + 2 * kBeatInterval)
      : start_(start), told_within_(told_within), goodput_(start) {}

  // Rank 0's page, looked at now and then, and once more before a break is told.
  void on_beats(const BeatSnapshot& rank_0);
  void on_break(GroupBreak group_break, int64_t unix_seconds);
  // What the newest break was because of, when it is known better than when it was told.
  void on_cause(const CauseLearned& learned);
  void on_placed(const GroupPlaced& placed);
  // Told at `when`, ahead of the first placement, by a node that was in a group before this agent was there. Of several
  // the newest group counts, and its earliest break.
  void on_broken_before(const GroupBreak& told, const Commit& newest, TimePoint when, int64_t unix_seconds);
  // Rank 0 has committed in a new group. The recovery that is over with it, if there was a break before.
  std::optional<Recovery> on_resumed(const Resumed& resumed);

  // A step, in the life of this agent.
  [[nodiscard]] bool has_committed() const { return has_committed_; }
  // The group has broken and not committed again.
  [[nodiscard]] bool is_recovering() const { return pending_.has_value(); }
  [[nodiscard]] int64_t recoveries_total() const { return recoveries_total_; }
  [[nodiscard]] const std::vector<Recovery>& recent() const { return recent_; }  // newest last
  [[nodiscard]] const std::map<std::string, int64_t>& recoveries_by_cause() const { return by_cause_; }
  [[nodiscard]] const std::map<std::string, DurationHistogram>& durations() const { return durations_; }  // by part
  [[nodiscard]] int64_t redone_steps() const { return goodput_.redone_steps(); }
  [[nodiscard]] GoodputStatus goodput(TimePoint now) const;
  // The same seconds as counters, which never fall: a wait that is taken out of work when it is over leaves work where
  // it was until it has caught up; what was lost to a peer of which nobody has said yet what became of it is counted
  // when that is known, or when it should have been.
  std::vector<GoodputPart> goodput_counters(TimePoint now);

  // In the columns of rank 0's summary: "  goodput   98.2 % of 65.3 s: work 64.1 s, waiting 1.0 s (startup 0.4,
  // SignalKILL 0.6), redone 0.2 s (1 step)"
  [[nodiscard]] std::string goodput_line(TimePoint now) const;

 private:
  struct Pending {
    GroupBreak first;
    int64_t unix_seconds = 0;
    int64_t redone_before = 0;
    std::optional<GroupPlaced> placed;  // the newest since
    std::optional<GroupBreak> again;    // the newest since
    bool is_again_counted = false;      // goodput waits for that one
    // Work that is lost if the group goes on from the newest commit, and that of each step before it; below zero: not
    // known.
    double in_flight_seconds = 0.0;
    double step_seconds = -1.0;
    int64_t committed_step = 0;
    bool is_published = false;  // the counters have the newest one's time under its cause, and keep it
    int64_t again_unix_seconds = 0;
  };
  void remember(const Recovery& recovery);
  // While one is pending.
  [[nodiscard]] GroupBreak& newest_break() { return pending_->again ? *pending_->again : pending_->first; }
  [[nodiscard]] const GroupBreak& newest_break() const { return pending_->again ? *pending_->again : pending_->first; }
  [[nodiscard]] bool may_learn_cause(TimePoint now) const;
  [[nodiscard]] static double lost_seconds(const Pending& pending, int64_t resumed_step);

  TimePoint start_;
  std::chrono::milliseconds told_within_;
  Goodput goodput_;
  bool has_committed_ = false;
  int64_t last_committed_ns_ = 0;
  int64_t last_step_ = 0;
  std::optional<Commit> first_commit_;  // that was seen of the newest group
  std::optional<Pending> pending_;
  int64_t recoveries_total_ = 0;
  std::vector<Recovery> recent_;
  std::map<std::string, int64_t> by_cause_;
  std::map<std::string, DurationHistogram> durations_;
  std::map<std::pair<std::string, std::string>, double> counted_;  // by kind and cause
};

// "going on at step 121 with 4 ranks after 0.43 s (detected in 8 ms, respawned in 0.36 s, formed in 21 ms, state from
// rank 0; 1 step redone)"
std::string describe(const Recovery& recovery);

// "8 ms", "0.43 s", "65.3 s".
std::string short_time(double seconds);

}  // namespace lockstep
