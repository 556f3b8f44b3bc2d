// NodeMachine: one node's part in a run: its place in the group, and the lives of its workers. Pure. (docs/recovery.md)
//
// Role: every node has one. It follows a coordinator (coordinator.h), which decides about the group; it starts this
// node's workers, passes assignments and cuts to them, restarts those that end, and decides when the node ends and with
// which code. What it has to report outlives a connection: it is sent again to the next coordinator.
//
// The coordinator. The machine follows none of an older attempt than the newest that it has seen, and it accepts only
// an assignment that is newer than all before, and only while all workers wait and hold what it presumes. So messages
// that an old coordinator or an old connection still delivers change nothing. Without a coordinator for
// rendezvous_timeout the node ends with 10.
//
// Restarts. A worker that ends badly is started again at once, alone; the others keep their state and wait. Each
// incident counts against max_restarts for kRestartWindow; a new checkpoint clears the count. Several ends in one
// assignment are one incident; so are the ends of several processes that were started again after the same incident and
// end before they are assigned. The node gives up, alone, when it has used up max_restarts; when one incident is
// followed by kNoProgressIncidentsMax more, none at a later step than those before it (a crash loop); when its machine
// was at fault kMachineFaultsMax times in a row; when its workers have other terms than each other (messages.h, Hello);
// and at an end that judge_end (restart_policy.h) does not restart. Whether the job ends with the node is not decided
// here: the coordinator knows more of what the run has done.
//
// Nothing is lost with a node that gives up, or with a job that ends, with any code but 5: rank 0, if it runs here and
// holds steps, writes them first. If rank 0 is the one that failed, and other ranks of this node hold steps that are in
// no checkpoint, it is started a last time, to get the state from them and write it.
//
// Stopping. A node that is asked to stop goes on until the coordinator has told it how: the state may be in ranks of
// other nodes, and rank 0 here may be needed to write it. If no answer comes in half of stop_timeout, or there is no
// coordinator, it stops by itself. After the first worker has ended with 0 the training is complete: nothing is started
// again, and a bad end is only reported. A node that is stopped ends with 130 or 143, unless a worker has failed and
// was not started again; then it ends with that worker's code (root_cause).
//
// Duties of the caller: CoordinatorSent is only for messages on the connection of the last CoordinatorFound, never
// after a FindCoordinator or a CoordinatorLost. Heartbeat, StoreCall and StoreAnswerTo pass between the workers and the
// connection without the machine, which must only learn that a message has arrived (a CoordinatorSent of any kind).
// Store calls are made only while joined. Finish is the last output; what was to be sent before it must still be sent.
// Threads: none. Time is an argument; the caller sends NodeTick at `deadline`. When it comes far too late, this process
// did not run for a while (a frozen container, a suspended laptop), and most likely the workers did not either, so
// neither they nor the coordinator are blamed for that time.
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
#include "runner/recovery/commit.h"

