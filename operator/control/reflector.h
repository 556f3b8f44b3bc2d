// Reflector: when to list, from where to watch, what to tell the cache, how long to wait. Pure.
//
//   listing → watching → (ends) → watching from the last version, or listing anew
//
// A list is a quorum read of everything; the watch goes on from its version, and every event and bookmark moves that
// version. A watch that ended well is resumed at once. One that ended because its version is too old (kGone), or that
// brought what cannot be read (kCorrupt), is followed by a list. Repeated failures, and watches that end as soon as
// they begin, wait longer each time: 0.8 s, doubling, to 30 s, with jitter, as client-go's reflector does. A watch that
// lived for kHealthyWatch, or ended well after bringing something, resets the count of failures.
// Threads: none. Time is an argument; the caller sends ReflectorTimer when WaitUntil's time has come, and carries out
// the outputs in their order.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "operator/control/backoff.h"
#include "operator/kube/client.h"
#include "runner/base/result.h"

namespace lockstep::control {

inline constexpr std::chrono::seconds kHealthyWatch{1};
inline constexpr BackoffPolicy kReflectorBackoff{
    .first = std::chrono::milliseconds(800), .max = std::chrono::seconds(30), .jitter = 1.0};
// After this many failures in a row to resume a watch, the reflector lists again instead: a server that was restored
// from a backup refuses the watch's version for ever ("Too large resource version").
inline constexpr int kWatchFailuresMax = 8;

// ---- events ----

struct ReflectorStarted {};  // the first event, once
struct Listed {
  std::string version;
};
struct ListFailed {
  Error error;
};
struct WatchBrought {
  kube::WatchEvent event;
};
struct WatchEnded {
  Status status;
};
struct ReflectorTimer {};
using ReflectorEvent = std::variant<ReflectorStarted, Listed, ListFailed, WatchBrought, WatchEnded, ReflectorTimer>;

// ---- outputs ----

struct ListAll {};
struct WatchFrom {
  std::string version;
};
struct ReplaceCache {  // by what was listed
  std::string version;
};
struct PutIntoCache {
  Json object;
};
struct EraseFromCache {
  Json object;
};
struct AdvanceCache {
  std::string version;
};
// ReflectorProblem::reason when the server does not have the kind, or no longer has it.
inline constexpr std::string_view kNotServed = "NotServed";
struct ReflectorProblem {
  std::string reason;  // CamelCase: "ListFailed", "WatchFailed", kNotServed, "Gone", "Corrupt", "WatchTooShort"
  std::string line;    // what went wrong; the same each time that it goes wrong in the same way
  std::string next;    // what the reflector does next: "listing again in 37.4 s"
};
using ReflectorOutput = std::variant<ListAll, WatchFrom, ReplaceCache, PutIntoCache, EraseFromCache, AdvanceCache,
                                     WaitUntil, ReflectorProblem>;

// ---- state ----

enum class ReflectorPhase { kNew, kListing, kWatching, kWaitingToList, kWaitingToWatch, kStopped };

struct ReflectorState {
  Random random;  // jitter
  ReflectorPhase phase = ReflectorPhase::kNew;
  std::string version;  // the watch goes on after it
  int failures = 0;     // in a row
  Clock::time_point watching_since;
  bool watch_brought = false;    // an event that was no bookmark
  Clock::time_point wait_until;  // while waiting

  explicit ReflectorState(Random jitter) : random(std::move(jitter)) {}
};

// kCancelled in ListFailed or WatchEnded ends everything: no outputs.
std::vector<ReflectorOutput> step(ReflectorState& state, ReflectorEvent event, Clock::time_point now);

}  // namespace lockstep::control
