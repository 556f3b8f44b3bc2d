// Leader: which one of several replicas acts, decided by one coordination.k8s.io/v1 Lease. Pure.
//
// As client-go's leaderelection, in three durations: a leader renews every `retry_period`; it steps down when its last
// renewal is `renew_deadline` old; another one takes over when it has seen no change for `lease_duration`. So there is
// always lease_duration − renew_deadline between one leader's end and the next one's beginning, in which writes of the
// old one that are still under way can end.
//
// The times in the record are informative only. Each process measures with its own steady clock: its renewal counts
// from just before the request was sent, another process's change from just after it was seen. Both make a process wait
// longer rather than shorter, so the clocks may show any times (but none may run 1.5 times as fast as another). Every
// write carries the resourceVersion that the decision was made from: of two candidates one gets a conflict, and so does
// a process that was stopped (SIGSTOP, a paused machine) with its request half sent.
// Threads: none. Time is an argument; one request is under way at most; the caller sends LeaderTimer at WaitUntil's
// time (a later WaitUntil replaces it), also while a request is under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/control/clock.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::control {

struct LeaderOptions {
  std::string identity;  // of this process; no other one may have it ("host_uuid")
  api::ObjectKey lease;
  std::chrono::milliseconds lease_duration{15'000};  // whole seconds, as the API has it
  std::chrono::milliseconds renew_deadline{10'000};
  std::chrono::milliseconds retry_period{2'000};
  double retry_jitter = 1.2;  // a candidate waits up to this fraction longer between two reads
};
// lease_duration > renew_deadline > retry_period · (1 + retry_jitter), lease_duration is whole seconds, retry_period is
// above zero, and no name is empty.
bool is_valid(const LeaderOptions& options);

// ---- the record ----

struct LeaseRecord {
  std::string holder;  // empty: released
  int64_t duration_seconds = 0;
  std::string acquire_time;  // as written, never compared in order
  std::string renew_time;
  int64_t transitions = 0;
  bool operator==(const LeaseRecord&) const = default;
};
// From a Lease's spec; what is missing or has another type is empty or 0.
LeaseRecord lease_record(const Json& lease);
// The lease with the record in its spec, all else as it was. `lease` may be null: a new one.
Json with_record(const Json& lease, const api::ObjectKey& key, const LeaseRecord& record);
// metav1.MicroTime: "2026-11-21T10:00:00.000123Z".
std::string format_micro_time(std::chrono::microseconds since_epoch);

// ---- events ----

struct ElectionStarted {};  // the first event, once
struct LeaseRead {
  Json lease;  // null: there is none
};
struct LeaseReadFailed {
  Error error;
};
struct LeaseWritten {
  Json lease;  // as stored
};
struct LeaseWriteFailed {
  Error error;
};
struct LeaderTimer {};
struct ElectionStopRequested {};
using LeaderEvent = std::variant<ElectionStarted, LeaseRead, LeaseReadFailed, LeaseWritten, LeaseWriteFailed,
                                 LeaderTimer, ElectionStopRequested>;

// ---- outputs ----

struct ReadLease {};
struct CreateLease {
  Json lease;
};
struct UpdateLease {  // with the resourceVersion that it was read with
  Json lease;
};
struct BeginLeading {};
struct EndLeading {
  std::string why;  // a sentence
};
struct LeaderSeen {  // the holder has changed; empty: nobody
  std::string identity;
};
struct ElectionProblem {
  std::string line;
};
struct ElectionFinished {};  // the last output of all
using LeaderOutput = std::variant<ReadLease, CreateLease, UpdateLease, WaitUntil, BeginLeading, EndLeading, LeaderSeen,
                                  ElectionProblem, ElectionFinished>;

// ---- state ----

struct LeaderTime {
  Clock::time_point now;             // every decision uses this clock
  std::chrono::microseconds wall{};  // since 1970; only written into the record
};

enum class LeaseRequest { kNone, kRead, kWrite, kRelease };

struct LeaderState {
  LeaderOptions options;
  Random random;
  bool started = false;
  bool stopping = false;
  bool finished = false;
  bool leading = false;
  LeaseRequest request = LeaseRequest::kNone;  // under way
  Clock::time_point request_began;
  Json lease;                       // as last read or written; null: none
  std::optional<LeaseRecord> seen;  // the newest record, first seen at `seen_since`
  Clock::time_point seen_since;
  bool must_read = true;              // `lease` may differ from what the server has
  bool read_to_release = false;       // while stopping: the lease was read once more, to release it
  Clock::time_point leading_until;    // while leading: the leadership ends then unless it is renewed
  Clock::time_point next_try;         // when no request is under way
  std::optional<std::string> leader;  // as last reported with LeaderSeen

  LeaderState(LeaderOptions leader_options, Random jitter)
      : options(std::move(leader_options)), random(std::move(jitter)) {}
};

std::vector<LeaderOutput> step(LeaderState& state, const LeaderEvent& event, const LeaderTime& time);

}  // namespace lockstep::control
