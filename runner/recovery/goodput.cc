#include "runner/recovery/goodput.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace lockstep {

const char* to_string(GoodputKind kind) {
  switch (kind) {
    case GoodputKind::kWork:
      return "work";
    case GoodputKind::kWaiting:
      return "waiting";
    case GoodputKind::kRedone:
      return "redone";
  }
  return "";
}

Goodput::Goodput(TimePoint start) : start_(start), since_(start) {}

Goodput::Key Goodput::running() const {
  switch (state_) {
    case State::kWorking:
      return {GoodputKind::kWork, ""};
    case State::kRedoing:
      return {GoodputKind::kRedone, cause_};
    case State::kStarting:
    case State::kBroken:
      break;
  }
  return {GoodputKind::kWaiting, cause_};
}

void Goodput::spend(const Key& key, TimePoint until) {
  if (until <= since_) return;
  spent_[key] += until - since_;
  since_ = until;
}

void Goodput::on_commit(int64_t step, TimePoint when) {
  if (state_ == State::kBroken) {
    commit_after_break(step, when);
  } else if (step > step_) {
    if (state_ == State::kRedoing) {
      redo(step, when);
    } else {
      spend(running(), when);
      state_ = State::kWorking;
    }
    step_ = step;
  }
  furthest_step_ = std::max(furthest_step_, step_);
}

void Goodput::commit_after_break(int64_t step, TimePoint when) {
  if (when <= broke_at_) {  // a commit from before the break, reported late
    spend({GoodputKind::kWork, ""}, when);
    step_ = std::max(step_, step);
    return;
  }
  is_broken_before_ = false;
  has_step_in_flight_ = false;
  spend(running(), when);
  // Without a call of on_resume, all that is known about a fall-back is that this step was committed before.
  if (step <= furthest_step_) ++redone_steps_;
  state_ = step < furthest_step_ ? State::kRedoing : State::kWorking;
  step_ = step;
}

// One call may cover steps before and after the furthest commit; each step gets the same share of the time.
void Goodput::redo(int64_t step, TimePoint when) {
  const int64_t again = std::min(step, furthest_step_) - step_;
  const Duration share = (std::max(when, since_) - since_) / (step - step_) * again;
  redone_steps_ += again - (std::exchange(is_next_counted_, false) ? 1 : 0);
  if (step >= furthest_step_) {
    spend(running(), step == furthest_step_ ? when : since_ + share);
    state_ = State::kWorking;
  }
  spend(running(), when);
}

void Goodput::on_break(const std::string& cause, TimePoint when, Interrupted interrupted) {
  const bool in_a_step = state_ == State::kWorking || state_ == State::kRedoing;
  const bool is_lost = in_a_step && interrupted != Interrupted::kNothing;
  in_flight_ = is_lost ? std::max(when - since_, Duration(0)) : Duration(0);
  if (is_lost) {
    spend({GoodputKind::kRedone, cause}, when);
    has_step_in_flight_ = interrupted == Interrupted::kStep;
    if (has_step_in_flight_) ++redone_steps_;
  } else if (!in_a_step) {
    spend(running(), when);
  }
  if (state_ == State::kStarting) return;  // nothing was committed yet: it is still start-up
  state_ = State::kBroken;
  cause_ = cause;
  broke_at_ = when;
}

void Goodput::on_earlier_break(const std::string& cause, int64_t step, bool step_in_flight, TimePoint when) {
  if (state_ == State::kStarting && furthest_step_ == 0) {
    spend(running(), when);
    state_ = State::kBroken;
    cause_ = cause;
    broke_at_ = when;
    is_broken_before_ = true;
  }
  if (!is_broken_before_) return;
  if (step_in_flight) redone_steps_ = 1;  // the earlier agent counted the seconds of that step
  has_step_in_flight_ = redone_steps_ > 0;
  furthest_step_ = std::max(furthest_step_, step);
  step_ = furthest_step_;
}

void Goodput::learn_cause(const std::string& cause) {
  if (state_ != State::kBroken || cause == cause_) return;
  // The time of the wait is accounted for later, under the new cause. That of the step in flight was already.
  if (in_flight_ > Duration(0)) {
    const auto spent = spent_.find({GoodputKind::kRedone, cause_});
    spent->second -= in_flight_;
    if (spent->second == Duration(0)) spent_.erase(spent);  // no other break had that cause
    spent_[{GoodputKind::kRedone, cause}] += in_flight_;
  }
  cause_ = cause;
}

void Goodput::on_resume(int64_t resumed_step, TimePoint when) {
  if (state_ != State::kStarting && state_ != State::kBroken) return;  // the first commit after it was reported before
  is_broken_before_ = false;
  // A lost rank may have committed the step that was still in flight on the ranks that go on. Then one step is redone,
  // not two.
  if (std::exchange(has_step_in_flight_, false) && resumed_step == step_ - 1) is_next_counted_ = true;
  spend(running(), when);
  step_ = resumed_step;
  if (state_ == State::kBroken && resumed_step < furthest_step_) state_ = State::kRedoing;
  furthest_step_ = std::max(furthest_step_, resumed_step);
}

void Goodput::on_waits(double data_seconds, double checkpoint_seconds) {
  move_wait(data_, data_seconds);
  move_wait(checkpoint_, checkpoint_seconds);
}

void Goodput::move_wait(Wait& wait, double seconds) {
  if (!std::isfinite(seconds)) return;
  const auto reported = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  const Duration before = reported < wait.reported ? Duration(0) : wait.reported;
  wait.reported = reported;
  if (state_ != State::kWorking) {
    wait.owed = Duration(0);
    return;
  }
  wait.owed += reported - before;
  Duration& work = spent_[{GoodputKind::kWork, ""}];
  const Duration moved = std::min(wait.owed, work);
  if (moved <= Duration(0)) return;
  work -= moved;
  wait.owed -= moved;
  spent_[{GoodputKind::kWaiting, wait.cause}] += moved;
}

std::map<Goodput::Key, double> Goodput::seconds(TimePoint now) const {
  std::map<Key, Duration> all = spent_;
  if (now > since_) all[running()] += now - since_;
  std::map<Key, double> result;
  for (const auto& [key, time] : all) result[key] = std::chrono::duration<double>(time).count();
  return result;
}

double Goodput::ratio(TimePoint now) const {
  const std::chrono::duration<double> total = std::max(now, since_) - start_;
  const std::map<Key, double> all = seconds(now);
  const auto work = all.find({GoodputKind::kWork, ""});
  return work == all.end() || total.count() <= 0.0 ? 0.0 : work->second / total.count();
}

}  // namespace lockstep
