#include "operator/control/leader.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "operator/kube/resource.h"
#include "runner/base/check.h"

namespace lockstep::control {

namespace {

using LeaderOutputs = std::vector<LeaderOutput>;

// A longer lease duration in another process's record is ignored; ours is used in its place.
constexpr std::chrono::seconds kForeignDurationMax{3600};

void see(LeaderState& state, const Json& lease, Clock::time_point now, LeaderOutputs& outputs) {
  state.lease = lease;
  state.must_read = false;
  // Somebody deleted the Lease. Its holder may not know yet: the record that it wrote last still counts.
  if (lease.is_null() && state.seen) return;
  const LeaseRecord record = lease_record(lease);
  // Only a change of the record shows that its holder is alive; others may add labels to the Lease.
  if (!state.seen || *state.seen != record) {
    state.seen = record;
    state.seen_since = now;
  }
  if (state.leader != record.holder) {
    state.leader = record.holder;
    outputs.emplace_back(LeaderSeen{record.holder});
  }
}

bool may_take(const LeaderState& state, Clock::time_point now) {
  if (state.seen->holder.empty() || state.seen->holder == state.options.identity) return true;
  Clock::duration patience = state.options.lease_duration;
  const std::chrono::seconds foreign(state.seen->duration_seconds);
  if (foreign <= kForeignDurationMax) patience = std::max<Clock::duration>(patience, foreign);
  return now - state.seen_since >= patience;
}

void end_leading(LeaderState& state, std::string why, LeaderOutputs& outputs) {
  if (!state.leading) return;
  state.leading = false;
  outputs.emplace_back(EndLeading{std::move(why)});
}

void read(LeaderState& state, Clock::time_point now, LeaderOutputs& outputs) {
  state.request = LeaseRequest::kRead;
  state.request_began = now;
  outputs.emplace_back(ReadLease{});
}

// Takes or renews the lease.
void write(LeaderState& state, const LeaderTime& time, LeaderOutputs& outputs) {
  LeaseRecord record = *state.seen;
  record.renew_time = format_micro_time(time.wall);
  // Not leading: a new acquire time, even if the record is ours (renewed too late, or from an earlier run).
  if (!state.leading) {
    record.acquire_time = record.renew_time;
    if (!state.lease.is_null() && record.holder != state.options.identity) ++record.transitions;
  }
  record.holder = state.options.identity;
  record.duration_seconds = std::chrono::duration_cast<std::chrono::seconds>(state.options.lease_duration).count();

  state.request = LeaseRequest::kWrite;
  state.request_began = time.now;
  Json lease = with_record(state.lease, state.options.lease, record);
  if (state.lease.is_null()) {
    outputs.emplace_back(CreateLease{std::move(lease)});
  } else {
    outputs.emplace_back(UpdateLease{std::move(lease)});
  }
}

// Gives the lease back, so that no candidate has to wait until it expires.
void release(LeaderState& state, const LeaderTime& time, LeaderOutputs& outputs) {
  LeaseRecord record = *state.seen;
  record.holder.clear();
  record.duration_seconds = 1;  // the least that the API accepts
  record.renew_time = format_micro_time(time.wall);
  state.request = LeaseRequest::kRelease;
  state.request_began = time.now;
  outputs.emplace_back(UpdateLease{with_record(state.lease, state.options.lease, record)});
}

void finish(LeaderState& state, LeaderOutputs& outputs) {
  state.finished = true;
  outputs.emplace_back(ElectionFinished{});
}

// What to do when no request is under way.
void decide(LeaderState& state, const LeaderTime& time, LeaderOutputs& outputs) {
  if (state.stopping) {
    const bool ours = state.seen && state.seen->holder == state.options.identity && !state.lease.is_null();
    if (ours && !state.must_read) {
      release(state, time, outputs);
    } else if (ours && !std::exchange(state.read_to_release, true)) {
      read(state, time.now, outputs);
    } else {
      finish(state, outputs);
    }
  } else if (time.now < state.next_try) {
    return;
  } else if (state.leading && !state.must_read) {
    write(state, time, outputs);
  } else {
    // A candidate reads the lease before each decision.
    read(state, time.now, outputs);
  }
}

void try_later(LeaderState& state, const LeaderTime& time) {
  const double jitter = state.leading ? 0.0 : state.options.retry_jitter * state.random();
  state.next_try = time.now + std::chrono::duration_cast<Clock::duration>(state.options.retry_period * (1.0 + jitter));
}

void on_read(LeaderState& state, const Json& lease, const LeaderTime& time, LeaderOutputs& outputs) {
  see(state, lease, time.now, outputs);
  const bool others = !lease.is_null() && !state.seen->holder.empty() && state.seen->holder != state.options.identity;
  if (state.leading && others) end_leading(state, "the lease is held by " + state.seen->holder, outputs);
  if (!state.stopping && may_take(state, time.now)) {
    write(state, time, outputs);
  } else {
    try_later(state, time);
  }
}

void on_written(LeaderState& state, const LeaseWritten& written, const LeaderTime& time, LeaderOutputs& outputs) {
  const Clock::time_point until = state.request_began + state.options.renew_deadline;
  see(state, written.lease, time.now, outputs);
  try_later(state, time);
  if (state.stopping) return;
  if (time.now >= until) {
    // The answer came after the renew deadline (a leadership has ended, see `step`): another process may hold the
    // lease.
    state.must_read = true;
    return;
  }
  state.leading_until = until;
  if (!state.leading) {
    state.leading = true;
    outputs.emplace_back(BeginLeading{});
  }
}

void on_failed(LeaderState& state, const Error& error, const char* what, const LeaderTime& time,
               LeaderOutputs& outputs) {
  // A write that failed may have been stored all the same: the lease is read before the next one.
  state.must_read = true;
  const bool lost_race = error.code == ErrorCode::kConflict || error.code == ErrorCode::kExists;
  if (!lost_race || state.leading) {
    std::string line = "the lease ";
    line.append(to_string(state.options.lease)).append(" could not be ").append(what).append(": ");
    outputs.emplace_back(ElectionProblem{line.append(error.message)});
  }
  if (lost_race && state.leading) {
    state.next_try = time.now;  // somebody else wrote it: read it at once
  } else {
    try_later(state, time);
  }
}

void on_answer(LeaderState& state, const LeaderEvent& event, const LeaderTime& time, LeaderOutputs& outputs) {
  const LeaseRequest was = std::exchange(state.request, LeaseRequest::kNone);
  LOCKSTEP_CHECK(was != LeaseRequest::kNone, "an answer follows a request");
  if (const auto* answer = std::get_if<LeaseRead>(&event)) on_read(state, answer->lease, time, outputs);
  if (const auto* answer = std::get_if<LeaseWritten>(&event)) on_written(state, *answer, time, outputs);
  if (const auto* answer = std::get_if<LeaseReadFailed>(&event)) on_failed(state, answer->error, "read", time, outputs);
  if (const auto* answer = std::get_if<LeaseWriteFailed>(&event)) {
    on_failed(state, answer->error, was == LeaseRequest::kRelease ? "released" : "written", time, outputs);
  }
}

}  // namespace

bool is_valid(const LeaderOptions& options) {
  const bool has_names = !options.identity.empty() && !options.lease.name.empty() && !options.lease.ns.empty();
  const std::chrono::duration<double> slowest_retry =
      std::chrono::duration<double>(options.retry_period) * (1.0 + options.retry_jitter);
  return has_names && options.lease_duration > options.renew_deadline &&
         std::chrono::duration<double>(options.renew_deadline) > slowest_retry && options.retry_period.count() > 0 &&
         options.lease_duration % std::chrono::seconds(1) == std::chrono::milliseconds(0);
}

LeaseRecord lease_record(const Json& lease) {
  return {.holder = text_field(lease, {"spec", "holderIdentity"}),
          .duration_seconds = number_field(lease, {"spec", "leaseDurationSeconds"}).value_or(0),
          .acquire_time = text_field(lease, {"spec", "acquireTime"}),
          .renew_time = text_field(lease, {"spec", "renewTime"}),
          .transitions = number_field(lease, {"spec", "leaseTransitions"}).value_or(0)};
}

Json with_record(const Json& lease, const api::ObjectKey& key, const LeaseRecord& record) {
  Json result = lease;
  if (!result.is_object()) {
    result = {{"apiVersion", kube::kLeases.api_version()},
              {"kind", kube::kLeases.kind},
              {"metadata", {{"namespace", key.ns}, {"name", key.name}}}};
  }
  Json& spec = result["spec"];
  if (!spec.is_object()) spec = Json::object();
  spec["holderIdentity"] = record.holder;
  spec["leaseDurationSeconds"] = record.duration_seconds;
  if (!record.acquire_time.empty()) spec["acquireTime"] = record.acquire_time;
  spec["renewTime"] = record.renew_time;
  spec["leaseTransitions"] = record.transitions;
  return result;
}

std::string format_micro_time(std::chrono::microseconds since_epoch) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  std::string text = api::format_time(seconds.count());
  LOCKSTEP_CHECK(!text.empty() && text.back() == 'Z', "times are written in UTC");
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, ".%06dZ", static_cast<int>((since_epoch - seconds).count()));
  text.pop_back();
  return text.append(fraction);
}

