// Goodput: where the wall clock of a job went, kept by node 0's agent, which outlives its workers. Pure.
//
// Role: at any time the job is in exactly one state, so the seconds add up to the wall clock by construction:
//   work     committed steps, evaluations, checkpoints: what an undisturbed run would also have spent
//   waiting  by cause: "startup" (until the first commit), then the cause of each break ("SignalKILL", "TimedOut",
//            "NodeLost", "Join", "Leave", …) from the break to the first commit after it, or until the group resumes
//            from a state that is older than the newest commit
//   redone   by cause of the break: the step that was in flight when the group broke, and steps that are committed a
//            second time after a fall-back to a checkpoint
// "data" and "checkpoint" are rank 0's own waits inside work, moved from work to waiting when they are reported.
// A commit from before the newest break, reported after it, only updates the step.
// Threads: none. Time is an argument. A time before the newest time that was accounted for counts as that time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "runner/base/clock.h"

namespace lockstep {

enum class GoodputKind { kWork, kWaiting, kRedone };
const char* to_string(GoodputKind kind);  // "work", "waiting", "redone"

class Goodput {
 public:
  using Key = std::pair<GoodputKind, std::string>;  // cause; "" for work

  explicit Goodput(TimePoint start);

  // The newest commit: `step` at `when`. Called whenever it is read from rank 0, which is not after every step.
  void on_commit(int64_t step, TimePoint when);
  // What a break interrupted. kNothing: all left together at a step's end. kAside: an evaluation or the wait for a
  // checkpoint, whose time is lost, but no step.
  enum class Interrupted { kStep, kAside, kNothing };
  // The group broke at `when`, after the newest commit.
  void on_break(const std::string& cause, TimePoint when, Interrupted interrupted = Interrupted::kStep);
  // A node reports at `when` that a group which had committed `step` broke before this agent started: from then on the
  // cause of the wait is this one and not "startup". Several nodes may report it. Has an effect only before the first
  // resume or commit.
  void on_earlier_break(const std::string& cause, int64_t step, bool step_in_flight, TimePoint when);
  // The real cause of the newest break has become known: all time that was lost to the break counts under it. Has an
  // effect only before the group goes on.
  void learn_cause(const std::string& cause);
  // The group went on from `resumed_step` at `when`; steps up to the furthest commit so far are redone. To be called
  // before on_commit of the commit that follows; after it, it has no effect.
  void on_resume(int64_t resumed_step, TimePoint when);
  // Cumulative waits of rank 0's process inside steps, in seconds; a new process begins at 0 again. Waits outside of
  // work are not moved. To be called after on_commit.
  void on_waits(double data_seconds, double checkpoint_seconds);

  // Until `now`, the running state included. Adds up to now - start.
  [[nodiscard]] std::map<Key, double> seconds(TimePoint now) const;
  [[nodiscard]] double ratio(TimePoint now) const;  // work over everything
  [[nodiscard]] int64_t furthest_step() const { return furthest_step_; }
  // Includes the steps that were in flight at a break.
  [[nodiscard]] int64_t redone_steps() const { return redone_steps_; }

 private:
  using Duration = TimePoint::duration;  // whole ticks: the sums are exact
  enum class State { kStarting, kWorking, kBroken, kRedoing };
  // A wait that rank 0's process has reported.
  struct Wait {
    const char* cause;
    Duration reported{0};  // cumulative, of the present process
    Duration owed{0};      // reported but not moved yet, because its step has not been committed
  };

  [[nodiscard]] Key running() const;  // what the time since `since_` counts as
  void spend(const Key& key, TimePoint until);
  void commit_after_break(int64_t step, TimePoint when);
  void redo(int64_t step, TimePoint when);
  void move_wait(Wait& wait, double seconds);

  TimePoint start_;
  TimePoint since_;  // start of what has not been spent yet
  State state_ = State::kStarting;
  bool is_broken_before_ = false;  // on_earlier_break was called, and nothing was committed or resumed since
  std::string cause_ = "startup";
  TimePoint broke_at_{};
  bool has_step_in_flight_ = false;  // the newest break interrupted a step, which was counted as redone
  bool is_next_counted_ = false;     // the next redone step is that one and is not counted again
  Duration in_flight_{0};            // time of that step, which counts as redone
  int64_t step_ = 0;                 // newest commit
  int64_t furthest_step_ = 0;
  int64_t redone_steps_ = 0;
  Wait data_{.cause = "data"};
  Wait checkpoint_{.cause = "checkpoint"};
  std::map<Key, Duration> spent_;
};

}  // namespace lockstep
