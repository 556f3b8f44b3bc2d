// RunStatus: the document that an agent serves under /status, for people, the status page and the operator. Pure.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/contract/messages.h"

namespace lockstep {

// What a run is doing, in one word.
enum class RunPhase { kStarting, kRunning, kRecovering, kStopping, kComplete, kFailed };
const char* to_string(RunPhase phase);

struct WorkerStatus {
  int rank = 0;
  int64_t pid = 0;
  std::string state;  // "starting", "joined", "done", "ended"
  int64_t step = 0;
  std::string phase;  // from the worker's beats
};

struct WorkerFailure {
  int rank = 0;
  int64_t pid = 0;
  int exit_code = 0;
  std::string reason;   // exit_reason
  std::string message;  // the worker's own words, or how it ended
  int64_t step = 0;
  uint64_t generation = 0;
  int64_t time_unix_seconds = 0;
};

inline constexpr size_t kRecentFailuresMax = 10;

struct RunStatus {
  std::string job;  // LOCKSTEP_JOB, else the workload
  std::string workload;
  uint64_t generation = 0;
  RunPhase phase = RunPhase::kStarting;
  int64_t start_time_unix_seconds = 0;
  std::vector<WorkerStatus> workers;  // by rank
  std::optional<Progress> progress;
  std::map<std::string, double> metrics;  // of the last evaluation
  std::optional<CheckpointWritten> last_checkpoint;
  int64_t restarts = 0;
  std::vector<WorkerFailure> recent_failures;  // newest last, at most kRecentFailuresMax
};

// Field names are camelCase as in the TrainJob's status. Numbers that are not finite or not known become null.
OrderedJson to_json(const RunStatus& status);

}  // namespace lockstep
