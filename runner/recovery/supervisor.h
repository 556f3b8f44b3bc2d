// Supervisor: the workers of one node, and the process rung of the restart ladder. Pure. (architecture §3)
//
// Role: starts the workers, hands them placements and cuts, starts again the ones that end, and decides when the node
// ends and with which code. It never looks at other nodes: the member (member.h) tells it what the coordinator wants,
// and hears from it whether the workers are ready, what broke, and that they are done.
//
// The ladder: a worker that ends badly is started again at once, alone; the others keep their state and wait. Counted
// against max_restarts inside kRestartWindow; a new checkpoint clears the count. Several ends in one placement are one
// incident; so are several processes that were started again after the same incident and end before they are placed.
// After one incident, kNoProgressIncidentsMax more in a row, none at a later step than the ones before it, are a crash
// loop: the job ends, for a new process, pod or gang would come no further. Codes 2, 3 and 5 end the job at once; so
// does 4 when nothing was ever committed: nothing that the run wrote can be the reason. So do workers of one node whose
// terms differ (messages.h, Hello). A node whose count is used up
// ends alone (the pod rung: its pod may be replaced).
//
// Complete for one is complete for all: after the first end with 0 nothing is started again, and what ends badly is
// remarked on, no more. A stop ends with the worst that happened since: 130 or 143 when nothing did.
// Where a Tick comes far too late, this process did not run (a frozen container, a suspended laptop), and the workers
// mostly did not either: nobody is killed for that time.
// Threads: none. Time is an argument; the caller sends SupervisorTick at `deadline`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runner/contract/coordination.h"

