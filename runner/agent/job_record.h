// JobRecord: node 0's agent keeps in it how the job's time was spent (goodput), and each break of the group with the
// recovery from it. The agent outlives its workers, so the record does, too. Pure.
//
// The time is spent in four ways, which add up to the wall clock:
//   startup   waiting, until the first commit
//   waiting   under the cause of a break: from the break to the first commit after it, or until the group goes on from
//             a step before its newest commit; and rank 0's own waits, under "data" and "checkpoint"
//   redone    under the cause of a break: the step that it interrupted, and the steps that are committed again (the
//             time between two readings of the beat page is booked as one, so the end is known to one reading)
//   work      all the rest
//
// What a break has cost is booked when its recovery ends, because the cause may become known late.
// Threads: none. Time is an argument; nanoseconds are CLOCK_MONOTONIC's, as steady_clock's are.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
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
#include "runner/recovery/coordinator.h"

namespace lockstep {

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
  // heartbeat_timeout: the job's; for so long the real cause of a break with PeerLost may arrive later than the break.
  JobRecord(TimePoint start, std::chrono::milliseconds heartbeat_timeout)
      : cause_timeout_(heartbeat_timeout + 2 * kBeatInterval), start_(start), booked_until_(start) {}

  // Rank 0's beat page; to be called regularly, and once more before on_broke.
  void on_beats(const BeatSnapshot& rank_0);
  void on_broke(const GroupBroke& broke, int64_t unix_seconds);
  void on_placed(const GroupPlaced& placed);
  // A node reports the break of a group that was there before this agent started. When several nodes report, the newest
  // group counts, and for it the earliest break. Ignored after the first commit, and at an impossible time.
  void on_broken_before(const BrokenBefore& before, TimePoint now, int64_t unix_seconds);
  // Rank 0 has committed a step in a new group. Returns the recovery that this ends; nullopt if there was no break.
  std::optional<Recovery> on_resumed(const Resumed& resumed);

  // Has a step been committed since this agent started?
  [[nodiscard]] bool has_committed() const { return has_committed_; }
  // The group has broken, and no step has been committed since.
  [[nodiscard]] bool is_recovering() const { return !breaks_.empty(); }
  [[nodiscard]] int64_t recoveries_total() const { return recoveries_total_; }
  [[nodiscard]] const std::vector<Recovery>& recent() const { return recent_; }  // newest last
  [[nodiscard]] const std::map<std::string, int64_t>& recoveries_by_cause() const { return by_cause_; }
  [[nodiscard]] const std::map<std::string, DurationHistogram>& durations() const { return durations_; }  // by part
  [[nodiscard]] int64_t redone_steps() const { return redone_steps_; }  // of all recoveries
  [[nodiscard]] GoodputStatus goodput(TimePoint now) const;
  // The same seconds as Prometheus counters, which must never decrease: while time is moved from work to waiting, the
  // work counter stays constant. The time since a break whose cause is still PeerLost is left out as long as the real
  // cause may arrive; one that arrives later changes the recovery's cause, but no counter.
  std::vector<GoodputPart> goodput_counters(TimePoint now);

  // A line that is aligned with rank 0's summary: "  goodput   98.2 % of 65.3 s: work 64.1 s, waiting 1.0 s (startup
  // 0.4, SignalKILL 0.6), redone 0.2 s (1 step)"
  [[nodiscard]] std::string goodput_line(TimePoint now) const;

 private:
  using Duration = TimePoint::duration;                                     // whole ticks: the sums are exact
  using Seconds = std::map<std::pair<std::string, std::string>, Duration>;  // by kind and cause, without work

  struct Break {
    GroupBroke broke;
    int64_t unix_seconds = 0;
    std::string booked_cause;       // that its time counts under
    bool is_cause_counted = false;  // booked_cause has been exported, and stays
  };
  // What the first of breaks_ has interrupted.
  struct Interrupted {
    TimePoint from;   // of the newest commit, or of the end of a wait after it; the time from here on is lost
    TimePoint until;  // the last sign of life of what was lost
    int64_t committed_step = 0;
    bool has_step = false;       // a step was in flight, which had been committed nowhere
    double step_seconds = -1.0;  // average of the steps before it; negative: not known
  };

  void on_commit(int64_t step, TimePoint when);
  void note_wait(const char* cause, int64_t& before_ns, const BeatSnapshot& rank_0, Phase phase);
  [[nodiscard]] Interrupted interrupted_by(const GroupBroke& broke) const;
  // Books the time from booked_until_ to `until`, as far as it is not work. `breaks`: how many have ended by then.
  void book(Seconds& seconds, size_t breaks, TimePoint until) const;
  [[nodiscard]] Recovery recovery_of(const Resumed& resumed) const;
  void remember(const Recovery& recovery);

  std::chrono::milliseconds cause_timeout_;
  TimePoint start_;
  Seconds booked_;
  TimePoint booked_until_;
  bool is_starting_ = true;
  int64_t step_ = 0;           // newest commit that is booked, or from which the group goes on
  int64_t furthest_step_ = 0;  // above step_: these steps are redone
  std::string redone_because_;
  Duration waited_{0};        // of rank 0, inside the step that is in flight
  int64_t data_wait_ns_ = 0;  // as last read from rank 0's page
  int64_t checkpoint_wait_ns_ = 0;

  bool has_committed_ = false;
  int64_t last_committed_ns_ = 0;
  int64_t last_step_ = 0;
  bool is_aside_ = false;               // rank 0 evaluates, or waits for a checkpoint: it is between two steps
  std::optional<Commit> first_commit_;  // the first commit that was seen of the newest group
  std::vector<Break> breaks_;           // of the recovery that is going on, the oldest first
  Interrupted interrupted_;
  std::optional<GroupPlaced> placed_;  // the newest placement since the first break
  int64_t recoveries_total_ = 0;
  int64_t redone_steps_ = 0;
  std::vector<Recovery> recent_;
  std::map<std::string, int64_t> by_cause_;
  std::map<std::string, DurationHistogram> durations_;
  std::map<std::pair<std::string, std::string>, double> counted_;  // seconds exported so far, by kind and cause
};

// "going on at step 121 with 4 ranks after 0.43 s (detected in 8 ms, all ready in 0.36 s, formed in 21 ms, state from
// rank 0; 1 step redone)"; where no worker ended, what the first rank that found the group broken says comes first.
std::string describe(const Recovery& recovery);

// "8 ms", "0.43 s", "65.3 s".
std::string short_time(double seconds);

}  // namespace lockstep
