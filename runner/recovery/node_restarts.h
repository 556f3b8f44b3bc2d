// Restarts of nodes and of the gang, for `lockstep run --local_nodes N`. Pure. (docs/recovery.md)
//
// Role: the parent process of N agents plays the operator. This decides which agent (node) is started, signalled,
// killed and started again, and with which code the parent ends. Each agent restarts its own workers (node_machine.h).
//
// A node that ends is replaced at once, alone, with the next attempt; by the operator's rules (restart_policy.h) all
// nodes are restarted together (a gang restart), or the job ends. A node that was killed because it was silent is not
// counted. An end that the agent reports as the end of the whole job ends it at once. After the first node has ended
// with 0 the job is complete, and no node is replaced any more.
// When a Tick comes far too late, this process did not run for a while, and most likely the nodes did not either, so
// none is killed for that time.
// Threads: none. Time is an argument; the caller sends NodesTick at `deadline`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runner/recovery/node_machine.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep {

// Nodes that were told to stop are killed this long after the time that each of them gives its workers.
inline constexpr std::chrono::seconds kNodeStopMargin{15};
// After the first node has ended with 0 the others follow; above kEndGrace, which each of them gives its workers.
inline constexpr std::chrono::seconds kNodeEndGrace = kEndGrace + std::chrono::seconds{10};

// A node that somebody stops sooner than this after its start, with nobody to say how far the run has come, is counted:
// else whatever stops it again and again would never end.
inline constexpr std::chrono::seconds kShortLife{10};

struct NodesOptions {
  int nodes = 1;
  RestartLimits limits;
  bool has_steps = true;       // progress is known by steps; false: its ranks run a program of the user's
  uint32_t first_attempt = 1;  // of every node; above those of an earlier start of the same run
  std::chrono::seconds stop_timeout = kStopGrace;  // that each node gives its workers
};

// ---- events ----

struct NodesStarted {};  // the first event, once
struct NodeEnded {
  int node = 0;
  int64_t pid = 0;
  int code = 0;            // as in contract/exit_code; 128 + n for a signal
  std::string message;     // the agent's termination message; may be empty
  bool job_ended = false;  // the agent says that the job is over for all (EndJob): no replacement can do better
  // What is known by now; below zero: nothing.
  int64_t step = -1;             // the highest that an agent says was committed, this one in its last words or another
  int64_t checkpoint_step = -1;  // of the newest durable checkpoint of this run
};
// The agent does not answer, or its process does not run. It is treated as lost.
struct NodeSilent {
  int node = 0;
  std::chrono::milliseconds since{0};
};
struct NodesStopRequested {  // SIGTERM or SIGINT has reached the parent
  int signal = 0;
};
struct NodesTick {};
using NodesEvent = std::variant<NodesStarted, NodeEnded, NodeSilent, NodesStopRequested, NodesTick>;

// ---- outputs ----

struct StartNode {
  int node = 0;
  uint32_t attempt = 0;  // LOCKSTEP_POD_ATTEMPT
};
struct SignalNodes {  // all that are alive
  int signal = 0;
};
struct KillNode {  // SIGKILL; its workers leave when their link ends
  int node = 0;
};
// A decision; it precedes the outputs that carry it out.
struct NodeDecision {
  int node = -1;      // that led to it
  int code = 0;       // how it ended
  std::string level;  // "pod", "gang"; empty: a remark, nothing was decided
  bool is_counted = false;
  bool gives_up = false;  // the job ends: nothing is started again
  std::string line;       // for a person: which node ended how, what happens next and why
};
// The parent is to end. The last output, emitted once, when no node is alive.
struct FinishNodes {
  int code = 0;
  std::string message;  // why; empty when code is 0
  int node = -1;        // of the cause; -1 when no node caused it
};
using NodesOutput = std::variant<StartNode, SignalNodes, KillNode, NodeDecision, FinishNodes>;

// ---- state ----

struct LocalNode {
  bool is_alive = false;
  TimePoint started_at{};
  uint32_t attempt = 0;
  bool was_killed = false;     // by us
  std::string killed_because;  // set when it was killed for its silence
};

struct NodesState {
  NodesOptions options;
  bool started = false;
  bool finished = false;
  std::vector<LocalNode> nodes;
  RestartCounts counts;
  bool gang_stopping = false;  // all are to end before all are started again
  bool complete = false;       // a node has ended with 0
  int stop_code = 0;           // 130 or 143: asked to stop
  std::set<int> signals;       // asked for so far
  int interrupts = 0;
  std::optional<FinishNodes> verdict;      // how the parent ends when none is alive
  std::optional<TimePoint> kill_deadline;  // nodes that are still alive then are killed
  TimePoint last_event{};
  std::optional<TimePoint> deadline;  // when a Tick is wanted

  explicit NodesState(const NodesOptions& nodes_options) : options(nodes_options) {}
};

std::vector<NodesOutput> step(NodesState& state, const NodesEvent& event, TimePoint now);

}  // namespace lockstep