namespace lockstep {

// A worker that was told to cut leaves its group within milliseconds. One that is still in a collective after this time
// cannot leave and is killed. (One that computes or writes has until the stall timeout.)
inline constexpr std::chrono::seconds kCutGrace = kFormingTimeout + std::chrono::seconds{2};
// The same for a worker that waits for its device: a kernel of a collective that the abort does not end keeps it there.
inline constexpr std::chrono::seconds kCutDeviceGrace{30};
// Default of NodeOptions::stop_timeout. While the node stops, rank 0 may be writing its last checkpoint. The workers
// are killed this long after the stop was requested, or after a later bad end of a worker.
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
// Most ends of groups that are remembered. More than one is needed only when groups in a row end without a commit.
inline constexpr size_t kGroupEndsKept = 32;
// A node that gave up ends after this many heartbeat timeouts without a coordinator, because its exit code tells the
// same. (A node that is done waits for rendezvous_timeout: without its report the others would train on.)
inline constexpr int kGivenUpTimeouts = 2;

struct NodeOptions {
  int nproc = 1;
  int max_restarts = 10;
  // Without a coordinator for this long, the node ends with 10. A worker that does not say hello for this long after
  // its start, or its last progress with its data, is killed.
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
  std::chrono::seconds stop_timeout = kStopGrace;
  // False for programs that know nothing of Lockstep: a rank that leaves its group ends and holds nothing any more.
  bool ranks_keep_state = true;
  // True when the user gave max_restarts to `lockstep launch`: as under torchrun it is the number of restarts of the
  // whole run, which neither progress nor time clears, and no crash loop ends the run before.
  bool restarts_are_total = false;
};

// ---- events ----

struct Started {};  // the first event, once

// A coordinator has welcomed this node on a connection that the caller keeps. The node joins it or looks for another.
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
struct CoordinatorSent {
  CoordinatorMessage message;  // neither Welcome nor Refused
};
// Why no coordinator was found so far; for the message with which the node may end.
struct SearchFailed {
  std::string why;
};

struct WorkerHello {
  int local_rank = 0;
  std::string terms;  // as Hello's
};
struct WorkerLeft {  // the worker has left its group and waits for an assignment
  int local_rank = 0;
  uint64_t generation = 0;
  std::string cause;
  std::string message;
  StateClaim claim;  // what it holds, if it has said so
};
struct WorkerAtStep {  // from its beats
  int local_rank = 0;
  int64_t step = 0;
  bool in_collective = false;
  TimePoint progress_at{};  // last sign of progress; the epoch: none
  bool on_device = false;   // it waits for its device, which may be in a collective
};
// A worker's group has committed its first step (messages.h, Resumed).
struct WorkerResumed {
  int64_t resumed_step = 0;  // committed steps of the state that the group went on from
};
struct WorkerEnded {
  int local_rank = 0;
  int64_t pid = 0;                  // 0: it could not be started
  int code = 0;                     // as in contract/exit_code; 13 for a kill by the kernel for memory
  std::string message;              // the worker's own words; may be empty
  double detection_seconds = -1.0;  // from its last sign of life to the detection of its end; below zero: not known
};
// The agent sees from the beats that the worker's process does not run. It is treated as dead.
struct WorkerSilent {
  int local_rank = 0;
  std::chrono::milliseconds since{0};
};
// A program that writes its own checkpoints has made progress that a restart does not lose. Clears the count as a
// CheckpointNews does.
struct ProgramProgressed {};
// A rank of the user's program outlives its group (messages.h, Outlives).
struct WorkerOutlives {
  int local_rank = 0;
};
struct StopRequested {  // SIGTERM or SIGINT has reached the agent
  int signal = 0;
};
struct NodeTick {};
// CheckpointNews: this node's workers have written one.
using NodeEvent =
    std::variant<Started, CoordinatorFound, CoordinatorLost, CoordinatorRefused, CoordinatorSent, SearchFailed,
                 WorkerHello, WorkerLeft, WorkerAtStep, WorkerResumed, WorkerEnded, WorkerSilent, ProgramProgressed,
                 WorkerOutlives, CheckpointNews, StopRequested, NodeTick>;

// ---- outputs ----

struct SendToCoordinator {
  NodeMessage message;
};
// Drop the connection, if any, and look for a coordinator: resolve again, try all addresses, take the one with the
// highest generation. Goes on until CoordinatorFound.
struct FindCoordinator {};

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
// Assignment (of the node's first rank), CutGroup and LeaveTogether go to all workers. RestartDecision: one worker is
// started again, now or after a backoff, or the node gives up; the caller knows whether it is exported.
using NodeOutput = std::variant<SendToCoordinator, FindCoordinator, StartWorker, Assignment, CutGroup, LeaveTogether,
                                SignalWorkers, DumpStacks, KillProcess, RestartDecision, Remark, Finish>;

// ---- state ----

enum class WorkerPhase {
  kStarting,  // its process runs, it has not said hello
  kAwaiting,  // an assignment
  kPlaced,    // in the group of `generation`
  kBackoff,   // not running; started again at `deadline`
  kEnded,     // not running, not to be started again (done, stopped, or the node ends)
};

struct WorkerState {
  WorkerPhase phase = WorkerPhase::kStarting;
  uint64_t generation = 0;  // of its last assignment
  bool was_cut = false;     // told to cut, has not left yet
  bool outlives = false;    // it has said so
  TimePoint cut_at{};
  bool in_collective = false;
  bool on_device = false;
  std::string terms;                    // as in its Hello
  StateClaim claim;                     // what it held when it last left a group
  std::optional<int> code_when_killed;  // set when we kill it: the code that its end counts as
  std::string message_when_killed;
  bool is_given_up = false;    // it did not end after SIGKILL; whatever it does later is ignored
  int64_t step = -1;           // newest that it reported; -1 = none
  int64_t incidents_seen = 0;  // NodeState::incidents when it was started or placed, whichever came last
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
  double detection_seconds = -1.0;
  bool started_again = false;  // the worker was: this end is no reason for the node to end
};

// Why this node gives up. It ends when all its workers have ended and the coordinator knows, or cannot be reached.
struct GiveUpReason {
  WorkerEndRecord cause;
  std::string prefix;  // of the message: "crash loop: …; "
  std::string suffix;  // "; the steps since … are lost, …"
};

// How a group ended that the workers were in.
struct GroupEnd {
  uint64_t generation = 0;
  TimePoint placed_at;
  TimePoint at;
  double silent_seconds = -1.0;  // how long the coordinator was silent before it was given up
  bool step_in_flight = true;    // false: all left together at a step's end
};

struct NodeState {
  NodeOptions options;
  bool started = false;
  bool finished = false;
  TimePoint last_event{};
  std::optional<TimePoint> deadline;  // when a NodeTick is wanted