std::vector<LeaderOutput> step(LeaderState& state, const LeaderEvent& event, const LeaderTime& time) {
  LeaderOutputs outputs;
  if (state.finished) return outputs;
  // Before anything else: a leadership that was not renewed in time ends, whatever the event is.
  if (state.leading && time.now >= state.leading_until) {
    end_leading(state, "the lease was not renewed in time", outputs);
    state.must_read = true;
  }
  if (std::holds_alternative<ElectionStarted>(event)) {
    LOCKSTEP_CHECK(!state.started, "an election starts once");
    state.started = true;
    state.next_try = time.now;
  } else if (std::holds_alternative<ElectionStopRequested>(event)) {
    state.stopping = true;
    end_leading(state, "this process stops", outputs);
  } else if (!std::holds_alternative<LeaderTimer>(event)) {
    const LeaseRequest answered = state.request;
    on_answer(state, event, time, outputs);
    if (answered == LeaseRequest::kRelease) {
      finish(state, outputs);
      return outputs;
    }
  }
  if (state.request == LeaseRequest::kNone) decide(state, time, outputs);
  if (state.finished) return outputs;

  // While a request is under way only the end of the leadership needs the timer.
  std::optional<Clock::time_point> wake;
  if (state.request == LeaseRequest::kNone) wake = state.next_try;
  if (state.leading) wake = wake ? std::min(*wake, state.leading_until) : state.leading_until;
  if (wake) outputs.emplace_back(WaitUntil{*wake});
  return outputs;
}

}  // namespace lockstep::control
