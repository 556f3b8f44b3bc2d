#include "runner/agent/job_record.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runner/base/plural.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr const char* kWaiting = "waiting";
constexpr const char* kRedone = "redone";

// The cause PeerLost: a peer is gone, but the agent that knows why may not have reported yet.
bool is_peer_lost(const std::string& cause) { return cause == exit_reason(code_of(ExitCode::kPeerLost)); }

TimePoint at_ns(int64_t ns) { return TimePoint(std::chrono::nanoseconds(ns)); }

double seconds_between_ns(int64_t from, int64_t to) { return seconds_between(at_ns(from), at_ns(to)); }

std::string fixed(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// A duration that another node reported. Infinity, NaN or a huge value would spoil every sum, so these become -1 (not
// known).
double plausible_seconds(double seconds) {
  const bool is_plausible = seconds >= 0.0 && seconds <= std::chrono::duration<double>(kReportedDurationMax).count();
  return is_plausible ? seconds : -1.0;
}

TimePoint::duration ticks_of(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(std::max(0.0, seconds)));
}

// Shorter times would be shown as 0.0 and are left out.
constexpr double kShownSeconds = 0.05;

// "waiting 1.0 s (startup 0.4, SignalKILL 0.6)"; empty when no time of this kind was spent.
std::string describe_kind(const GoodputStatus& goodput, const std::string& kind) {
  double total = 0.0;
  std::string causes;
  for (const GoodputPart& part : goodput.parts) {
    if (part.kind != kind || part.seconds <= 0) continue;
    total += part.seconds;
    if (part.seconds < kShownSeconds) continue;
    causes += (causes.empty() ? "" : ", ") + part.cause + " " + fixed(part.seconds, 1);
  }
  if (total < kShownSeconds) return "";
  return kind + " " + fixed(total, 1) + " s" + (causes.empty() ? "" : " (" + causes + ")");
}

double seconds_of(const GoodputStatus& goodput, const std::string& kind) {
  double total = 0.0;
  for (const GoodputPart& part : goodput.parts) total += part.kind == kind ? part.seconds : 0.0;
  return total;
}

}  // namespace

void DurationHistogram::observe(double seconds) {
  ++count;
  sum += seconds;
  const auto* const bound = std::lower_bound(kUpperBounds.begin(), kUpperBounds.end(), seconds);
  if (bound != kUpperBounds.end()) ++counts[static_cast<size_t>(bound - kUpperBounds.begin())];
}

void JobRecord::on_beats(const BeatSnapshot& rank_0) {
  // Other activities are those of a rank that has left its group.
  if (rank_0.activity == Activity::kTraining) is_aside_ = false;
  if (rank_0.activity == Activity::kEvaluating || rank_0.activity == Activity::kCheckpointing) is_aside_ = true;
  note_wait("data", data_wait_ns_, rank_0, Phase::kDataWait);
  note_wait("checkpoint", checkpoint_wait_ns_, rank_0, Phase::kCheckpointStall);
  if (rank_0.committed_ns <= last_committed_ns_) return;
  has_committed_ = true;
  last_committed_ns_ = rank_0.committed_ns;
  last_step_ = rank_0.step;
  if (!first_commit_) first_commit_ = Commit{.step = rank_0.step, .at = at_ns(rank_0.committed_ns)};
  // After a break, on_resumed books the commits, because it knows the step from which the group goes on.
  if (breaks_.empty()) on_commit(rank_0.step, at_ns(rank_0.committed_ns));
}

void JobRecord::note_wait(const char* cause, int64_t& before_ns, const BeatSnapshot& rank_0, Phase phase) {
  const int64_t ns = rank_0.phase_ns[static_cast<size_t>(phase)];
  const Duration waited = std::chrono::nanoseconds(ns < before_ns ? ns : ns - before_ns);  // a new process begins at 0
  before_ns = ns;
  const bool is_at_work = !is_starting_ && breaks_.empty() && step_ >= furthest_step_;
  if (!is_at_work || waited <= Duration(0)) return;
  booked_[{kWaiting, cause}] += waited;
  waited_ += waited;
}

void JobRecord::on_commit(int64_t step, TimePoint when) {
  book(booked_, 0, when);
  booked_until_ = std::max(booked_until_, when);
  is_starting_ = false;
  step_ = step;
  furthest_step_ = std::max(furthest_step_, step);
  waited_ = Duration(0);
}