  // The coordinator and the group.
  bool joined = false;   // Join was sent to a coordinator, whose connection has not ended
  uint64_t highest = 0;  // highest generation that was seen, of any coordinator
  uint64_t placed = 0;   // generation of the workers' group, until all have left it; 0 = none
  TimePoint placed_at{};
  std::optional<Assignment> assignment;      // the newest, of the node's first rank
  uint64_t broken_reported = 0;              // generation that was reported as broken
  std::vector<GroupEnd> group_ends;          // of the newest groups, oldest first
  bool ready = false;                        // all workers wait for an assignment
  int leaving_code = 0;                      // 130 or 143: it has asked the coordinator to leave, or was told to stop
  bool done = false;                         // all workers have ended with 0, and the coordinator is to know
  std::optional<NodeFailed> failed;          // sent again on the next connection
  std::optional<int64_t> unsent_checkpoint;  // became durable without a coordinator
  std::optional<EndJob> job_ended;  // for this node at least; what a coordinator sends does not matter any more
  TimePoint last_heard{};
  std::optional<TimePoint> seeking_since;  // nothing was heard from a coordinator since
  std::string last_problem;                // why the newest search for a coordinator failed
  std::string last_refusal;                // by a coordinator, or of one by this node; noted already

  // The workers.
  std::vector<WorkerState> workers;   // by local rank
  std::vector<WorkerEndRecord> ends;  // bad ends since the last assignment, in the order of time
  int asked_code = 0;                 // 130 or 143: a signal has asked to stop, and the coordinator was asked how
  int stop_code = 0;                  // 130 or 143: told to stop
  std::set<int> signals;              // asked for so far
  std::set<int> signals_sent;         // to the workers
  bool complete = false;              // a worker has ended with 0
  std::optional<GiveUpReason> gave_up;
  // Why the node leaves after rank 0, which was started a last time, has written what the other ranks hold.
  std::optional<GiveUpReason> leaves_because;
  bool writes_first = false;        // the node ends, and workers here write what they hold before that
  int64_t incidents = 0;            // so far
  std::vector<TimePoint> restarts;  // incidents inside the window, since the last new checkpoint
  int64_t restarts_total = 0;       // processes started again
  int incidents_without_progress = 0;
  int machine_faults = 0;                    // incidents in a row that judge_end blames on the machine
  int64_t furthest_step = -1;                // that any worker reported; -1 = none
  int64_t kept_step = -1;                    // the same since the run last lost committed steps
  int64_t placed_step = -1;                  // kept_step when the workers were last placed
  bool has_lost_steps = false;               // committed ones, since the newest incident
  int64_t incident_step = -2;                // kept_step at the newest incident
  int64_t furthest_incident_step = -2;       // furthest_step at the furthest incident so far
  int64_t checkpoint_step = -1;              // newest seen
  std::optional<TimePoint> stop_deadline;    // workers that are still alive then are killed
  std::optional<TimePoint> answer_deadline;  // asked to stop and not told how by then: it stops by itself

  explicit NodeState(const NodeOptions& node_options) : options(node_options) {}
  [[nodiscard]] bool stopping() const { return stop_code != 0; }
  [[nodiscard]] bool is_asked_to_stop() const { return asked_code != 0 || stopping(); }
};

std::vector<NodeOutput> step(NodeState& state, const NodeEvent& event, TimePoint now);

// "exit code 1 (Crash)", "signal 9 (SIGKILL)", "exit code 13 (OutOfMemory)".
std::string describe_exit(int code);

}  // namespace lockstep
