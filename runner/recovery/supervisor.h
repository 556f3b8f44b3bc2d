// Supervisor: the workers of one node, and their restarts. Pure. (docs/recovery.md)
//
// Role: starts the workers, passes assignments and cuts to them, restarts those that end, and decides when the node
// ends and with which code. It knows nothing of other nodes: the member (member.h) tells it what the coordinator wants,
// and it tells the member whether the workers are ready, what broke, and when they are done. The two exchange the same
// messages that the member exchanges with the coordinator (contract/coordination.h).
//
// A worker that ends badly is started again at once, alone; the others keep their state and wait. Each
// incident counts against max_restarts for kRestartWindow; a new checkpoint clears the count. Several ends in one
// assignment are one incident; so are the ends of several processes that were started again after the same incident and
// end before they are placed. The node gives up, alone, when it has used up max_restarts; when one incident is followed
// by kNoProgressIncidentsMax more, none at a later step than those before it (a crash loop); when its machine was at
// fault kMachineFaultsMax times in a row; when its workers have other terms than each other (messages.h, Hello); and at
// an end that judge_end (restart_policy.h) does not restart. Whether the job ends with the node is not decided here:
// the coordinator knows more of what the run has done (coordinator.h).
//
// Nothing is lost with a node that gives up, or with a job that ends, with any code but 5: rank 0, if it runs here and
// holds steps, writes them first. If rank 0 is the one that failed, and other ranks of this node hold steps that are in
// no checkpoint, it is started a last time, to get the state from them and write it.
//
// A node that is asked to stop goes on until the coordinator has told it how: the state may be in ranks of other nodes,
// and rank 0 here may be needed to write it. If it is told nothing in half of stop_timeout, it stops by itself.
//
// After the first worker has ended with 0 the training is complete: nothing is started again, and a bad end is only
// reported. A node that is stopped ends with 130 or 143, unless a worker has failed and was not started again; then it
// ends with that worker's code (root_cause).
// When a Tick comes far too late, this process did not run for a while (a frozen container, a suspended laptop), and
// most likely the workers did not either, so none is killed for that time.
// Threads: none. Time is an argument; the caller sends SupervisorTick at `deadline`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runner/base/clock.h"
#include "runner/contract/coordination.h"
#include "runner/contract/messages.h"

