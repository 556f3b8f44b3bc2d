// The inside of membership_simulation.h: one schedule, with its processes, network, workers and checks.
//
// Where to read what: membership_simulation.cc (shape, running, operator, faults), simulated_network.cc (connections,
// finding a coordinator), simulated_agent.cc (the three machines and what they order), simulated_workers.cc (groups,
// steps, checkpoints), simulated_checks.cc (what must hold).
// Threads: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runner/recovery/coordinator.h"
#include "runner/recovery/node_machine.h"
#include "tests/runner/recovery/membership_simulation.h"

namespace lockstep::simulation {

// ---- time, chance ----

using Micros = int64_t;  // simulated time since the start, or a length of it
constexpr Micros kMs = 1000;
constexpr Micros kSecond = 1000 * kMs;
constexpr Micros kNever = INT64_MAX;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}

  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  // low … high, both included.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  int pick(int low, int high) { return static_cast<int>(between(low, high)); }
  bool one_in(int n) { return next() % static_cast<uint64_t>(n) == 0; }
  template <typename T, size_t N>
  T one_of(const std::array<T, N>& values) {
    return values[static_cast<size_t>(between(0, static_cast<int64_t>(N) - 1))];
  }

 private:
  uint64_t state_;
};

constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15ULL ^ (b + 0x7f4a7c15ULL);
  z = (z ^ (z >> 31U)) * 0xbf58476d1ce4e5b9ULL;
  return z ^ (z >> 29U);
}

constexpr uint32_t attempt_of(uint64_t generation) { return static_cast<uint32_t>(generation >> 32U); }

// "3:1": the first generation of attempt 3.
inline std::string name_of(uint64_t generation) {
  return std::to_string(attempt_of(generation)) + ":" + std::to_string(static_cast<uint32_t>(generation));
}

// ---- workers, groups, the volume ----

// `content` depends only on the step (the maths); `bits` also on the groups that committed (rounding).
struct TrainedState {
  bool exists = false;
  uint64_t lineage = 0;
  int64_t step = 0;
  uint64_t committed_in = 0;  // generation of the last commit, or of the last fresh start
  uint64_t content = 0;
  uint64_t bits = 0;
  uint64_t synced_in = 0;  // generation of the last group it went through
};

struct Worker {
  bool alive = false;
  bool said_hello = false;
  bool hangs = false;
  bool hangs_in_collective = false;  // as its beats show it
  bool exits = false;                // nothing holds it back any more
  uint32_t life = 0;                 // +1 when its pending events become void
  uint32_t process = 0;              // +1 with each start
  uint64_t group = 0;
  int rank = -1;
  bool leaves_together = false;
  int leaving_code = 0;  // it ends when the group has left together
  int stop_code = 0;     // signalled
  TrainedState state;
  TrainedState incoming;
  Micros progress_at = 0;
};

struct RankPlace {
  int process = -1;
  int local = -1;
};

struct Group {
  uint64_t generation = 0;
  int coordinator = -1;  // process
  int world = 0;
  int nodes_placed = 0;
  int nnodes = 0;
  int arrived = 0;
  bool is_formed = false;
  bool damaged = false;  // a rank has gone: no collective completes any more
  int64_t round = 0;     // step that is being reduced
  int contributed = 0;
  bool leave = false;
  bool stop = false;
  std::vector<RankPlace> ranks;
};

struct Checkpoint {
  uint64_t generation = 0;
  bool is_final = false;
  TrainedState state;
};

// ---- processes and connections ----

