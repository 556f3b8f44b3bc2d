#include "operator/control/reflector.h"

#include <cstdio>
#include <utility>

#include "operator/control/resource_version.h"
#include "runner/base/check.h"

namespace lockstep::control {

namespace {

using ReflectorOutputs = std::vector<ReflectorOutput>;

std::string seconds_text(Clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

std::string reason_of(const Error& error, const char* otherwise) {
  return error.code == ErrorCode::kNotFound ? std::string(kNotServed) : otherwise;
}

void list(ReflectorState& state, ReflectorOutputs& outputs) {
  state.phase = ReflectorPhase::kListing;
  outputs.emplace_back(ListAll{});
}

void watch(ReflectorState& state, Clock::time_point now, ReflectorOutputs& outputs) {
  state.phase = ReflectorPhase::kWatching;
  state.watching_since = now;
  state.watch_brought = false;
  outputs.emplace_back(WatchFrom{state.version});
}

// Counts one more failure, and lists or watches again after a wait; `problem` says what failed.
void wait(ReflectorState& state, bool then_list, ReflectorProblem problem, Clock::time_point now,
          ReflectorOutputs& outputs) {
  const Clock::duration delay = backoff_delay(kReflectorBackoff, ++state.failures, state.random());
  state.phase = then_list ? ReflectorPhase::kWaitingToList : ReflectorPhase::kWaitingToWatch;
  state.wait_until = now + delay;
  problem.next = (then_list ? "listing again in " : "watching again in ") + seconds_text(delay);
  outputs.emplace_back(std::move(problem));
  outputs.emplace_back(WaitUntil{state.wait_until});
}

// The same, but after the first failure in a row without a wait.
void at_once_or_wait(ReflectorState& state, bool then_list, ReflectorProblem problem, Clock::time_point now,
                     ReflectorOutputs& outputs) {
  if (state.failures > 0) {
    wait(state, then_list, std::move(problem), now, outputs);
    return;
  }
  state.failures = 1;
  if (then_list) {
    problem.next = "listing again";
    outputs.emplace_back(std::move(problem));
    list(state, outputs);
  } else {
    problem.next = "watching again";
    outputs.emplace_back(std::move(problem));
    watch(state, now, outputs);
  }
}

ReflectorOutputs on_listed(ReflectorState& state, const Listed& listed, Clock::time_point now) {
  LOCKSTEP_CHECK(state.phase == ReflectorPhase::kListing, "a list arrives while listing");
  // The count of failures stays: while every list succeeds and every watch fails, the lists must still back off.
  state.version = listed.version;
  ReflectorOutputs outputs;
  outputs.emplace_back(ReplaceCache{listed.version});
  watch(state, now, outputs);
  return outputs;
}

ReflectorOutputs on_list_failed(ReflectorState& state, const ListFailed& failed, Clock::time_point now) {
  LOCKSTEP_CHECK(state.phase == ReflectorPhase::kListing, "a list fails while listing");
  ReflectorOutputs outputs;
  if (failed.error.code == ErrorCode::kCancelled) {
    state.phase = ReflectorPhase::kStopped;
  } else {
    wait(state, true, {reason_of(failed.error, "ListFailed"), "the list failed: " + failed.error.message}, now,
         outputs);
  }
  return outputs;
}

ReflectorOutputs on_brought(ReflectorState& state, WatchBrought brought) {
  LOCKSTEP_CHECK(state.phase == ReflectorPhase::kWatching, "events arrive while watching");
  const std::string version = api::meta_of(brought.event.object).resource_version;
  const std::optional<uint64_t> was = version_number(state.version);
  const std::optional<uint64_t> is = version_number(version);
  const bool older = was && is && *is < *was;
  if (!version.empty() && !older) state.version = version;
  ReflectorOutputs outputs;  // not from an initializer list, which would copy the object
  switch (brought.event.type) {
    case kube::WatchEvent::Type::kBookmark:
      outputs.emplace_back(AdvanceCache{version});
      return outputs;
    case kube::WatchEvent::Type::kDeleted:
      outputs.emplace_back(EraseFromCache{std::move(brought.event.object)});
      break;
    case kube::WatchEvent::Type::kAdded:
    case kube::WatchEvent::Type::kModified:
      outputs.emplace_back(PutIntoCache{std::move(brought.event.object)});
      break;
  }
  state.watch_brought = true;
  return outputs;
}

ReflectorOutputs on_watch_ended(ReflectorState& state, const Status& status, Clock::time_point now) {
  LOCKSTEP_CHECK(state.phase == ReflectorPhase::kWatching, "a watch ends while watching");
  ReflectorOutputs outputs;
  const bool lived = now - state.watching_since >= kHealthyWatch;
  if (lived || (status.ok() && state.watch_brought)) state.failures = 0;
  if (status.ok()) {
    if (lived || state.watch_brought) {
      watch(state, now, outputs);
    } else {
      at_once_or_wait(state, false, {"WatchTooShort", "the watch ended as soon as it began and brought nothing"}, now,
                      outputs);
    }
    return outputs;
  }
  const Error& error = status.error();
  switch (error.code) {
    case ErrorCode::kCancelled:
      state.phase = ReflectorPhase::kStopped;
      return outputs;
    case ErrorCode::kGone:
      at_once_or_wait(state, true, {"Gone", "version " + state.version + " is too old to go on from"}, now, outputs);
      return outputs;
    case ErrorCode::kCorrupt:
      at_once_or_wait(state, true, {"Corrupt", "the watch brought what cannot be read: " + error.message}, now,
                      outputs);
      return outputs;
    case ErrorCode::kRetry:
    case ErrorCode::kUnavailable: {
      const bool list_again = state.failures >= kWatchFailuresMax;
      wait(state, list_again, {"WatchFailed", "the watch failed: " + error.message}, now, outputs);
      return outputs;
    }
    default:
      // Forbidden, not found, invalid: a list says clearly what is wrong, and needs the same rights.
      wait(state, true, {reason_of(error, "WatchFailed"), "the watch failed: " + error.message}, now, outputs);
      return outputs;
  }
}

ReflectorOutputs on_timer(ReflectorState& state, Clock::time_point now) {
  const bool waiting = state.phase == ReflectorPhase::kWaitingToList || state.phase == ReflectorPhase::kWaitingToWatch;
  LOCKSTEP_CHECK(waiting, "a timer rings while waiting");
  ReflectorOutputs outputs;
  if (now < state.wait_until) {
    outputs.emplace_back(WaitUntil{state.wait_until});
  } else if (state.phase == ReflectorPhase::kWaitingToList) {
    list(state, outputs);
  } else {
    watch(state, now, outputs);
  }
  return outputs;
}

}  // namespace

std::vector<ReflectorOutput> step(ReflectorState& state, ReflectorEvent event, Clock::time_point now) {
  if (auto* listed = std::get_if<Listed>(&event)) return on_listed(state, *listed, now);
  if (auto* failed = std::get_if<ListFailed>(&event)) return on_list_failed(state, *failed, now);
  if (auto* brought = std::get_if<WatchBrought>(&event)) return on_brought(state, std::move(*brought));
  if (auto* ended = std::get_if<WatchEnded>(&event)) return on_watch_ended(state, ended->status, now);
  if (std::holds_alternative<ReflectorTimer>(event)) return on_timer(state, now);
  LOCKSTEP_CHECK(state.phase == ReflectorPhase::kNew, "a reflector starts once");
  ReflectorOutputs outputs;
  list(state, outputs);
  return outputs;
}

}  // namespace lockstep::control
