// Goodput: where the wall clock of a job went, kept by node 0's agent, which outlives its workers. Pure.
//
// Role: at any time the job is in exactly one state, so the seconds add up to the wall clock by construction:
//   work     committed steps, evaluations, checkpoints: what an undisturbed run would also have spent
//   waiting  by cause: "startup" (until the first commit), then the cause of each break ("SignalKILL", "Timeout",
//            "NodeLost", "Join", "Leave", …) from the break to the first commit after it, or to the state that is
//            older than what was committed before
//   redone   by cause of the break: the step that was in flight when the group broke, and steps that are committed a
//            second time after a fall-back to a checkpoint
// "data" and "checkpoint" are rank 0's own waits inside work, moved from work to waiting when they are reported.
// What comes late is taken as news of the past: a commit from before the break only moves the step.
// Threads: none. Time is an argument; one that lies before what has been accounted for counts as that.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace lockstep {

enum class GoodputKind { kWork, kWaiting, kRedone };
const char* to_string(GoodputKind kind);  // "work", "waiting", "redone"

class Goodput {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Key = std::pair<GoodputKind, std::string>;  // cause; "" for work

  explicit Goodput(TimePoint start);

  // The newest commit: `step` committed at `when`. Called as often as it is looked at, not for each step.
  void on_commit(int64_t step, TimePoint when);
  // The group broke at `when`, in the step after the newest commit; `step_in_flight` is false when all left together
  // at a step's end, so that nothing is lost.
  void on_break(const std::string& cause, TimePoint when, bool step_in_flight = true);
  // A group that had committed `step` broke before this agent was there, as is told at `when`: from then on it is no
  // start-up that is waited for, but this cause. By several nodes; only before the first resume or commit.
  void on_earlier_break(const std::string& cause, int64_t step, bool step_in_flight, TimePoint when);
  // The cause of the newest break is known better than when it was told: all its time counts as this one's. Only before
  // the group goes on.
  void learn_cause(const std::string& cause);
  // The group went on from `resumed_step` at `when`; steps up to the furthest commit so far are redone. Best before the
  // first commit that follows.
  void on_resume(int64_t resumed_step, TimePoint when);
  // Cumulative waits of rank 0's process inside steps, in seconds; falls back to 0 when the process is a new one. What
  // was waited outside work is not moved. Called after on_commit.
  void on_waits(double data_seconds, double checkpoint_seconds);

  // Until `now`, the running state included. Adds up to now - start.
  [[nodiscard]] std::map<Key, double> seconds(TimePoint now) const;
  [[nodiscard]] double ratio(TimePoint now) const;  // work over everything
  [[nodiscard]] int64_t furthest_step() const { return furthest_step_; }
  // Those in flight at a break included.
  [[nodiscard]] int64_t redone_steps() const { return redone_steps_; }

 private:
  using Duration = TimePoint::duration;  // whole ticks: the sums are exact
  enum class State { kStarting, kWorking, kBroken, kRedoing };
  // A wait that rank 0's process has reported.
  struct Wait {
    const char* cause;
    Duration reported{0};  // of this process
    Duration owed{0};      // not moved yet: its step has not been committed
  };

  [[nodiscard]] Key running() const;  // what the time since `since_` counts as
  void spend(const Key& key, TimePoint until);
  void commit_after_break(int64_t step, TimePoint when);
  void redo(int64_t step, TimePoint when);
  void move_wait(Wait& wait, double seconds);

  TimePoint start_;
  TimePoint since_;  // start of what has not been spent yet
  State state_ = State::kStarting;
  bool is_broken_before_ = false;  // … and nothing has come of it yet
  std::string cause_ = "startup";
  TimePoint broke_at_{};
  bool has_step_in_flight_ = false;  // at the newest break: counted as redone
  bool is_next_counted_ = false;     // the next step that is redone is that one
  Duration in_flight_{0};            // of that step: spent as redone
  int64_t step_ = 0;                 // newest commit
  int64_t furthest_step_ = 0;
  int64_t redone_steps_ = 0;
  Wait data_{.cause = "data"};
  Wait checkpoint_{.cause = "checkpoint"};
  std::map<Key, Duration> spent_;
};

}  // namespace lockstep