// An agent with its workers: one incarnation of a pod.
struct Process {
  int rank = 0;
  uint32_t attempt = 0;
  uint64_t incarnation = 0;
  bool alive = true;
  int code = -1;
  NodeState node;
  std::unique_ptr<CoordinatorState> coordinator;
  std::deque<NodeEvent> inbox;  // one after the other, as the agent does
  bool is_draining = false;
  std::vector<NodeEvent> held;  // what the workers reported while the agent was paused
  std::optional<int> finish_code;
  Micros told_at = kNever;  // to end; its workers may take a while
  Micros offset = 0;        // of its clock
  Micros paused_until = 0;
  bool pause_holds_workers = false;
  int side = 0;  // of the partition
  std::vector<Worker> workers;
  bool seeking = false;
  uint32_t seek_life = 0;
  int connection = -1;
  std::vector<int> candidates;
  Micros node_timer = kNever;
  Micros coordinator_timer = kNever;
  // From when to when the name service lists its address.
  Micros listed_from = kNever;
  Micros listed_until = kNever;

  explicit Process(const NodeOptions& node_options) : node(node_options) {}
};

template <typename Message>
struct Pipe {
  std::vector<std::optional<Message>> queue;  // nullopt: the sender has closed
  size_t head = 0;
  Micros due = 0;               // of the last one
  bool lost = false;            // nothing arrives any more
  std::vector<Message> copies;  // that are sent a second time
};

struct Connection {
  int agent = -1;
  int coordinator = -1;
  bool in_process = false;
  bool agent_open = true;
  bool coordinator_open = true;
  std::optional<Welcome> welcome;
  std::optional<Refused> refused;
  Micros doubled_until = 0;
  Pipe<NodeMessage> up;
  Pipe<CoordinatorMessage> down;
};

// ---- events ----

enum class What : uint8_t {
  kUp,         // a = connection
  kDown,       // a = connection
  kUpAgain,    // a = connection, b = index of the copy
  kDownAgain,  // the same
  kResetUp,    // a = connection: the coordinator's side learns that it broke
  kResetDown,  // a = connection
  kNodeTimer,  // a = process; b = kTimerMoved or 0
  kCoordinatorTimer,
  kAgentBeat,   // a = process
  kInbox,       // a = process: it runs again
  kSeek,        // a = process, c = seek_life
  kSeekDecide,  // a = process, c = seek_life
  kHello,       // a = process, b = local rank, c = life; so do all up to kExit
  kArrive,      // at its group
  kSynced,      // its state
  kContribute,  // its share of a step
  kCommit,      // d: flags of the round
  kPeerLost,    //
  kCut,         //
  kExit,        // d: code
  kKilled,      // a = process, b = local rank, c = process count of the worker
  kSilent,      // the same
  kDurable,     // the same, d = checkpoint under way
  kRoundCheck,  // a = group
  kSignal,      // a = process, b = number
  kPodStart,    // a = rank, b = attempt
  kPodKill,     // a = process, b = kLeaveGraceOver or 0
  kFault,       // a = 1: an ambush
  kQuiet,       // no fault begins any more
};

struct Event {
  Micros at = 0;
  uint64_t order = 0;
  What what = What::kFault;
  int a = 0;
  int b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
};
struct Later {
  bool operator()(const Event& x, const Event& y) const { return x.at != y.at ? x.at > y.at : x.order > y.order; }
};

// In Event::b of kPodKill.
constexpr int kLeaveGraceOver = 1;
// In Event::b of a timer: look again, the clock has jumped.
constexpr int kTimerMoved = 1;
// Flags of a round, in Event::d of kCommit.
constexpr uint32_t kLeaveFlag = 1;
constexpr uint32_t kStopFlag = 2;

// The codes of a pod and of an agent that were killed. The agent is started again in the same pod, with the same
// attempt.
constexpr int kKilled = -9;
constexpr int kRestartedInPlace = -10;

enum class FaultKind {
  kWorkerCrash,
  kWorkerHang,
  kPodCrash,
  kAgentRestart,  // same attempt, another incarnation
  kReplace,       // a new pod while the old one still runs
  kBreak,         // of a connection
  kDouble,        // messages of a connection come twice, the second time late
  kPartition,
  kPause,
  kClockJump,
  kLeave,
  kSuspend,
  kResize,
  kCount,
};

