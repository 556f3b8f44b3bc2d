// Messages between a node's agent and the coordinator: what each line on their TCP connection holds. Pure.
//
// Transport: TCP to the coordinator's port, one JSON object per line as on the worker's link (messages.h). Node 0's
// own agent talks to the coordinator in the same process with the same messages.
//
// Order: an agent that does not know which node it is first sends a Greet with kAnyNode on a connection of its own, and
// gets a NodeNumber or Refused. Then the agent sends Greet; the coordinator answers Welcome or Refused. The agent
// chooses one coordinator (it may have reached an old one, too) and sends Join to it; all other messages follow. Both
// sides send a beat every kBeatInterval; a side that receives nothing for the heartbeat timeout gives the connection
// up. When a connection ends, the node (or the coordinator) counts as lost; an agent that is still alive joins again on
// a new connection. Threads: values and pure functions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runner/base/result.h"
#include "runner/contract/messages.h"
#include "runner/contract/phase.h"

namespace lockstep {

// Raised when old and new agents would misunderstand each other; a coordinator refuses agents with another number.
inline constexpr int kCoordinationProtocol = 9;
inline constexpr std::chrono::milliseconds kBeatInterval{1000};
inline constexpr std::chrono::milliseconds kHeartbeatTimeout{5000};
// A state machine that has had no event and no Tick for this long concludes that its own process did not run, because
// Ticks come every kBeatInterval.
inline constexpr std::chrono::milliseconds kAsleepMin = 2 * kBeatInterval;
// Longest time from the meeting of all ranks to the last connection of their group. The death of a peer in between may
// be noticed only when it is over, because a rank that waits for a connection has no socket yet that could be shut
// down. So an agent gives workers that were told to leave a group more time than this (kCutGrace).
inline constexpr std::chrono::seconds kFormingTimeout{10};
// Beyond 2,000 ranks the store and the connections of a rank take longer. (kCutGrace does not grow with it: a rank that
// hangs while such a group forms is killed a few seconds before it would have given up.)
constexpr std::chrono::milliseconds forming_timeout(int world_size) {
  return std::max<std::chrono::milliseconds>(kFormingTimeout, world_size * std::chrono::milliseconds{5});
}
// Longest line before the Welcome; and between Welcome and Join, when the peer has shown the job's token. (A Join holds
// the terms, and what each worker holds.)
inline constexpr size_t kGreetingBytesMax = 4096;
inline constexpr size_t kJoinBytesMax = size_t{384} << 10;

// ---- agent -> coordinator ----

inline constexpr int kAnyNode = -1;
struct Greet {
  int protocol = kCoordinationProtocol;
  std::string job;
  std::string token;
  int node_rank = 0;         // kAnyNode: asks for a number
  uint32_t attempt = 0;      // of this node's agent: LOCKSTEP_POD_ATTEMPT, else its start time
  uint64_t incarnation = 0;  // random, one per agent process
  std::string host;          // host name, for messages only
};

// How the newest group ended in which this node's workers committed a step. A coordinator that replaces a lost one
// learns of that group only from this.
struct BrokenBefore {
  double seconds = -1.0;            // since its end; below zero: there was no such group
  double silent_seconds = -1.0;     // that its coordinator had been silent by then; below zero: it was not
  double committed_seconds = -1.0;  // since its newest commit
  uint64_t generation = 0;          // of that group
  int64_t step = 0;                 // of that commit
  bool step_in_flight = true;       // false: all left together at a step's end
};

// The agent has chosen this coordinator. `ready` with `terms` and `claims`, `leaving_code` and `done` as in NodeReady,
// Leave and NodeDone.
struct Join {
  int nproc = 1;
  uint64_t generation = 0;  // the highest that this agent has seen
  bool ready = false;
  int leaving_code = 0;
  bool done = false;
  BrokenBefore broken_before;
  std::string terms;
  std::vector<StateClaim> claims;
};

// All workers of the node are alive and wait for an assignment, or (ready = false) no longer. `generation` is the
// highest that this agent has seen: a message that was sent before an assignment arrived does not count after it.
struct NodeReady {
  bool ready = false;
  uint64_t generation = 0;
  // As Hello's, the same for all workers of the node; empty when they are not ready. A node whose terms differ from
  // those of node 0 is refused.
  std::string terms;
  // What each worker has said that it holds (Left), by local rank. Those that are missing hold nothing.
  std::vector<StateClaim> claims;
};

// The cause of a Broken that answers an assignment which came while a worker was being started again.
inline constexpr const char* kNotReady = "NotReady";

// The group of `generation` cannot go on: a worker of this node ended, or lost a peer.
struct Broken {
  uint64_t generation = 0;
  int rank = -1;                    // whose worker ended; -1 when a peer was lost
  std::string cause;                // CamelCase, as in exit_reason: "SignalKILL", "PeerLost", "TimedOut", …
  std::string message;              // a sentence, for logs and /status
  double detection_seconds = -1.0;  // from the last sign of life of what was lost; below zero: not known
  int exit_code = 0;                // of that rank's worker; 0: not known
};

struct WorkerBeat {
  int local_rank = 0;
  int64_t step = 0;
  Activity activity = Activity::kLoading;
  Phase phase = Phase::kStartup;
  double seconds_unchanged = 0.0;  // since the last sign of progress
  double busy_seconds = 0.0;       // of its own work so far: all phases but waiting, grad_sync, device, start-up,
                                   // validation and checkpoint_stall
  uint64_t generation = 0;
  bool operator==(const WorkerBeat&) const = default;
};
struct Heartbeat {
  std::vector<WorkerBeat> workers;
};

struct StoreCall {
  int local_rank = 0;
  StoreRequest request;
};

// SIGTERM or Ctrl-C has reached this agent: 143 or 130.
struct Leave {
  int code = 143;
};

// All workers of this node ended with 0: training is complete and durable.
struct NodeDone {};

// This node gives up. The coordinator decides by the code, and by what it knows of commits, whether the job ends with
// it (EndJob), or only this node is lost and a new pod may take its place. `ends_job`: as far as this node knows, the
// job ends (wrong flags, no data); so it waits for the coordinator's answer, which is EndJob or Refused.
struct NodeFailed {
  int code = 1;
  std::string message;
  bool ends_job = false;
};

// A restart that this node decided on, or its decision not to restart; node 0's status page shows it.
struct RestartDecision {
  std::string level;         // of restart: "process", "pod", "gang"
  std::string reason;        // CamelCase, as in exit_reason
  std::string line;          // a sentence for logs and /status: what ended how, and what happens next
  bool gives_up = false;     // nothing is started again
  bool is_exported = false;  // the node has a page of its own, with metrics that count it
};

struct CheckpointNews {  // both directions
  int64_t step = 0;
};

using NodeMessage = std::variant<Greet, Join, NodeReady, Broken, Heartbeat, StoreCall, Leave, NodeDone, NodeFailed,
                                 RestartDecision, CheckpointNews>;

// ---- coordinator -> agent ----

struct Welcome {
  uint64_t generation = 0;  // the coordinator's newest; an agent that has seen a newer attempt does not join
};

struct Refused {
  std::string message;  // names what does not fit, what was expected and what to do
  bool retry = false;   // the agent tries again (an earlier agent of its node may still be there); else it ends with 2
};

// Which node the agent is; the coordinator then closes the connection.
struct NodeNumber {
  int node_rank = 0;
};

// Leave the group of `generation` at once.
struct CutGroup {
  uint64_t generation = 0;
  std::string cause;    // CamelCase
  std::string message;  // a sentence, for logs
};

// Leave the group of `generation` together, at the end of a step.
struct Regroup {
  uint64_t generation = 0;
  bool leaving = false;  // this node is not to come back: its workers end with its leaving code
};

// The whole job stops at one step (130 or 143), with a checkpoint.
struct StopJob {
  int code = 143;
};

// This worker hangs: dump its stacks, kill it, start it again.
struct KillWorker {
  int local_rank = 0;
  std::string message;
};

struct StoreAnswerTo {
  int local_rank = 0;
  StoreReply reply;
};

// The job is over for everybody: 0 = complete.
struct EndJob {
  int code = 0;
  std::string message;
};

struct CoordinatorBeat {};

// Assignment: of the node's first rank.
using CoordinatorMessage = std::variant<Welcome, Refused, Assignment, CutGroup, Regroup, StopJob, KillWorker,
                                        StoreAnswerTo, EndJob, CoordinatorBeat, CheckpointNews, NodeNumber>;

// ---- lines ----

// As in messages.h.
std::string encode(const NodeMessage& message);
std::string encode(const CoordinatorMessage& message);
// encode(StoreAnswerTo{local_rank, reply}) in two parts, because many nodes get the same values: encode_values once,
// and encode_answer for each, which ignores reply.values.
std::string encode_values(const std::vector<std::string>& values);
std::string encode_answer(int local_rank, StoreReply reply, std::string_view encoded_values);
Result<NodeMessage> decode_node_message(std::string_view line);
Result<CoordinatorMessage> decode_coordinator_message(std::string_view line);

}  // namespace lockstep
