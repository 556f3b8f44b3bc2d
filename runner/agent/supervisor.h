// Supervisor: the process rung of the restart ladder (architecture §3). Pure.
//
// Role: decides when workers are started, killed and started again, and with which code the agent leaves. A finite
// state machine: step(state, event, now) changes the state and returns what is to be done; the agent does it.
// One generation of workers runs at a time. When one ends badly the others are let to end by themselves (they lose
// their peer and leave with 10), then killed; then all are started again with the next generation, unless the code
// forbids it (contract/exit_code), or it is 4 (checkpoint) and the run has not committed a step yet: nothing it wrote
// can be the reason, so that it cannot heal by itself.
// Threads: none. Time is an argument; the caller sends Tick when `deadline` is reached.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

using TimePoint = std::chrono::steady_clock::time_point;

// A group that lost a member notices within milliseconds; a worker that has not left by then hangs.
inline constexpr std::chrono::seconds kSurvivorGrace{5};
// While stopping, rank 0 may be writing its last checkpoint: a bad end of another worker gives it this long.
inline constexpr std::chrono::seconds kStopGrace{60};
// Restarts older than this no longer count against --max_restarts.
inline constexpr std::chrono::seconds kRestartWindow{3600};
// This many failures in a row, none at a later step than the ones before it, are a crash loop.
inline constexpr int kNoProgressFailuresMax = 3;
// Wait before a restart that follows a failure without progress; doubles with each one, up to the maximum.
inline constexpr std::chrono::seconds kBackoffInitial{1};
inline constexpr std::chrono::seconds kBackoffMax{30};

struct SupervisorOptions {
  int nproc = 1;
  uint32_t attempt = 0;  // upper half of the generation: LOCKSTEP_POD_ATTEMPT, else the start time in Unix seconds
  int max_restarts = 10;
  std::chrono::seconds rendezvous_timeout{300};  // from the start of the workers until all said hello
};

// ---- events ----

struct Started {};  // the first event, once
struct WorkerSaidHello {
  int local_rank = 0;
};
struct WorkerAtStep {
  int local_rank = 0;
  int64_t step = 0;
};
struct CheckpointSeen {
  int64_t step = 0;
};
struct WorkerEnded {
  int local_rank = 0;
  int64_t pid = 0;
  int code = 0;         // as in contract/exit_code; 13 for a kill by the kernel for memory
  std::string message;  // the worker's own words; may be empty
};
struct StopRequested {
  int signal = 0;  // SIGTERM or SIGINT
};
struct Tick {};
using SupervisorEvent =
    std::variant<Started, WorkerSaidHello, WorkerAtStep, CheckpointSeen, WorkerEnded, StopRequested, Tick>;

// ---- outputs ----

struct StartWorkers {
  uint64_t generation = 0;
};
struct SendAssignments {  // to all workers, of the current generation
  uint64_t generation = 0;
};
struct SignalWorkers {  // all that are alive
  int signal = 0;
};
struct KillWorkers {};  // SIGKILL to all that are alive
struct Restarting {     // all workers, now or after the backoff
  int code = 0;         // of the root cause
  std::string line;     // for a person: who ended how, at which step, and that the run goes on
};
struct Finish {
  int code = 0;
  std::string message;  // why; empty when code is 0
  bool message_names_code = false;
  int rank = -1;  // of the root cause; -1 when no worker caused it
  int64_t step = -1;
};
using SupervisorOutput = std::variant<StartWorkers, SendAssignments, SignalWorkers, KillWorkers, Restarting, Finish>;

// ---- state ----

enum class SupervisorPhase {
  kIdle,      // before Started
  kForming,   // workers started, not all have said hello
  kRunning,   // all have their assignment
  kDraining,  // one ended badly; the others are to end
  kWaiting,   // none alive; the next generation starts at `deadline`
  kFinished,
};

struct SupervisedWorker {
  bool alive = false;
  bool said_hello = false;
  std::optional<int> code_when_killed;  // set when we kill it: our SIGKILL is a consequence, never the cause
  int64_t step = -1;                    // last it told; -1 = none
};

struct WorkerEndRecord {
  int local_rank = 0;
  int64_t pid = 0;
  int code = 0;     // as it counts for the root cause
  std::string how;  // "exit code 1 (Crash)", "signal 9 (SIGKILL)"
  std::string message;
  int64_t step = -1;
};

struct SupervisorState {
  SupervisorOptions options;
  SupervisorPhase phase = SupervisorPhase::kIdle;
  uint32_t counter = 0;                   // lower half of the generation
  std::vector<SupervisedWorker> workers;  // by local rank
  std::vector<WorkerEndRecord> ends;      // of this generation, in the order of time
  std::set<int> signals;                  // asked for so far
  std::vector<TimePoint> restarts;        // inside the window, since the last new checkpoint
  int64_t restarts_total = 0;
  int failures_without_progress = 0;
  int64_t furthest_failure_step = -2;  // highest step at which a generation failed so far
  int64_t checkpoint_step = -1;        // newest seen
  std::optional<TimePoint> deadline;   // when a Tick is wanted

  explicit SupervisorState(const SupervisorOptions& supervisor_options) : options(supervisor_options) {}
  [[nodiscard]] uint64_t generation() const { return (uint64_t{options.attempt} << 32U) | counter; }
  [[nodiscard]] bool stopping() const { return !signals.empty(); }
};

std::vector<SupervisorOutput> step(SupervisorState& state, const SupervisorEvent& event, TimePoint now);

// "exit code 1 (Crash)", "signal 9 (SIGKILL)", "exit code 13 (OutOfMemory)".
std::string describe_exit(int code);

}  // namespace lockstep