class Simulation {
 public:
  Simulation(uint64_t seed, bool trace) : random_(seed), trace_(trace) { choose_shape(); }

  SimulationResult run();

 private:
  // ---- the schedule's shape ----
  void choose_shape();
  void choose_absences();
  [[nodiscard]] CoordinatorOptions coordinator_options(uint32_t attempt) const;
  [[nodiscard]] NodeOptions node_options() const;

  // ---- running ----
  void push(Micros at, What what, int a = 0, int b = 0, uint32_t c = 0, uint32_t d = 0) {
    events_.push_back({std::max(at, now_), ++order_, what, a, b, c, d});
    std::push_heap(events_.begin(), events_.end(), Later{});
  }
  void push_worker(Micros delay, What what, int process, int local, uint32_t d = 0) {
    push(now_ + delay, what, process, local, worker(process, local).life, d);
  }
  void dispatch(const Event& event);
  void dispatch_agent(const Event& event);
  void dispatch_process_of_worker(const Event& event);
  void dispatch_worker(const Event& event);
  [[nodiscard]] bool held(const Event& event);
  [[nodiscard]] bool is_over() const;

  template <typename... Parts>
  void trace(const Parts&... parts) const {
    if (!trace_) return;
    std::ostringstream text;
    (text << ... << parts);
    std::fprintf(stderr, "%10.3f %s\n", static_cast<double>(now_) / kSecond, text.str().c_str());
  }
  template <typename... Parts>
  void fail(const Parts&... parts) {
    if (!failure_.empty()) return;
    std::ostringstream text;
    text << "at " << static_cast<double>(now_) / kSecond << " s: ";
    (text << ... << parts);
    failure_ = text.str();
    trace("FAILED ", failure_);
  }
  Worker& worker(int process, int local) {
    return processes_[static_cast<size_t>(process)]->workers[static_cast<size_t>(local)];
  }
  Process& proc(int process) { return *processes_[static_cast<size_t>(process)]; }
  [[nodiscard]] const Process& proc(int process) const { return *processes_[static_cast<size_t>(process)]; }
  Connection& conn(int connection) { return *connections_[static_cast<size_t>(connection)]; }
  [[nodiscard]] std::string name(int process) const {
    return "node " + std::to_string(proc(process).rank) + "/" + std::to_string(proc(process).attempt) + "#" +
           std::to_string(process);
  }
  [[nodiscard]] bool is_current(int process) const {
    return current_[static_cast<size_t>(proc(process).rank)] == process;
  }
  [[nodiscard]] TimePoint local_time(const Process& process) const {
    return TimePoint{} + std::chrono::microseconds(now_ + process.offset);
  }
  [[nodiscard]] static Micros global_time(const Process& process, TimePoint at) {
    return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count() - process.offset;
  }

  // ---- the operator ----
  void start_pod(int rank, uint32_t attempt);
  void replace(int rank, uint32_t attempt, Micros after);
  // `is_silent`: its machine is gone, nobody gets a packet from it any more.
  void end_process(int process, int code, bool is_silent);

  // ---- network ----
  Micros delay();
  [[nodiscard]] bool reachable(int a, int b) const {
    return a == b || now_ >= partition_until_ || proc(a).side == proc(b).side;
  }
  int open_connection(int agent, int coordinator);
  void send_up(int connection, std::optional<NodeMessage> message);
  template <typename Message>
  void double_it(int connection, Pipe<Message>& pipe, const std::optional<Message>& message, What again);
  void send_again(int connection, What again, int copy);
  void send_down(int connection, std::optional<CoordinatorMessage> message);
  void close_by_agent(int connection);
  void close_by_coordinator(int connection);
  void close_of_process(int process, bool was_killed, bool is_silent);
  void break_connection(int connection);
  bool deliver_later(int connection, int receiver, What what);
  void deliver_up(int connection);
  void deliver_down(int connection);
  void hear_candidate(Process& process, int connection, const CoordinatorMessage& message);
  void reset_up(int connection);
  void reset_down(int connection);
  void begin_seeking(int process);
  void seek(int process);
  void decide_seeking(int process);