void JobRecord::book(Seconds& seconds, size_t breaks, TimePoint until) const {
  const auto add = [&](const char* kind, const std::string& cause, TimePoint from, TimePoint to) {
    from = std::max(from, booked_until_);
    to = std::min(to, until);
    if (to > from) seconds[{kind, cause}] += to - from;
  };
  if (is_starting_) return add(kWaiting, "startup", start_, until);
  if (breaks == 0) {
    if (step_ < furthest_step_) add(kRedone, redone_because_, start_, until);
    return;
  }
  add(kRedone, breaks_[0].booked_cause, interrupted_.from, interrupted_.until);
  TimePoint from = interrupted_.until;
  for (size_t i = 0; i < breaks; ++i) {
    const TimePoint to = i + 1 < breaks ? std::max(from, breaks_[i + 1].broke.at) : until;
    add(kWaiting, breaks_[i].booked_cause, from, to);
    from = to;
  }
}

void JobRecord::on_broke(const GroupBroke& broke, int64_t unix_seconds) {
  const double detection_seconds = plausible_seconds(broke.detection_seconds);
  if (!breaks_.empty() && breaks_.back().broke.generation == broke.generation) {  // now its cause is known
    GroupBroke& known = breaks_.back().broke;
    known.cause = broke.cause;
    if (!breaks_.back().is_cause_counted) breaks_.back().booked_cause = broke.cause;
    if (known.rank >= 0 || broke.rank < 0) return;
    known.rank = broke.rank;
    known.detection_seconds = detection_seconds;
    return;
  }
  breaks_.push_back({.broke = broke, .unix_seconds = unix_seconds, .booked_cause = broke.cause});
  breaks_.back().broke.detection_seconds = detection_seconds;
  if (breaks_.size() == 1) interrupted_ = interrupted_by(breaks_[0].broke);
}

JobRecord::Interrupted JobRecord::interrupted_by(const GroupBroke& broke) const {
  const TimePoint committed = at_ns(last_committed_ns_);
  Interrupted interrupted{.committed_step = last_step_};
  // The worker had stopped before that was detected. The time since then is waiting, not work that is redone.
  interrupted.until = std::max(broke.at - ticks_of(broke.detection_seconds), committed);
  const bool is_lost = last_committed_ns_ > 0 && broke.step_in_flight;
  interrupted.from = is_lost ? std::min(committed + waited_, interrupted.until) : interrupted.until;
  interrupted.has_step = is_lost && !is_aside_;
  if (first_commit_ && last_step_ > first_commit_->step) {
    interrupted.step_seconds =
        seconds_between(first_commit_->at, committed) / static_cast<double>(last_step_ - first_commit_->step);
  }
  return interrupted;
}

void JobRecord::on_placed(const GroupPlaced& placed) {
  if (!breaks_.empty()) placed_ = placed;
}

void JobRecord::on_broken_before(const BrokenBefore& before, TimePoint now, int64_t unix_seconds) {
  const bool is_believable = plausible_seconds(before.seconds) >= 0 && plausible_seconds(before.committed_seconds) >= 0;
  if (!is_believable || last_committed_ns_ > 0) return;
  if (!breaks_.empty() && before.generation < breaks_[0].broke.generation) return;
  if (is_starting_) {
    book(booked_, 0, now);
    booked_until_ = now;
    is_starting_ = false;
  }
  const Break reported{.broke = {.generation = before.generation,
                                 .cause = kNodeLeaves,
                                 .rank = -1,
                                 .detection_seconds = plausible_seconds(before.silent_seconds),
                                 .step_in_flight = false,
                                 .at = now - ticks_of(before.seconds)},
                       .unix_seconds = unix_seconds - std::llround(before.seconds),
                       .booked_cause = kNodeLeaves};
  if (breaks_.empty() || before.generation > breaks_[0].broke.generation) {
    breaks_ = {reported};
    interrupted_ = {};
  }
  GroupBroke& known = breaks_[0].broke;
  if (reported.broke.at < known.at) {
    known.at = reported.broke.at;
    known.detection_seconds = reported.broke.detection_seconds;
    breaks_[0].unix_seconds = reported.unix_seconds;
  }
  if (before.step_in_flight) {
    known.cause = kNodeLost;
    breaks_[0].booked_cause = kNodeLost;
    interrupted_.has_step = true;
  }
  if (before.step >= interrupted_.committed_step) {
    interrupted_.committed_step = before.step;
    interrupted_.from = now - ticks_of(before.committed_seconds);
  }
  interrupted_.until = std::max(known.at, interrupted_.from);
  if (!interrupted_.has_step) interrupted_.from = interrupted_.until;
  step_ = furthest_step_ = std::max(furthest_step_, before.step);
}

