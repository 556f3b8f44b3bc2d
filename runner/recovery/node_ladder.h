// NodeLadder: restarts of a pod and of the gang, for `lockstep run --local_nodes N`. Pure. (docs/recovery.md)
//
// Role: the parent process of N agents plays the operator. This decides which agent (node) is started, signalled,
// killed and started again, and with which code the parent ends. Each agent restarts its own workers (supervisor.h).
//
// The ladder: a node that ends is replaced at once, alone, with the next attempt. Counted against max_restarts inside
// kRestartWindow; not counted are a node that lost its peers or the coordinator (10), one that was stopped by somebody
// else (130, 143) and one that was killed because it was silent. A replacement that ends within kShortLife is no
// progress: kShortLivesMax of one node in a row restart all nodes together, once (a gang restart); after that they end
// the job. A new checkpoint clears all of these counts, and so does the run's first step. judge_end (restart_policy.h)
// says which codes end the job at once; an end that the agent reports as the end of the whole job does, too. After the
// first node has ended with 0 the job is complete, and no node is replaced any more.
// When a Tick comes far too late, this process did not run for a while, and most likely the nodes did not either, so
// none is killed for that time.
// Threads: none. Time is an argument; the caller sends NodeLadderTick at `deadline`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runner/recovery/supervisor.h"

namespace lockstep {

inline constexpr std::chrono::seconds kShortLife{10};
inline constexpr int kShortLivesMax = 3;
// Nodes that were told to stop are killed this long after the time that each of them gives its workers.
inline constexpr std::chrono::seconds kNodeStopMargin{15};
// After the first node has ended with 0 the others follow; above kEndGrace, which each of them gives its workers.
inline constexpr std::chrono::seconds kNodeEndGrace = kEndGrace + std::chrono::seconds{10};

struct NodeLadderOptions {
  int nodes = 1;
  int max_restarts = 10;
  uint32_t first_attempt = 1;                      // of every node; above those of an earlier start of the same run
  std::chrono::seconds stop_timeout = kStopGrace;  // that each node gives its workers
};

// ---- events ----

struct NodeLadderStarted {};  // the first event, once
struct NodeEnded {
  int node = 0;
  int64_t pid = 0;
  int code = 0;            // as in contract/exit_code; 128 + n for a signal
  std::string message;     // the agent's termination message; may be empty
  bool job_ended = false;  // the agent says that the job is over for all (EndJob): no replacement can do better
  // Of the job's newest durable checkpoint by now; 0: none was written, but steps were made; below zero: neither.
  int64_t checkpoint_step = -1;
};
// The agent does not answer, or its process does not run. It is treated as lost.
struct NodeSilent {
  int node = 0;
  std::chrono::milliseconds since{0};
};
struct NodesStopRequested {  // SIGTERM or SIGINT has reached the parent
  int signal = 0;
};
struct NodeLadderTick {};
using NodeLadderEvent = std::variant<NodeLadderStarted, NodeEnded, NodeSilent, NodesStopRequested, NodeLadderTick>;

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
// A decision of the ladder; it precedes the outputs that carry it out.
struct NodeDecision {
  int node = -1;     // that led to it
  int code = 0;      // how it ended
  std::string rung;  // level: "pod", "gang"; empty: a remark, nothing was decided
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
using NodeLadderOutput = std::variant<StartNode, SignalNodes, KillNode, NodeDecision, FinishNodes>;

// ---- state ----

struct LadderNode {
  bool is_alive = false;
  uint32_t attempt = 0;
  bool is_replacement = false;  // its process replaces an earlier one
  bool was_killed = false;      // by us
  std::string killed_because;   // set when it was killed for its silence
  TimePoint started_at{};
  int short_lives = 0;  // replacements in a row
};

struct NodeLadderState {
  NodeLadderOptions options;
  bool started = false;
  bool finished = false;
  std::vector<LadderNode> nodes;
  std::vector<TimePoint> restarts;  // counted ones inside the window
  int64_t checkpoint_step = -1;     // of the newest checkpoint that was reported
  bool gang_used = false;
  bool gang_stopping = false;  // all are to end before all are started again
  bool complete = false;       // a node has ended with 0
  int stop_code = 0;           // 130 or 143: asked to stop
  std::set<int> signals;       // asked for so far
  int interrupts = 0;
  std::optional<FinishNodes> verdict;      // how the parent ends when none is alive
  std::optional<TimePoint> kill_deadline;  // nodes that are still alive then are killed
  TimePoint last_event{};
  std::optional<TimePoint> deadline;  // when a Tick is wanted

  explicit NodeLadderState(const NodeLadderOptions& ladder_options) : options(ladder_options) {}
};

std::vector<NodeLadderOutput> step(NodeLadderState& state, const NodeLadderEvent& event, TimePoint now);

}  // namespace lockstep
