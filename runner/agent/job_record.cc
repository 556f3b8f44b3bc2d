#include "runner/agent/job_record.h"

#include <algorithm>
#include <cstdio>

#include "runner/base/plural.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// The cause PeerLost: a peer is gone, but the agent that knows why may not have reported yet.
bool is_peer_lost(const std::string& cause) { return cause == exit_reason(code_of(ExitCode::kPeerLost)); }

TimePoint at_ns(int64_t ns) { return TimePoint(std::chrono::nanoseconds(ns)); }

double seconds_between_ns(int64_t from, int64_t to) { return seconds_between(at_ns(from), at_ns(to)); }

double phase_seconds(const BeatSnapshot& beats, Phase phase) {
  return seconds_between_ns(0, beats.phase_ns[static_cast<size_t>(phase)]);
}

std::string fixed(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// A duration that another node reported. Infinity, NaN or a huge value would spoil every sum, so these become -1 (not
// known).
double plausible_seconds(double detection_seconds) {
  const bool is_plausible = detection_seconds <= std::chrono::duration<double>(kReportedDurationMax).count();
  return is_plausible ? detection_seconds : -1.0;
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
  if (rank_0.committed_ns > last_committed_ns_) {
    has_committed_ = true;
    last_committed_ns_ = rank_0.committed_ns;
    last_step_ = rank_0.step;
    if (!first_commit_) first_commit_ = Commit{.step = rank_0.step, .at = at_ns(rank_0.committed_ns)};
    // While a recovery is pending, commits are counted by on_resumed, which knows the step from which the group
    // resumed.
    if (!pending_) goodput_.on_commit(rank_0.step, at_ns(rank_0.committed_ns));
  }
  goodput_.on_waits(phase_seconds(rank_0, Phase::kDataWait), phase_seconds(rank_0, Phase::kCheckpointStall));
}

void JobRecord::on_break(GroupBreak group_break, int64_t unix_seconds) {
  group_break.detection_seconds = plausible_seconds(group_break.detection_seconds);
  if (pending_) {  // the next group broke, too, perhaps after its first commit
    pending_->again = group_break;
    pending_->again_unix_seconds = unix_seconds;
    // If nothing was committed in between, the time from now on is waiting because of this break. (If a step was
    // committed, on_resumed will follow and count it.)
    pending_->is_again_counted = pending_->placed && at_ns(last_committed_ns_) <= pending_->placed->at;
    pending_->is_published = false;
    if (pending_->is_again_counted) {
      goodput_.on_break(group_break.cause, group_break.at, Goodput::Interrupted::kNothing);
    }
    return;
  }
  pending_ = Pending{.first = group_break, .unix_seconds = unix_seconds};
  // The worker had stopped before that was detected. The time since then counts as waiting, not as work that is redone.
  const auto silent = std::chrono::duration_cast<TimePoint::duration>(
      std::chrono::duration<double>(std::max(0.0, group_break.detection_seconds)));
  const TimePoint broke = std::max(group_break.at - silent, at_ns(last_committed_ns_));
  pending_->committed_step = last_step_;
  if (last_committed_ns_ > 0 && group_break.step_in_flight) {
    pending_->in_flight_seconds = seconds_between(at_ns(last_committed_ns_), broke);
    pending_->step_in_flight = !is_aside_;
  }
  if (first_commit_ && last_step_ > first_commit_->step) {
    pending_->step_seconds = seconds_between(first_commit_->at, at_ns(last_committed_ns_)) /
                             static_cast<double>(last_step_ - first_commit_->step);
  }
  goodput_.on_break(group_break.cause, broke,
                    !group_break.step_in_flight ? Goodput::Interrupted::kNothing
                    : is_aside_                 ? Goodput::Interrupted::kAside
                                                : Goodput::Interrupted::kStep);
}

void JobRecord::on_cause(const CauseLearned& learned) {
  if (!pending_ || learned.cause.empty()) return;
  GroupBreak& known = newest_break();
  known.cause = learned.cause;
  if (known.rank < 0 && learned.rank >= 0) {
    known.rank = learned.rank;
    known.detection_seconds = plausible_seconds(learned.detection_seconds);
  }
  const bool is_waited_for = !pending_->again || pending_->is_again_counted;
  if (is_waited_for && !pending_->is_published) goodput_.learn_cause(known.cause);
}

void JobRecord::on_placed(const GroupPlaced& placed) {
  if (!pending_) return;
  on_cause({.cause = placed.cause});
  pending_->placed = placed;
}

void JobRecord::on_earlier_break(const GroupBreak& told, const Commit& newest, TimePoint when, int64_t unix_seconds) {
  if (last_committed_ns_ > 0 || (pending_ && told.generation < pending_->first.generation)) return;
  if (!pending_ || told.generation > pending_->first.generation) {
    pending_ = Pending{.first = told, .unix_seconds = unix_seconds};
  }
  GroupBreak& known = pending_->first;
  if (told.at < known.at) {
    known.at = told.at;
    known.detection_seconds = told.detection_seconds;
    pending_->unix_seconds = unix_seconds;
  }
  if (told.step_in_flight && !known.step_in_flight) {
    known.step_in_flight = true;
    known.cause = told.cause;
  }
  pending_->step_in_flight = known.step_in_flight;
  if (newest.step >= pending_->committed_step) {
    pending_->committed_step = newest.step;
    pending_->in_flight_seconds = known.step_in_flight ? std::max(0.0, seconds_between(newest.at, known.at)) : 0.0;
  }
  goodput_.on_earlier_break(known.cause, newest.step, known.step_in_flight, when);
  goodput_.learn_cause(known.cause);
}

std::optional<Recovery> JobRecord::on_resumed(const Resumed& resumed) {
  if (pending_ && resumed.generation <= pending_->first.generation) return std::nullopt;  // of the group that broke
  // A group with nothing left to train commits no step; then the time of the sync counts.
  const int64_t committed_ns = std::max(resumed.committed_ns, resumed.synced_ns);
  const TimePoint committed = at_ns(committed_ns);
  has_committed_ = has_committed_ || resumed.step > resumed.resumed_step;
  last_committed_ns_ = std::max(last_committed_ns_, committed_ns);
  last_step_ = resumed.step;
  first_commit_ = Commit{.step = resumed.step, .at = committed};
  goodput_.on_resume(resumed.resumed_step, at_ns(resumed.synced_ns));
  goodput_.on_commit(resumed.step, committed);
  if (!pending_) return std::nullopt;
  const Pending pending = *pending_;
  pending_.reset();
  Recovery recovery{
      .cause = pending.first.cause,
      .rank = pending.first.rank,
      .detection_seconds = pending.first.detection_seconds,
      .sync_seconds = seconds_between_ns(resumed.formed_ns, resumed.synced_ns),
      .total_seconds = std::max(0.0, pending.first.detection_seconds) + seconds_between(pending.first.at, committed),
      .redone_steps = redone_steps(pending, resumed.resumed_step),
      .lost_seconds = lost_seconds(pending, resumed.resumed_step),
      .step = resumed.step,
      .origin = resumed.origin,
      .generation = resumed.generation,
      .time_unix_seconds = pending.unix_seconds,
      .broken_ns = pending.first.at.time_since_epoch().count(),
      .committed_ns = committed_ns};
  if (pending.placed) {
    recovery.world_size = pending.placed->world_size;
    recovery.respawn_seconds = seconds_between(pending.first.at, pending.placed->at);
    recovery.forming_seconds = seconds_between(pending.placed->at, at_ns(resumed.formed_ns));
  }
  remember(recovery);
  if (pending.again && pending.again->generation >= resumed.generation) {
    on_break(*pending.again, pending.again_unix_seconds);
  }
  return recovery;
}

double JobRecord::lost_seconds(const Pending& pending, int64_t resumed_step) {
  const int64_t again = std::max<int64_t>(0, pending.committed_step - resumed_step);
  if (again == 0) return pending.in_flight_seconds;
  if (pending.step_seconds < 0) return -1.0;
  return pending.in_flight_seconds + static_cast<double>(again) * pending.step_seconds;
}

// Goodput counts each of these when it is committed again; this is known as soon as the group goes on. A lost rank may
// have committed the step that was still in flight on the ranks that go on: that is one step, not two.
int64_t JobRecord::redone_steps(const Pending& pending, int64_t resumed_step) {
  const int64_t again = std::max<int64_t>(0, pending.committed_step - resumed_step);
  if (!pending.step_in_flight) return again;
  return again == 1 ? 1 : again + 1;
}

void JobRecord::remember(const Recovery& recovery) {
  ++recoveries_total_;
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
  GoodputStatus status{.ratio = goodput_.ratio(now), .parts = {}};
  for (const auto& [key, seconds] : goodput_.seconds(now)) {
    status.parts.push_back(GoodputPart{.kind = to_string(key.first), .cause = key.second, .seconds = seconds});
  }
  return status;
}

bool JobRecord::may_learn_cause(TimePoint now) const {
  if (!pending_) return false;
  const GroupBreak& newest = newest_break();
  const bool is_placed = pending_->placed && pending_->placed->generation > newest.generation;
  return is_peer_lost(newest.cause) && !is_placed && now < newest.at + cause_timeout_;
}

std::vector<GoodputPart> JobRecord::goodput_counters(TimePoint now) {
  std::vector<GoodputPart> parts = goodput(now).parts;
  if (may_learn_cause(now)) {
    std::erase_if(parts, [&](const GoodputPart& part) {
      return is_peer_lost(part.cause) && !counted_.contains({part.kind, part.cause});
    });
    for (GoodputPart& part : parts) {
      if (is_peer_lost(part.cause)) part.seconds = 0.0;  // below, the counter then keeps its earlier value
    }
  } else if (pending_) {
    pending_->is_published = true;
  }
  for (GoodputPart& part : parts) {
    double& counted = counted_[{part.kind, part.cause}];
    counted = part.seconds = std::max(counted, part.seconds);
  }
  return parts;
}

std::string JobRecord::goodput_line(TimePoint now) const {
  const GoodputStatus status = goodput(now);
  std::string text = "  goodput   " + fixed(status.ratio * 100, 1) + " % of " + fixed(seconds_between(start_, now), 1) +
                     " s: work " + fixed(seconds_of(status, "work"), 1) + " s";
  if (const std::string waiting = describe_kind(status, "waiting"); !waiting.empty()) text += ", " + waiting;
  if (const double redone = seconds_of(status, "redone"); redone > 0 || redone_steps() > 0) {
    text += ", redone " + fixed(redone, 1) + " s (" + plural(redone_steps(), "step") + ")";
  }
  return text;
}

std::string short_time(double seconds) {
  if (seconds < 0.1) return fixed(seconds * 1000, 0) + " ms";
  return fixed(seconds, seconds < 10 ? 2 : 1) + " s";
}

std::string describe(const Recovery& recovery) {
  std::string parts;
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
