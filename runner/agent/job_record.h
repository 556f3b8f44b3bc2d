// JobRecord: node 0's agent keeps in it how the job's time was spent (goodput), and each break of the group with the
// duration of the recovery. The agent outlives its workers, so the record does, too. Pure.
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

#include "runner/agent/beat_page_mapping.h"
#include "runner/base/clock.h"
#include "runner/contract/coordination.h"
#include "runner/contract/messages.h"
#include "runner/contract/run_status.h"
#include "runner/recovery/commit.h"
#include "runner/recovery/goodput.h"

namespace lockstep {

// A break: the group cannot go on, or its ranks were asked to leave together.
struct GroupBreak {
  uint64_t generation = 0;
  std::string cause;                // CamelCase
  int rank = -1;                    // rank of the worker that ended; -1: none did
  double detection_seconds = -1.0;  // from the last sign of life to the detection; negative: not known
  bool step_in_flight = true;       // false: all ranks left together at the end of a step
  TimePoint at;
};

// The cause of a break, when it becomes known later. A rank that lost a peer may report that (PeerLost) before the
// agent of that peer reports why it ended.
struct CauseLearned {
  std::string cause;
  int rank = -1;
  double detection_seconds = -1.0;
};

struct GroupPlaced {
  uint64_t generation = 0;
  std::string cause;  // why there is a new group, as far as it is known
  int world_size = 0;
  int nnodes = 0;
  TimePoint at;
};

// Histogram of the durations of one part of a recovery ("detect", "respawn", "form", "sync", "total").
struct DurationHistogram {
  static constexpr std::array<double, 14> kUpperBounds{0.01, 0.025, 0.05, 0.1,  0.25, 0.5,   1.0,
                                                       2.5,  5.0,   10.0, 30.0, 60.0, 120.0, 300.0};
  std::array<uint64_t, kUpperBounds.size()> counts{};  // not cumulative; longer durations are only in `count`
  uint64_t count = 0;
  double sum = 0.0;
  void observe(double seconds);
};

// Durations that another node reports are ignored if they are longer than this.
inline constexpr std::chrono::hours kReportedDurationMax{24};

class JobRecord {
 public:
  // cause_timeout: how long after a break with cause PeerLost the real cause may still arrive. Until then the lost time
  // is not exported; after that it counts under PeerLost.
  explicit JobRecord(TimePoint start, std::chrono::milliseconds cause_timeout = kHeartbeatTimeout + 2 * kBeatInterval)
      : start_(start), cause_timeout_(cause_timeout), goodput_(start) {}

  // Rank 0's beat page; to be called regularly, and once more before on_break.
  void on_beats(const BeatSnapshot& rank_0);
  void on_break(GroupBreak group_break, int64_t unix_seconds);
  // The cause of the newest break became known (see CauseLearned).
  void on_cause(const CauseLearned& learned);
  void on_placed(const GroupPlaced& placed);
  // Before the first placement, a node reports at `when` the break of a group that was there before this agent started.
  // When several nodes report, the newest group counts, and for it the earliest break.
  void on_earlier_break(const GroupBreak& told, const Commit& newest, TimePoint when, int64_t unix_seconds);
  // Rank 0 has committed a step in a new group. Returns the recovery that this ends; nullopt if there was no break.
  std::optional<Recovery> on_resumed(const Resumed& resumed);

  // Has a step been committed since this agent started?
  [[nodiscard]] bool has_committed() const { return has_committed_; }
  // The group has broken, and no step has been committed since.
  [[nodiscard]] bool is_recovering() const { return pending_.has_value(); }
  [[nodiscard]] int64_t recoveries_total() const { return recoveries_total_; }
  [[nodiscard]] const std::vector<Recovery>& recent() const { return recent_; }  // newest last
  [[nodiscard]] const std::map<std::string, int64_t>& recoveries_by_cause() const { return by_cause_; }
  [[nodiscard]] const std::map<std::string, DurationHistogram>& durations() const { return durations_; }  // by part
  [[nodiscard]] int64_t redone_steps() const { return goodput_.redone_steps(); }
  [[nodiscard]] GoodputStatus goodput(TimePoint now) const;
  // The same seconds as Prometheus counters, which must never decrease. When a wait ends, its time is moved from work
  // to waiting; the work counter then stays constant until work has caught up. Time lost to a break whose cause is
  // still PeerLost is counted when the real cause arrives, or after cause_timeout.
  std::vector<GoodputPart> goodput_counters(TimePoint now);

  // A line that is aligned with rank 0's summary: "  goodput   98.2 % of 65.3 s: work 64.1 s, waiting 1.0 s (startup
  // 0.4, SignalKILL 0.6), redone 0.2 s (1 step)"
  [[nodiscard]] std::string goodput_line(TimePoint now) const;

 private:
  struct Pending {
    GroupBreak first;
    int64_t unix_seconds = 0;
    std::optional<GroupPlaced> placed;  // the newest placement since the first break
    std::optional<GroupBreak> again;    // the newest further break since the first
    bool is_again_counted = false;      // goodput has counted `again`: its time is waiting with the cause of `again`
    // Seconds of the step that was in flight, lost even if the group continues from the newest commit; and the average
    // seconds of an earlier step, for each step that has to be redone (negative: not known).
    double in_flight_seconds = 0.0;
    double step_seconds = -1.0;
    int64_t committed_step = 0;
    bool step_in_flight = false;  // at the first break; it was lost, and had been committed nowhere
    bool is_published = false;    // the exported counters include the newest break; its cause is not corrected any more
    int64_t again_unix_seconds = 0;
  };
  void remember(const Recovery& recovery);
  // Only while pending_ is set.
  [[nodiscard]] GroupBreak& newest_break() { return pending_->again ? *pending_->again : pending_->first; }
  [[nodiscard]] const GroupBreak& newest_break() const { return pending_->again ? *pending_->again : pending_->first; }
  [[nodiscard]] bool may_learn_cause(TimePoint now) const;
  [[nodiscard]] static double lost_seconds(const Pending& pending, int64_t resumed_step);
  [[nodiscard]] static int64_t redone_steps(const Pending& pending, int64_t resumed_step);

  TimePoint start_;
  std::chrono::milliseconds cause_timeout_;
  Goodput goodput_;
  bool has_committed_ = false;
  int64_t last_committed_ns_ = 0;
  int64_t last_step_ = 0;
  bool is_aside_ = false;               // rank 0 evaluates, or waits for a checkpoint: it is between two steps
  std::optional<Commit> first_commit_;  // the first commit that was seen of the newest group
  std::optional<Pending> pending_;
  int64_t recoveries_total_ = 0;
  std::vector<Recovery> recent_;
  std::map<std::string, int64_t> by_cause_;
  std::map<std::string, DurationHistogram> durations_;
  std::map<std::pair<std::string, std::string>, double> counted_;  // seconds exported so far, by kind and cause
};

// "going on at step 121 with 4 ranks after 0.43 s (detected in 8 ms, all ready in 0.36 s, formed in 21 ms, state from
// rank 0; 1 step redone)"
std::string describe(const Recovery& recovery);

// "8 ms", "0.43 s", "65.3 s".
std::string short_time(double seconds);

}  // namespace lockstep
