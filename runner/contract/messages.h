// Messages between an agent and its workers: what each line on the link holds. Pure. (Beats are not messages: see
// beat_page.h. Agents and coordinator: coordination.h.)
//
// Transport: a socketpair; the worker finds its end's number in env::kAgentFd. One JSON object per line, field
// "type" names the message, the other fields are those of the structs below under the same names. Bytes of the store
// travel as hex. Numbers that are not finite travel as "NaN", "+Inf", "-Inf".
//
// Order: the worker says hello and waits; an assignment comes when the group of the next generation is complete. A
// worker that has lost a peer, or is told to cut or regroup, drops its group, says Left and waits for the next one.
// Store requests are answered by id, not necessarily in order: get and wait are answered when the keys are there or
// the time is up. The end of the link means that the other side is gone.
//
// docs/worker-protocol.md is made from this file, its comments included (scripts/worker_protocol.py).
// Threads: values and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runner/base/result.h"
#include "runner/contract/metric_names.h"

namespace lockstep {

// A longer text of a message (why something failed) is cut where the message is read, and a longer list is refused.
inline constexpr size_t kMessageTextBytesMax = size_t{16} << 10;
inline constexpr size_t kMessageListMax = size_t{1} << 16;
// Most bytes of one value of the store. As hex they fit into a line between agent and coordinator
// (kCoordinationLineBytesMax).
inline constexpr size_t kStoreValueBytesMax = size_t{7} << 20;

// ---- worker -> agent ----

// Raised when an old worker and a new agent, or the other way round, would misunderstand each other: for a new message,
// and for a field that is not optional. An agent refuses workers with another number (refusal_of).
inline constexpr int kWorkerProtocol = 1;
inline constexpr const char* kWorkerKind = "lockstep-worker";
inline constexpr const char* kPythonKind = "python";  // a program of the user's with the Python package

// The first message: this rank has read its data, and waits for a place in a group.
struct Hello {
  int local_rank = 0;
  int64_t pid = 0;
  // One JSON object of what must be the same on all ranks: flags, number of samples, backend, versions
  // (contract/agreement.h).
  std::string terms;
  int protocol = kWorkerProtocol;  // without it 1
  std::string kind = kWorkerKind;  // "lockstep-worker" or "python"; without it the first
  std::string package;             // version of the package, of a worker of another kind than lockstep-worker
};
// Why an agent refuses a worker that says this; empty: it does not.
std::string refusal_of(const Hello& hello);

// A rank of the user's program has a state, or gets one from a rank that has: from now on it is asked to leave a group
// that ends (Cut), and says Left. Before it has said this, such a rank is ended with its group and started again.
struct Outlives {
  // It leaves a group at the end of a step when it is asked to (LeaveTogether), and goes on in one with another number
  // of ranks. Else it is cut.
  bool leaves_together = false;
};

// A rank of the user's program cannot go on in another group, and nothing is lost with it: it is to be ended and
// started again. That counts as no failure.
struct Replace {
  uint64_t generation = 0;
  std::string message;  // why
};

enum class StoreOp { kSet, kGet, kAdd, kCompareSet, kDelete, kCheck, kNumKeys, kWait, kAppend };

// To the key-value store of the group's generation, which all its ranks share.
struct StoreRequest {
  uint64_t id = 0;          // chosen by the worker, unique among its open requests
  uint64_t generation = 0;  // of the assignment; any other than the current one is refused
  StoreOp op = StoreOp::kGet;
  std::vector<std::string> keys;         // one for add, append, compare_set, delete; one or more for set and get; any
                                         // number for check, wait; none for num_keys
  std::vector<std::string> values;       // bytes; set: one for each key; append: the bytes to add at the end;
                                         // compare_set: expected (may be empty), desired
  int64_t amount = 0;                    // add
  std::chrono::milliseconds timeout{0};  // get and wait
};

// From rank 0, every few steps. Values that are not known are NaN, infinite or below zero, and are not shown.
struct Progress {
  int64_t step = 0;  // committed steps
  int64_t total_steps = 0;
  int64_t epoch = 0;  // from 0
  int64_t num_epochs = 0;
  double loss = 0.0;
  double lr = 0.0;
  double grad_norm = 0.0;
  double samples_per_second = 0.0;  // all ranks together
  double eta_seconds = -1.0;
  double data_wait_ratio = 0.0;      // share of wall clock spent waiting for data, since the last message
  int64_t device_memory_bytes = -1;  // in use by this rank's process; -1 on the CPU
  double steps_per_second = -1.0;    // of a program of the user's, whose samples nobody counts
};

// From rank 0: figures by name.
struct Evaluation {
  int64_t epoch = 0;  // completed epochs
  std::map<std::string, double> metrics;
};

// A complete checkpoint is durable.
struct CheckpointWritten {
  int64_t step = 0;
  std::string path;
};

// A part of MetricSample.
struct HistogramBucket {
  double upper_bound = 0.0;  // the last one is +Inf
  uint64_t cumulative_count = 0;
};

// A part of MetricFamily.
struct MetricSample {
  std::map<std::string, std::string> labels;
  double value = 0.0;                    // counter, gauge
  uint64_t count = 0;                    // histogram
  double sum = 0.0;                      // histogram
  std::vector<HistogramBucket> buckets;  // histogram, ascending
};

// A part of Metrics.
struct MetricFamily {
  std::string name;
  std::string help;
  MetricType type = MetricType::kGauge;
  std::vector<MetricSample> metrics;
};

// All of a worker's families, every two seconds; replaces what it sent before. The label "rank" is in them.
inline constexpr std::chrono::milliseconds kMetricsInterval{2000};
struct Metrics {
  std::vector<MetricFamily> families;
};

// Said just before a worker leaves with another code than 0: becomes the termination message.
struct Failing {
  int code = 0;  // the exit code, see below
  std::string message;
  int rank = 0;
  int64_t step = 0;
  uint64_t generation = 0;
};

// The worker's work is finished and durable; it exits 0 next.
struct Done {};

// Causes in Left when a worker left its group because it was told to. With any other cause the worker found the group
// broken.
inline constexpr const char* kLeftCut = "Cut";
inline constexpr const char* kLeftRegroup = "Regroup";
// A rank that has asked to be replaced.
inline constexpr const char* kLeftReplaced = "Replaced";

inline constexpr uint64_t kKeepsNone = std::numeric_limits<uint64_t>::max();

// A part of Left: the state that a rank holds, which is that of its last commit. Collectives are counted from the
// beginning of the run, by all ranks alike.
struct StateClaim {
  uint64_t lineage = 0;  // generation in which the state was last restored or initialised
  int64_t step = 0;      // committed steps
  // Step of the last evaluation. When a group breaks at the end of an evaluation, some ranks have its result in their
  // state (best figure, early stopping, plateau), and others have not.
  int64_t evaluated_step = -1;
  bool has_state = false;
  // Of the newest group in which the state was synced. Two groups of different sizes compute different states for the
  // same step, because they add up in different orders.
  uint64_t generation = 0;
  uint64_t at_commit = 0;           // collectives that were complete at that commit
  uint64_t complete = 0;            // collectives that are complete
  uint64_t kept_from = kKeepsNone;  // it keeps the results of this collective and of all later ones; without it: none
  bool is_whole = true;             // it can hand the state over: nothing has changed it, or that can be undone
  bool can_take = true;             // it can go on from a later state than its own
};

// The worker has dropped the group of `generation`, keeps its state and waits for a new assignment.
struct Left {
  uint64_t generation = 0;
  std::string cause;    // "Cut" (it was told to), "Regroup" (all left together at a step's end), "Replaced", or as
                        // exit_reason: "PeerLost"
  std::string message;  // what the worker saw
  int64_t step = 0;     // committed
  // What it holds, now that nothing of that group goes on in it. The coordinator makes the plans of the next assignment
  // from it. Without it: nothing, or (lockstep-worker) the ranks tell each other when their group has formed.
  std::optional<StateClaim> claim;
};

// The first commit in a generation: the group works. Times in nanoseconds of CLOCK_MONOTONIC.
struct Resumed {
  uint64_t generation = 0;
  int64_t step = 0;          // committed now
  int64_t formed_ns = 0;     // when the group had formed
  int64_t synced_ns = 0;     // when all ranks held the same state
  int64_t committed_ns = 0;  // when the step was committed
  int64_t resumed_step = 0;  // committed steps of the state that the group went on from
  std::string origin;        // where that state came from, in words
  // Optional: steps that the ranks that were not lost have made a second time. Below 0: the one in flight, and those
  // since resumed_step.
  int64_t redone_steps = -1;
};

using WorkerMessage = std::variant<Hello, StoreRequest, Progress, Evaluation, CheckpointWritten, Metrics, Failing, Done,
                                   Left, Resumed, Outlives, Replace>;

// ---- agent -> worker ----

// A part of Plan: one rank sends something to some others, in a group of their own, in which the sender has rank 0.
struct Handover {
  int rank = -1;  // this rank's in that group; -1: it is not in it
  int size = 0;   // ranks of that group; 0: nothing is sent
};

// A part of Assignment: what a rank does before its group goes on. The coordinator computes it from what all ranks of
// the group hold (StateClaim).
struct Plan {
  int source = -1;            // the group goes on from the state of this rank; -1: no rank has one
  Handover state;             // from the source to those that need it
  Handover results;           // of collectives, from a rank that has kept them to those that lack some
  uint64_t first_result = 0;  // number of the first collective whose result is sent
  uint64_t complete = 0;      // collectives that are complete; the result of the last of them is the last that is sent
  int behind = -1;  // a rank, this one if it is one, that lacks what nobody can send: it is to be replaced. -1: none
  bool is_lost = false;  // ranks need a state, and the source can no longer hand it over: all are to be replaced
};

// A rank's place in the group of a new generation. It is the same message from the coordinator to the process group:
// the coordinator sends a node that of its first rank, and the node's agent gives each worker its own (assignment_of).
struct Assignment {
  uint64_t generation = 0;
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int nnodes = 1;
  int declared_world_size = 0;  // with all wanted nodes, present or not; 0 = world_size
  int node_cores = 0;           // for all ranks of this node; 0 = each rank counts them
  std::string address;          // of this node, as its peers reach it; empty = all are on this machine
  // This rank's; from the coordinator to a node: of all its ranks, in order. None where no rank has said what it holds.
  std::vector<Plan> plans;
};
// That of the worker with this local rank, from that of its node's first rank.
Assignment assignment_of(int local_rank, const Assignment& first);

enum class StoreStatus {
  kOk,
  kTimeout,  // the keys did not come in time
  kStale,    // the request's generation is not the current one
  kInvalid,  // a programmer's error: wrong number of keys or values, adding to a value that is not a number
};

// To a store request.
struct StoreReply {
  uint64_t id = 0;  // of the request
  StoreStatus status = StoreStatus::kOk;
  std::vector<std::string> values;  // get: one for each key; compare_set: the value that is stored afterwards
  int64_t number = 0;               // add: the sum; append: bytes; delete, check: 0 or 1; num_keys: the number
  std::string message;              // why, when the status is not ok
};

// Leave the group of `generation` now, even out of a collective, and wait for an assignment.
struct Cut {
  uint64_t generation = 0;
  std::string cause;  // CamelCase
};

// Leave the group of `generation` together with all other ranks, at the end of a step. `leaving_code` (130 or 143):
// this worker ends with it then; 0: it waits for an assignment.
struct LeaveTogether {
  uint64_t generation = 0;
  int leaving_code = 0;
};

using AgentMessage = std::variant<Assignment, StoreReply, Cut, LeaveTogether>;

// ---- lines ----

// One line without its newline.
std::string encode(const WorkerMessage& message);
std::string encode(const AgentMessage& message);

// kCorrupt: not a JSON object, a type that is not known, a field that is missing, of the wrong kind or out of range;
// the message names type and field. Fields that are not known are ignored (a newer peer may say more).
Result<WorkerMessage> decode_worker_message(std::string_view line);
Result<AgentMessage> decode_agent_message(std::string_view line);

}  // namespace lockstep