std::optional<Recovery> JobRecord::on_resumed(const Resumed& resumed) {
  const auto over = std::find_if(breaks_.begin(), breaks_.end(),
                                 [&](const Break& seen) { return seen.broke.generation >= resumed.generation; });
  if (!breaks_.empty() && over == breaks_.begin()) return std::nullopt;  // of the group that broke
  // A group with nothing left to train commits no step; then the time of the sync counts.
  const int64_t committed_ns = std::max(resumed.committed_ns, resumed.synced_ns);
  const TimePoint committed = at_ns(committed_ns);
  const bool was_starting = is_starting_;
  has_committed_ = has_committed_ || resumed.step > resumed.resumed_step;
  std::optional<Recovery> recovery;
  if (!breaks_.empty()) {
    if (resumed.redone_steps == 0) {  // they have gone on within the step in flight
      interrupted_.from = interrupted_.until;
      furthest_step_ = std::min(furthest_step_, resumed.resumed_step);
    }
    recovery = recovery_of(resumed);
    const auto count = static_cast<size_t>(over - breaks_.begin());
    const bool redoes = !was_starting && resumed.resumed_step < furthest_step_;
    const TimePoint goes_on = redoes ? at_ns(resumed.synced_ns) : committed;
    book(booked_, count, goes_on);
    booked_until_ = std::max(booked_until_, goes_on);
    redone_because_ = breaks_[count - 1].booked_cause;
    breaks_.erase(breaks_.begin(), over);
    placed_.reset();
    step_ = resumed.resumed_step;
    remember(*recovery);
  }
  last_committed_ns_ = std::max(last_committed_ns_, committed_ns);
  last_step_ = resumed.step;
  first_commit_ = Commit{.step = resumed.step, .at = committed};
  if (recovery || was_starting) on_commit(resumed.step, committed);
  // The next group broke, too, before its first commit was reported.
  if (!breaks_.empty()) interrupted_ = interrupted_by(breaks_[0].broke);
  return recovery;
}

// Each redone step is counted once for each break. A lost rank may have committed the step that was still in flight on
// the ranks that go on: that is one step, not two.
Recovery JobRecord::recovery_of(const Resumed& resumed) const {
  const GroupBroke& first = breaks_[0].broke;
  const int64_t committed_ns = std::max(resumed.committed_ns, resumed.synced_ns);
  const bool is_said = resumed.redone_steps >= 0;
  const int64_t again =
      is_said ? resumed.redone_steps : std::max<int64_t>(0, interrupted_.committed_step - resumed.resumed_step);
  const double in_flight_seconds = seconds_between(interrupted_.from, interrupted_.until);
  const bool is_loss_known = again == 0 || interrupted_.step_seconds >= 0;
  const bool is_in_flight_redone = !is_said && interrupted_.has_step && again != 1;
  Recovery recovery{
      .cause = first.cause,
      .rank = first.rank,
      .detection_seconds = first.detection_seconds,
      .sync_seconds = seconds_between_ns(resumed.formed_ns, resumed.synced_ns),
      .total_seconds = std::max(0.0, first.detection_seconds) + seconds_between(first.at, at_ns(committed_ns)),
      .redone_steps = is_in_flight_redone ? again + 1 : again,
      .lost_seconds = is_loss_known
                          ? in_flight_seconds + static_cast<double>(again) * std::max(0.0, interrupted_.step_seconds)
                          : -1.0,
      .step = resumed.step,
      .origin = resumed.origin,
      .generation = resumed.generation,
      .time_unix_seconds = breaks_[0].unix_seconds,
      .broken_ns = first.at.time_since_epoch().count(),
      .committed_ns = committed_ns,
      .message = first.message};
  if (placed_) {
    recovery.world_size = placed_->world_size;
    recovery.respawn_seconds = seconds_between(first.at, placed_->at);
    recovery.forming_seconds = seconds_between(placed_->at, at_ns(resumed.formed_ns));
  }
  return recovery;
}