  // ---- agents ----
  void handle(int process, NodeEvent event);
  // What a worker does reaches its agent when that runs.
  void notify(int process, NodeEvent event);
  void notify_step(int process, int local);
  void run_again(int process);
  void set_timer(int process, Micros& timer, const std::optional<TimePoint>& deadline, What what);
  void ring(int process, What what);
  void perform(int process, const NodeOutput& output);
  void send_to_coordinator(int process, const NodeMessage& message);
  void step_coordinator(int process, const CoordinatorEvent& event);
  void transmit(int process, Send send);
  void leave_if_told(int process);
  void beat(int process);

  // ---- workers ----
  void start_worker(int process, int local);
  void say_hello(int process, int local);
  void end_worker(int process, int local, int code, bool is_silent);
  void signal_workers(int process, int signal);
  void exit_soon(int process, int local, int code, Micros after);
  void place_workers(int process, const Assignment& placement);
  void cut_workers(int process, uint64_t generation);
  void lose_group(int process, int local, const char* cause);
  void damage(uint64_t generation, int process, int local, bool is_silent);
  Group& group_of(uint64_t generation);
  void arrive(int process, int local);
  [[nodiscard]] const Checkpoint* newest_on_volume() const;
  void sync(Group& group);
  void synced(int process, int local);
  void go_on(int process, int local);
  void contribute(int process, int local);
  void complete_round(Group& group);
  [[nodiscard]] bool is_split(const Group& group) const;
  void commit(int process, int local, uint32_t flags);
  void leave_together(int process, int local);
  void write_checkpoint(int process, int local, Micros took, bool is_final);
  void durable(const Event& event);

  // ---- what must hold ----
  void check_generation_begins(int process, uint64_t generation);
  void check_placement_sent(int process, int connection, const Assignment& placement);
  void check_waiting(const Process& process);
  void check_coordinator(const Process& process);
  void check_sync(const Group& group, const TrainedState& source);
  void check_round(const Group& group);
  void check_ended(int process);
  void check_the_end();

  // ---- faults ----
  void inject_fault(bool is_ambush);
  void ambush();
  void inject(FaultKind kind, int process);
  void hang(int process, int local);
  void pause(int process);
  void resize();
  Micros partition_length();
  void quiet();

  Random random_;
  bool trace_;
  std::string failure_;
  SimulationCounts counts_;

  int nodes_ = 2;
  int nproc_ = 1;
  int min_nodes_ = 2;
  int wanted_nodes_ = 2;
  int max_restarts_ = 10;
  std::chrono::milliseconds rejoin_timeout_{10'000};
  std::chrono::milliseconds rendezvous_timeout_{60'000};
  std::chrono::milliseconds dns_ttl_{0};
  std::chrono::milliseconds stall_timeout_{8'000};
  Micros step_time_ = 200 * kMs;
  int64_t target_ = 40;
  int64_t checkpoint_every_ = 10;
  Micros faults_until_ = 15 * kSecond;
  Micros fault_interval_ = 3 * kSecond;
  int slow_one_in_ = 50;
  int ambush_one_in_ = 20;
  std::vector<FaultKind> kinds_;

  Micros now_ = 0;
  uint64_t order_ = 0;
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<int> current_;       // process of each rank: the newest pod; -1 before the first
  std::vector<bool> is_starting_;  // by rank: its next pod
  int starts_pending_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Group> groups_;
  std::vector<Checkpoint> volume_;
  std::vector<Checkpoint> under_way_;
  std::vector<uint64_t> canonical_;       // content by step
  std::map<int, uint64_t> newest_begun_;  // generation, by coordinator's process
  Micros partition_until_ = 0;
  bool is_quiet_ = false;
  bool has_old_completion_ = false;  // a group of a coordinator that had a successor came to the end
  Micros completed_at_ = kNever;
};

}  // namespace lockstep::simulation
