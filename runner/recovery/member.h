// Member: a node's side of the membership protocol. Pure. (docs/recovery.md)
//
// Role: knows which coordinator this node follows, what was reported to it, and in which group the node's workers are.
// Its counterpart is the coordinator; the supervisor of the same node owns the workers. What the node has to report
// outlives a connection: it is sent again to the next coordinator.
//
// The first event is MemberTick. The member follows no coordinator of an older attempt than the newest that it has
// seen, and it accepts only an assignment that is newer than all before, and only while all workers wait. So messages
// that an old coordinator or an old connection still delivers change nothing.
// Duties of the caller: CoordinatorSaid is fed only for messages on the connection of the last CoordinatorFound, never
// after a Seek or a CoordinatorLost. Heartbeat, StoreCall and StoreAnswerTo pass between the workers and the connection
// without the member, which must only learn that a message has arrived (a CoordinatorSaid of any kind). Store calls are
// made only while joined. Every Tell that precedes EndJob must still be sent.
// Threads: none. Time is an argument; the caller sends MemberTick at `deadline`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/base/clock.h"
#include "runner/contract/coordination.h"
#include "runner/recovery/commit.h"
#include "runner/recovery/supervisor.h"

namespace lockstep {

struct MemberOptions {
  int nproc = 1;
  std::chrono::milliseconds rendezvous_timeout{300'000};  // without a coordinator for this long: the node ends with 10
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
};
// Most breaks that are remembered. More than one is needed only when groups in a row end without a commit.
inline constexpr size_t kBreaksKept = 32;
// A node that gave up ends after this many heartbeat timeouts without a coordinator, because its exit code tells the
// same. (A node that is done waits for rendezvous_timeout: without its report the others would train on.)
inline constexpr int kLastWordsTimeouts = 2;

// ---- events ----

// A coordinator has welcomed this node on a connection that the caller keeps. The member joins it or looks for another
// one.
struct CoordinatorFound {
  Welcome welcome;
  std::optional<Commit> commit;  // the newest of a worker of this node
};
struct CoordinatorLost {
  std::string why;
};
struct CoordinatorRefused {
  Refused refused;
};
struct CoordinatorSaid {
  CoordinatorMessage message;  // neither Welcome nor Refused
};
// Why no coordinator was found so far; for the message with which the node may end.
struct SeekProblem {
  std::string text;
};
struct MemberTick {};
// WorkersReady to NodeFailed come from the supervisor, CheckpointNews for a checkpoint that this node's workers wrote.
using MemberEvent = std::variant<CoordinatorFound, CoordinatorLost, CoordinatorRefused, CoordinatorSaid, SeekProblem,
                                 MemberTick, WorkersReady, Broken, Leave, NodeDone, NodeFailed, CheckpointNews>;

// ---- outputs ----

struct Tell {  // on the connection to the coordinator
  MemberMessage message;
};
// Drop the connection, if any, and look for a coordinator: resolve again, try all addresses, take the one with the
// highest generation. Goes on until CoordinatorFound.
struct Seek {};
struct MemberNote {  // a warning for the log
  std::string text;
};
// Assignment to EndJob go to the supervisor. The member passes on what the coordinator has sent, if it is about the
// workers' group, or decides by itself when there is no coordinator. EndJob is the last output.
using MemberOutput =
    std::variant<Tell, Seek, MemberNote, Assignment, CutGroup, Regroup, StopJob, KillWorker, CheckpointNews, EndJob>;

// ---- state ----

struct MemberState {
  MemberOptions options;
  bool joined = false;   // Join was sent to a coordinator, whose connection has not ended
  uint64_t highest = 0;  // highest generation that was seen, of any coordinator
  uint64_t placed = 0;   // generation of the workers' group, until all have left it; 0 = none
  TimePoint placed_at{};
  // How the newest groups ended that the workers were in, oldest first.
  struct Break {
    uint64_t generation = 0;
    TimePoint placed_at;
    TimePoint at;
    double silent_seconds = -1.0;  // how long the coordinator was silent before it was given up
    bool step_in_flight = true;    // false: all left together at a step's end
  };
  std::vector<Break> breaks;
  bool ready = false;
  std::string terms;  // of the workers when they were ready last
  int leaving_code = 0;
  bool stopping = false;  // the workers were told to stop or to leave for good
  bool done = false;
  bool ended = false;
  std::optional<NodeFailed> failed;          // sent again on the next connection
  std::optional<int64_t> untold_checkpoint;  // became durable without a coordinator
  bool started = false;
  TimePoint last_event{};
  TimePoint last_heard{};
  std::optional<TimePoint> seeking_since;  // nothing was heard from a coordinator since
  std::optional<TimePoint> deadline;       // when a Tick is wanted
  std::string last_problem;                // why the newest search for a coordinator failed
  std::string last_refusal;                // by a coordinator, or of one by this node; noted already

  explicit MemberState(const MemberOptions& member_options) : options(member_options) {}
};

std::vector<MemberOutput> step(MemberState& state, const MemberEvent& event, TimePoint now);

}  // namespace lockstep