void JobRecord::remember(const Recovery& recovery) {
  ++recoveries_total_;
  redone_steps_ += recovery.redone_steps;
  ++by_cause_[recovery.cause];
  const auto observe = [this](const char* part, double seconds) {
    if (seconds >= 0) durations_[part].observe(seconds);
  };
  observe("detect", recovery.detection_seconds);
  observe("respawn", recovery.respawn_seconds);
  observe("form", recovery.forming_seconds);
  observe("sync", recovery.sync_seconds);
  observe("total", recovery.total_seconds);
  recent_.push_back(recovery);
  if (recent_.size() > kRecentRecoveriesMax) recent_.erase(recent_.begin());
}

GoodputStatus JobRecord::goodput(TimePoint now) const {
  Seconds lost = booked_;
  book(lost, breaks_.size(), now);
  const Duration total = std::max(now, booked_until_) - start_;
  Duration work = total;
  for (const auto& [key, duration] : lost) work -= duration;
  work = std::max(work, Duration(0));
  const auto seconds = [](Duration duration) { return std::chrono::duration<double>(duration).count(); };
  GoodputStatus status{.ratio = total > Duration(0) ? seconds(work) / seconds(total) : 0.0, .parts = {}};
  if (work > Duration(0)) status.parts.push_back(GoodputPart{.kind = "work", .cause = "", .seconds = seconds(work)});
  for (const auto& [key, duration] : lost) {
    status.parts.push_back(GoodputPart{.kind = key.first, .cause = key.second, .seconds = seconds(duration)});
  }
  return status;
}

std::vector<GoodputPart> JobRecord::goodput_counters(TimePoint now) {
  std::vector<GoodputPart> parts = goodput(now).parts;
  const bool may_learn_cause =
      !breaks_.empty() && is_peer_lost(breaks_.back().booked_cause) && now < breaks_.back().broke.at + cause_timeout_;
  if (!breaks_.empty() && !may_learn_cause) breaks_.back().is_cause_counted = true;
  for (GoodputPart& part : parts) {
    double& counted = counted_[{part.kind, part.cause}];
    if (!may_learn_cause || !is_peer_lost(part.cause)) counted = std::max(counted, part.seconds);
    part.seconds = counted;
  }
  std::erase_if(parts, [](const GoodputPart& part) { return part.seconds <= 0; });
  return parts;
}

std::string JobRecord::goodput_line(TimePoint now) const {
  const GoodputStatus status = goodput(now);
  std::string text = "  goodput   " + fixed(status.ratio * 100, 1) + " % of " + fixed(seconds_between(start_, now), 1) +
                     " s: work " + fixed(seconds_of(status, "work"), 1) + " s";
  if (const std::string waiting = describe_kind(status, "waiting"); !waiting.empty()) text += ", " + waiting;
  if (const double redone = seconds_of(status, "redone"); redone > 0 || redone_steps() > 0) {
    text += ", redone " + fixed(redone, 1) + " s (" + plural(redone_steps(), "step") + ")";
  } else if (recoveries_total() > 0) {
    text += ", 0 steps redone";
  }
  return text;
}

std::string short_time(double seconds) {
  if (seconds < 0.1) return fixed(seconds * 1000, 0) + " ms";
  return fixed(seconds, seconds < 10 ? 2 : 1) + " s";
}

std::string describe(const Recovery& recovery) {
  std::string parts;
  // Nobody ended, so no other line says why.
  if (recovery.rank < 0 && is_peer_lost(recovery.cause)) parts = recovery.message;
  const auto add = [&parts](const char* what, double seconds) {
    if (seconds >= 0) parts += (parts.empty() ? "" : ", ") + std::string(what) + " in " + short_time(seconds);
  };
  add("detected", recovery.detection_seconds);
  add("all ready", recovery.respawn_seconds);
  add("formed", recovery.forming_seconds);
  if (!recovery.origin.empty()) parts += (parts.empty() ? "" : ", ") + std::string("state ") + recovery.origin;
  return "going on at step " + std::to_string(recovery.step) + " with " + plural(recovery.world_size, "rank") +
         " after " + short_time(recovery.total_seconds) + " (" + parts + "; " + plural(recovery.redone_steps, "step") +
         " redone)";
}

}  // namespace lockstep
