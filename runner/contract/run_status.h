// RunStatus: the JSON document that an agent serves under /status (/status?view=summary: without the workers). The
// status page, the operator and users read it. Pure.
//
// Node 0's agent speaks for the whole job; every other one for its own workers, and names the coordinator it follows.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/contract/messages.h"
#include "runner/contract/phase.h"

namespace lockstep {

// What a run is doing, in one word.
enum class RunPhase { kStarting, kRunning, kRecovering, kStopping, kComplete, kFailed };
const char* to_string(RunPhase phase);

struct WorkerStatus {
  int rank = 0;       // in the group; before the first one, where it is expected
  int node = 0;       // node rank
  int64_t pid = 0;    // 0: on another machine
  std::string state;  // "starting", "waiting", "joined", "done", "ended"
  int64_t step = 0;
  Activity activity = Activity::kLoading;
  Phase phase = Phase::kStartup;
  double seconds_unchanged = 0.0;  // since its last sign of progress
};

struct NodeStatus {
  int node = 0;  // node rank
  std::string host;
  uint32_t attempt = 0;
  std::string state;   // "member", "waiting", "lost", "leaving", "done"
  bool ready = false;  // all its workers wait for a placement
};

struct WorkerFailure {
  int rank = 0;
  int node = 0;     // node rank
  int64_t pid = 0;  // 0: on another machine
  int exit_code = 0;
  std::string reason;   // exit_reason
  std::string message;  // the worker's own words, or how it ended
  int64_t step = 0;
  uint64_t generation = 0;
  int64_t time_unix_seconds = 0;
};

// One break of the group and the recovery from it. Parts that are not known are below zero.
struct Recovery {
  std::string cause;                // CamelCase: "SignalKILL", "NodeLost", "Join", …
  int rank = -1;                    // whose worker ended; -1: none
  double detection_seconds = -1.0;  // from the last sign of life of what was lost
  double respawn_seconds = -1.0;    // until all workers waited for the new group
  double forming_seconds = -1.0;    // until the new group had formed
  double sync_seconds = -1.0;       // until all ranks held the same state
  double total_seconds = -1.0;      // from the last sign of life to the first commit
  int64_t redone_steps = 0;
  // Work that was lost since the step from which the group goes on. Steps that are redone after a fall-back count with
  // the mean time of a step in the group that broke. Below zero: not known.
  double lost_seconds = -1.0;
  int64_t step = 0;  // the first one committed after it
  int world_size = 0;
  std::string origin;  // where the state came from
  uint64_t generation = 0;
  int64_t time_unix_seconds = 0;  // of the break
  // CLOCK_MONOTONIC of node 0's machine, for tools that measure from outside.
  int64_t broken_ns = 0;
  int64_t committed_ns = 0;
  std::string message;  // of the break, for the log
};

struct RestartStatus {            // "ladder", with "rung", in the document
  std::string level = "process";  // of the last decision: "process", "pod", "gang"
  int64_t restarts = 0;           // workers started again by this agent
  int budget_left = 0;            // restarts that --max_restarts still allows
  std::string last_decision;
};

struct GoodputPart {
  std::string kind;   // "work", "waiting", "redone"
  std::string cause;  // "" for work
  double seconds = 0.0;
};
struct GoodputStatus {
  double ratio = 1.0;
  std::vector<GoodputPart> parts;  // add up to the wall clock of the job
};

struct SlowestStatus {
  int rank = -1;
  int node = -1;             // node rank
  double lag_seconds = 0.0;  // its own work per step, above the median
};

inline constexpr size_t kRecentFailuresMax = 10;
inline constexpr size_t kRecentRecoveriesMax = 10;

// Workers load their data, or prepare it, before there is a group.
struct LoadingStatus {
  int64_t prepared = 0;  // pieces of the data, on this node; both 0 when the workload does not count
  int64_t to_prepare = 0;
  double seconds_unchanged = 0.0;  // since the newest sign of progress of any such worker, on any node
};

struct RunStatus {
  std::string job;  // LOCKSTEP_JOB, else the workload
  // LOCKSTEP_NAMESPACE and LOCKSTEP_JOB_UID: the operator believes only the agent of the TrainJob that it asks about,
  // as another pod may have the address by now. Empty without a TrainJob.
  std::string job_namespace;
  std::string job_uid;
  std::string workload;
  int node = 0;             // whose agent this is
  std::string coordinator;  // that it follows; empty on node 0
  uint64_t generation = 0;
  RunPhase phase = RunPhase::kStarting;
  std::string reason;  // of the last membership decision
  int64_t start_time_unix_seconds = 0;
  int world_size = 0;                    // of the placed group
  int nnodes = 0;                        // of the placed group
  int wanted_nodes = 0;                  // node 0 only: --nnodes, or what POST /nodes said last
  std::vector<NodeStatus> nodes;         // node 0 only
  std::vector<WorkerStatus> workers;     // by rank
  std::optional<LoadingStatus> loading;  // node 0 only
  std::optional<Progress> progress;
  std::map<std::string, double> metrics;  // of the last evaluation
  std::optional<CheckpointWritten> last_checkpoint;
  std::string origin;                          // where the state of this agent's first group came from; on node 0
  int64_t restarts = 0;                        // of this agent's workers; on node 0 also those on other nodes
  std::vector<WorkerFailure> recent_failures;  // newest last, at most kRecentFailuresMax; on node 0 of all nodes
  int64_t recoveries_total = 0;
  int64_t redone_steps = 0;
  std::vector<Recovery> recoveries;  // newest last, at most kRecentRecoveriesMax; node 0 only
  RestartStatus restart_level;
  std::optional<GoodputStatus> goodput;  // node 0 only
  std::optional<SlowestStatus> slowest;  // node 0 only, when there is one
};

// Field names are camelCase as in the TrainJob's status. Numbers that are not finite or not known become null.
OrderedJson to_json(const RunStatus& status);
// The same without `workers`, the one part that grows with the ranks: what the operator reads every ten seconds.
OrderedJson summary_of(const RunStatus& status);
// Its parts that stay true when the run is over, the most important first: progress, lastCheckpoint, origin, restarts,
// metrics, recentFailures; the same names and forms.
OrderedJson figures_of(const RunStatus& status);
OrderedJson to_json(const Recovery& recovery);

}  // namespace lockstep