namespace lockstep {

using TimePoint = std::chrono::steady_clock::time_point;

// A worker that was told to cut leaves its group within milliseconds. One that still sits in a collective after this
// long cannot: it is killed. (One that computes or writes is waited for; the stall timeout ends that too.)
inline constexpr std::chrono::seconds kCutGrace = kFormingTimeout + std::chrono::seconds{2};
// While stopping, rank 0 may be writing its last checkpoint: this long after the request, or after a bad end of another
// worker, the node's workers are killed. Unless SupervisorOptions::stop_timeout says otherwise.
inline constexpr std::chrono::seconds kStopGrace{60};
// The job is over: workers that have not left by then are killed.
inline constexpr std::chrono::seconds kEndGrace{10};
// SIGKILL ends a process at once, unless it sleeps in the kernel: a worker that is still there by then is given up.
inline constexpr std::chrono::seconds kKillGrace{30};
// Restarts older than this no longer count against --max_restarts.
inline constexpr std::chrono::seconds kRestartWindow{3600};
inline constexpr int kNoProgressIncidentsMax = 3;
// Wait before a restart that follows an incident without progress; doubles with each one, up to the maximum.
inline constexpr std::chrono::seconds kBackoffInitial{1};
inline constexpr std::chrono::seconds kBackoffMax{30};

struct SupervisorOptions {
  int nproc = 1;
  int max_restarts = 10;
  // From the start of a worker, or its last progress with its data, until it says hello.
  std::chrono::milliseconds start_timeout{300'000};
  std::chrono::seconds stop_timeout = kStopGrace;
};

// ---- events ----

struct Started {};  // the first event, once
struct WorkerSaidHello {
  int local_rank = 0;
  std::string terms;  // as Hello's
};
struct WorkerLeft {  // its group; it waits for a placement
  int local_rank = 0;
  uint64_t generation = 0;
  std::string cause;
  std::string message;
};
struct WorkerAtStep {  // from its beats
  int local_rank = 0;
  int64_t step = 0;
  bool in_collective = false;
  TimePoint progress_at{};  // last sign of progress; the epoch: none
};
struct CheckpointSeen {  // of this job, on any node
  int64_t step = 0;
};
struct WorkerEnded {
  int local_rank = 0;
  int64_t pid = 0;      // 0: it could not be started
  int code = 0;         // as in contract/exit_code; 13 for a kill by the kernel for memory
  std::string message;  // the worker's own words; may be empty
};
struct StopRequested {  // SIGTERM or SIGINT has reached the agent
  int signal = 0;
};
// From the member.
struct Placed {
  Placement placement;
};
struct CutOrdered {
  uint64_t generation = 0;
  std::string cause;
  std::string message;
};
struct RegroupOrdered {
  uint64_t generation = 0;
  bool leaving = false;
};
struct StopOrdered {
  int code = 143;  // 130 or 143
};
struct KillOrdered {  // it hangs
  int local_rank = 0;
  std::string message;
};
struct JobEnded {
  int code = 0;
  std::string message;
};
// The worker is silent (its process does not run): as good as dead. From the agent, which reads the beats.
struct WorkerSilent {
  int local_rank = 0;
  std::chrono::milliseconds since{0};
};
struct SupervisorTick {};
using SupervisorEvent =
    std::variant<Started, WorkerSaidHello, WorkerLeft, WorkerAtStep, CheckpointSeen, WorkerEnded, StopRequested, Placed,
                 CutOrdered, RegroupOrdered, StopOrdered, KillOrdered, JobEnded, WorkerSilent, SupervisorTick>;

// ---- outputs ----

struct StartWorker {
  int local_rank = 0;
};
struct AssignWorkers {  // to all workers
  Placement placement;
};
struct SendCut {  // to all workers that are in this generation
  uint64_t generation = 0;
  std::string cause;
};
struct SendLeaveTogether {  // to all workers
  uint64_t generation = 0;
  int leaving_code = 0;
};
struct SignalWorkers {  // all that are alive
  int signal = 0;
};
struct DumpStacks {  // of a worker that hangs, before it is killed
  int local_rank = 0;
};
struct KillProcess {  // SIGKILL, its whole process group
  int local_rank = 0;
};
// For the member.
struct TellReady {
  bool ready = false;
  std::string terms;  // of the workers; empty when they are not ready
};
struct TellBroken {
  Broken broken;
};
struct TellLeave {
  int code = 143;
};
struct TellDone {};
struct TellGaveUp {
  NodeFailed failed;
};
// One worker is started again, now or after the backoff.
struct Restarting {
  int local_rank = 0;
  int code = 0;
  std::string rung = "process";
  std::string line;  // for a person: who ended how, at which step, what happens next, how many are left
};
// An observation for a person that changes nothing.
struct Remark {
  std::string line;
};
// The node ends; once, the last output of all.
struct Finish {
  int code = 0;
  std::string message;  // why; empty when code is 0
  bool message_names_code = false;
  int rank = -1;  // of the root cause, in the group; -1 when no worker of this node caused it
  int64_t step = -1;
};
using SupervisorOutput =
    std::variant<StartWorker, AssignWorkers, SendCut, SendLeaveTogether, SignalWorkers, DumpStacks, KillProcess,
                 TellReady, TellBroken, TellLeave, TellDone, TellGaveUp, Restarting, Remark, Finish>;

// ---- state ----

enum class WorkerPhase {
  kStarting,  // its process runs, it has not said hello
  kAwaiting,  // a placement
  kPlaced,    // in the group of `generation`
  kBackoff,   // not running; started again at `deadline`
  kEnded,     // not running, not to be started again (done, stopped, or the node ends)
};

struct SupervisedWorker {
  WorkerPhase phase = WorkerPhase::kStarting;
  uint64_t generation = 0;  // of its last placement
  bool was_cut = false;     // told to cut, has not left yet
  bool in_collective = false;
  std::string terms;                    // that it said with its hello
  std::optional<int> code_when_killed;  // set when we kill it: our SIGKILL is a consequence, never the cause
  std::string message_when_killed;
  bool is_given_up = false;    // it did not end when it was killed; whatever it does later counts no more
  int64_t step = -1;           // last it told; -1 = none
  int64_t incidents_seen = 0;  // SupervisorState::incidents when it was started or placed, whichever came last
  std::optional<TimePoint> deadline;
  [[nodiscard]] bool alive() const { return phase != WorkerPhase::kBackoff && phase != WorkerPhase::kEnded; }
};

struct WorkerEndRecord {
  int local_rank = 0;
  int rank = 0;     // in the group; the local rank before the first placement
  int64_t pid = 0;  // 0: none
  int code = 0;     // as it counts for the root cause
  std::string how;  // "ended with exit code 1 (Crash)", "ended with signal 9 (SIGKILL)", "did not end …"
  std::string message;
  int64_t step = -1;
  bool started_again = false;  // its worker was: no longer a reason for the node to end
};

// This node gives up; it ends when the other workers have been killed and the member has told the others.
struct SupervisorVerdict {
  WorkerEndRecord cause;
  std::string prefix;  // of the cause's words: "crash loop: …; "
};

struct SupervisorState {
  SupervisorOptions options;
  bool started = false;
  bool finished = false;
  std::vector<SupervisedWorker> workers;  // by local rank
  std::vector<WorkerEndRecord> ends;      // bad ends since the last placement, in the order of time
  std::optional<Placement> placement;     // the newest
  bool said_ready = false;
  uint64_t broken_said = 0;    // generation that the member was told is broken
  int stop_code = 0;           // 130 or 143: asked to stop, by a signal or the coordinator
  bool job_stops = false;      // the workers were signalled: the whole job stops at one step
  bool leaving = false;        // this node alone leaves
  std::set<int> signals;       // asked for so far
  std::set<int> signals_sent;  // to the workers
  bool complete = false;       // a worker has ended with 0
  bool said_done = false;
  std::optional<SupervisorVerdict> verdict;
  std::optional<JobEnded> job_ended;
  int64_t incidents = 0;            // so far
  std::vector<TimePoint> restarts;  // incidents inside the window, since the last new checkpoint
  int64_t restarts_total = 0;       // processes started again
  int incidents_without_progress = 0;
  int64_t furthest_step = -1;              // that any worker told; -1 = none
  int64_t furthest_incident_step = -2;     // furthest_step at the furthest incident so far
  int64_t checkpoint_step = -1;            // newest seen
  std::optional<TimePoint> stop_deadline;  // the living are killed then
  TimePoint last_event{};
  std::optional<TimePoint> deadline;  // when a Tick is wanted

  explicit SupervisorState(const SupervisorOptions& supervisor_options) : options(supervisor_options) {}
  [[nodiscard]] bool stopping() const { return stop_code != 0; }
};

std::vector<SupervisorOutput> step(SupervisorState& state, const SupervisorEvent& event, TimePoint now);

// "exit code 1 (Crash)", "signal 9 (SIGKILL)", "exit code 13 (OutOfMemory)".
std::string describe_exit(int code);

}  // namespace lockstep