namespace lockstep {

// A worker that was told to cut leaves its group within milliseconds. One that is still in a collective after this time
// cannot leave and is killed. (One that computes or writes has until the stall timeout.)
inline constexpr std::chrono::seconds kCutGrace = kFormingTimeout + std::chrono::seconds{2};
// The same for a worker that waits for its device: a kernel of a collective that the abort does not end keeps it there.
inline constexpr std::chrono::seconds kCutDeviceGrace{30};
// Default of SupervisorOptions::stop_timeout. While the node stops, rank 0 may be writing its last checkpoint. The
// workers are killed this long after the stop was requested, or after a later bad end of a worker.
inline constexpr std::chrono::seconds kStopGrace{60};
// When the job is over, workers that have not ended after this time are killed.
inline constexpr std::chrono::seconds kEndGrace{10};
// SIGKILL ends a process at once, unless it sleeps in the kernel. After this time the node gives such a worker up.
inline constexpr std::chrono::seconds kKillGrace{30};
// Restarts older than this no longer count against --max_restarts.
inline constexpr std::chrono::seconds kRestartWindow{3600};
inline constexpr int kNoProgressIncidentsMax = 3;
// Incidents in a row, without a new checkpoint between them, for which judge_end blames the machine.
inline constexpr int kMachineFaultsMax = 2;
// Wait before a restart that follows an incident without progress; doubles with each one, up to the maximum.
inline constexpr std::chrono::seconds kBackoffInitial{1};
inline constexpr std::chrono::seconds kBackoffMax{30};

struct SupervisorOptions {
  int nproc = 1;
  int max_restarts = 10;
  // From the start of a worker, or its last progress with its data, until it says hello.
  std::chrono::milliseconds start_timeout{300'000};
  std::chrono::seconds stop_timeout = kStopGrace;
  // False for programs that know nothing of Lockstep: a rank that leaves its group ends and holds nothing any more.
  bool ranks_keep_state = true;
  // True when the user gave max_restarts to `lockstep launch`: as under torchrun it is the number of restarts of the
  // whole run, which neither progress nor time clears, and no crash loop ends the run before.
  bool restarts_are_total = false;
};

// ---- events ----

struct Started {};  // the first event, once
struct WorkerSaidHello {
  int local_rank = 0;
  std::string terms;  // as Hello's
};
struct WorkerLeft {  // the worker has left its group and waits for an assignment
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
  bool on_device = false;   // it waits for its device, which may be in a collective
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
// The agent sees from the beats that the worker's process does not run. It is treated as dead.
struct WorkerSilent {
  int local_rank = 0;
  std::chrono::milliseconds since{0};
};
// A program that writes its own checkpoints has made progress that a restart does not lose. Clears the count as a
// CheckpointNews does.
struct ProgramProgressed {};
struct SupervisorTick {};
// Assignment to EndJob come from the member; a CheckpointNews also comes for a checkpoint of this node's own workers.
// After EndJob the job is over for this node.
using SupervisorEvent = std::variant<Started, WorkerSaidHello, WorkerLeft, WorkerAtStep, WorkerEnded, WorkerSilent,
                                     StopRequested, ProgramProgressed, SupervisorTick, Assignment, CutGroup, Regroup,
                                     StopJob, KillWorker, CheckpointNews, EndJob>;

// ---- outputs ----

struct StartWorker {
  int local_rank = 0;
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
struct WorkersReady {  // for the member
  bool ready = false;
  std::string terms;  // of the workers, as NodeReady's; empty when they are not ready
};
// One worker is started again, now or after the backoff.
struct Restarting {
  int local_rank = 0;
  int code = 0;
  std::string line;  // for a person: who ended how, at which step, what happens next, how many are left
};
// An observation for a person that changes nothing.
struct Remark {
  std::string line;
};
// The node is to end. The last output, emitted once.
struct Finish {
  int code = 0;
  std::string message;  // why; empty when code is 0
  bool message_names_code = false;
  int rank = -1;  // of the root cause, in the group; -1 when no worker of this node caused it
  int64_t step = -1;
};
// Cut and LeaveTogether go to all workers; WorkersReady to NodeFailed go to the member.
using SupervisorOutput =
    std::variant<StartWorker, Assignment, Cut, LeaveTogether, SignalWorkers, DumpStacks, KillProcess, WorkersReady,
                 Broken, Leave, NodeDone, NodeFailed, Restarting, Remark, Finish>;

// ---- state ----

enum class WorkerPhase {
  kStarting,  // its process runs, it has not said hello
  kAwaiting,  // an assignment
  kPlaced,    // in the group of `generation`
  kBackoff,   // not running; started again at `deadline`
  kEnded,     // not running, not to be started again (done, stopped, or the node ends)
};

struct SupervisedWorker {
  WorkerPhase phase = WorkerPhase::kStarting;
  uint64_t generation = 0;  // of its last assignment
  bool was_cut = false;     // told to cut, has not left yet
  TimePoint cut_at{};
  bool in_collective = false;
  bool on_device = false;
  std::string terms;                    // as in its Hello
  std::optional<int> code_when_killed;  // set when we kill it: the code that its end counts as
  std::string message_when_killed;
  bool is_given_up = false;    // it did not end after SIGKILL; whatever it does later is ignored
  int64_t step = -1;           // newest that it reported; -1 = none
  int64_t incidents_seen = 0;  // SupervisorState::incidents when it was started or placed, whichever came last
  std::optional<TimePoint> deadline;
  [[nodiscard]] bool alive() const { return phase != WorkerPhase::kBackoff && phase != WorkerPhase::kEnded; }
};

struct WorkerEndRecord {
  int local_rank = 0;
  int rank = 0;     // in the group; the local rank before the first assignment
  int64_t pid = 0;  // 0: none
  int code = 0;     // as it counts for the root cause
  std::string how;  // "ended with exit code 1 (Crash)", "ended with signal 9 (SIGKILL)", "did not end …"
  std::string message;
  int64_t step = -1;
  bool started_again = false;  // the worker was: this end is no reason for the node to end
};

// Why this node gives up. It ends when all its workers have been killed and the member has told the coordinator.
struct SupervisorVerdict {
  WorkerEndRecord cause;
  std::string prefix;  // of the message: "crash loop: …; "
  std::string suffix;  // "; the steps since … are lost, …"
};

struct SupervisorState {
  SupervisorOptions options;
  bool started = false;
  bool finished = false;
  std::vector<SupervisedWorker> workers;  // by local rank
  std::vector<WorkerEndRecord> ends;      // bad ends since the last assignment, in the order of time
  std::optional<Assignment> assignment;   // the newest
  bool said_ready = false;
  uint64_t broken_said = 0;    // generation that the member was told is broken
  int asked_code = 0;          // 130 or 143: a signal has asked to stop, and the coordinator was asked how
  int stop_code = 0;           // 130 or 143: told to stop
  std::set<int> signals;       // asked for so far
  std::set<int> signals_sent;  // to the workers
  bool complete = false;       // a worker has ended with 0
  bool said_done = false;
  std::optional<SupervisorVerdict> verdict;
  // Why the node leaves after rank 0, which was started a last time, has written what the other ranks hold.
  std::optional<SupervisorVerdict> leaves_because;
  bool writes_first = false;  // the node ends, and rank 0 here writes what it holds before that
  std::optional<EndJob> job_ended;
  int64_t incidents = 0;            // so far
  std::vector<TimePoint> restarts;  // incidents inside the window, since the last new checkpoint
  int64_t restarts_total = 0;       // processes started again
  int incidents_without_progress = 0;
  int machine_faults = 0;                  // incidents in a row that judge_end blames on the machine
  int64_t furthest_step = -1;              // that any worker reported; -1 = none
  int64_t furthest_incident_step = -2;     // furthest_step at the furthest incident so far
  int64_t checkpoint_step = -1;            // newest seen
  std::optional<TimePoint> stop_deadline;  // workers that are still alive then are killed
  std::optional<TimePoint> told_deadline;  // asked to stop and not told how by then: it stops by itself
  TimePoint last_event{};
  std::optional<TimePoint> deadline;  // when a Tick is wanted

  explicit SupervisorState(const SupervisorOptions& supervisor_options) : options(supervisor_options) {}
  [[nodiscard]] bool stopping() const { return stop_code != 0; }
  [[nodiscard]] bool is_asked_to_stop() const { return asked_code != 0 || stopping(); }
};

std::vector<SupervisorOutput> step(SupervisorState& state, const SupervisorEvent& event, TimePoint now);

// "exit code 1 (Crash)", "signal 9 (SIGKILL)", "exit code 13 (OutOfMemory)".
std::string describe_exit(int code);

}  // namespace lockstep
