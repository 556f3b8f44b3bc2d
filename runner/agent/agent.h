// Agent: runs `lockstep run` on one node. It starts the workers, relays their output, forwards their store requests,
// shows progress, serves HTTP, forwards signals, and exits with the exit code of the root cause. On node 0 it also
// hosts the coordinator and reports for the whole job.
//
// Role: the I/O of a pure state machine, the NodeMachine, on one event loop. Its events go through a queue, so that all
// outputs of a step are performed before the next step.
// Threads: everything runs on the thread that calls run(), except the threads of the status server, which reads the
// StatusBoard, of GpuUseReader, of RunFolderView, and of Asio's resolver, which does not touch the agent.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runner/agent/agent_metrics.h"
#include "runner/agent/control_socket.h"
#include "runner/agent/coordinator_link.h"
#include "runner/agent/coordinator_server.h"
#include "runner/agent/devices.h"
#include "runner/agent/gpu_use.h"
#include "runner/agent/job_record.h"
#include "runner/agent/node_workers.h"
#include "runner/agent/operator_requests.h"
#include "runner/agent/program_ranks.h"
#include "runner/agent/run_folder_view.h"
#include "runner/agent/status_server.h"
#include "runner/agent/terminal.h"
#include "runner/recovery/coordinator.h"
#include "runner/recovery/node_machine.h"

namespace lockstep {

// How often the workers' beat pages are read.
inline constexpr std::chrono::milliseconds kBeatsInterval{200};
// Longest time at the end for the last messages to be sent, and how often that is checked.
inline constexpr std::chrono::seconds kLastWordsTimeout{1};
inline constexpr std::chrono::milliseconds kSentCheckInterval{10};
// Longest time at the end for the reader of our output (a terminal, a pipe) to read the rest.
inline constexpr std::chrono::seconds kReaderPatience{10};

struct AgentOptions {
  WorkerCommand worker;
  std::optional<ProgramCommand> program;  // set: the ranks run this program of the user's, and `worker` is not used
  std::string job;                        // for /status
  std::string job_namespace;              // likewise; empty without a TrainJob
  std::string job_uid;                    // likewise
  std::string workload;                   // for /status and the progress line
  int node_rank = 0;
  CoordinatorAddress coordinator;          // where node 0's agent listens; used when there may be several nodes
  CoordinatorOptions coordinator_options;  // for node 0; every node uses job, token and attempt in its Greet
  uint64_t incarnation = 0;                // random
  std::string host;                        // this node's name, for messages
  NodeOptions node;
  TerminalOptions terminal;
  std::string termination_log;  // path; empty = none
  std::string oom_kill_path;    // see OomKillCounter
  std::string control_folder;   // folder of the control socket; empty = none
  std::string run_folder;       // where the run writes; node 0 shows it on its page; empty for a program
  bool has_page = true;         // a status server shows the board
  // Set when a launcher has restarted this agent: its restart decision.
  std::optional<RestartDecision> started_because;
};

// Most decisions that wait for a connection to the coordinator; the oldest are dropped.
inline constexpr size_t kPendingDecisionsMax = 16;

class Agent {
 public:
  // gpus: null when none is used.
  Agent(AgentOptions options, std::unique_ptr<GpuMonitor> gpus);

  // What the status server shows; lives as long as the agent.
  [[nodiscard]] const StatusBoard& board() const { return board_; }

  // The run's folder, or a program's figures, for the status server; null except on node 0, the only node that surely
  // has them.
  [[nodiscard]] RunFolderView* run_folder() { return run_folder_.get(); }

  // Listens for the other nodes, if there may be any. kUnavailable names the port. Call once, before run().
  Status open();
  // To be called before run() if no status server could be started.
  void go_without_page() { options_.has_page = false; }
  // Returns the exit code (contract/exit_code). By then all workers have ended, except one that even SIGKILL does not
  // end, or those that a second Ctrl-C has just killed. Call once.
  int run();
  // The functions for the operator's requests; they may be called from any thread while run() runs.
  [[nodiscard]] OperatorControl operator_control();
  // Removes the control socket.
  void close() { control_.reset(); }

 private:
  [[nodiscard]] bool is_first() const { return options_.node_rank == 0; }
  [[nodiscard]] bool may_have_peers() const { return options_.coordinator_options.max_nodes > 1; }
  [[nodiscard]] int nproc() const { return options_.node.nproc; }
  // The rank of a worker in the newest group; before the first group, the expected one.
  [[nodiscard]] int rank_of(int local_rank) const { return first_rank_ + local_rank; }
  WorkerStatus& status_of(int local_rank) { return local_workers_[static_cast<size_t>(local_rank)]; }

  // Signals and children.
  void wait_for_children();
  void wait_for_stop_signals();
  void on_stop_signal(int signal);
  void print_stopping(int signal);

  // Workers.
  std::unique_ptr<NodeRanks> make_ranks();
  NodeRanks::Handlers worker_handlers();
  void on_worker_end(const WorkerEnd& worker_end);
  // Records the end in the status and passes it to the state machine.
  void record_worker_end(const WorkerEnd& worker_end);
  void on_message(int local_rank, const WorkerMessage& message);
  void on_store_request(int local_rank, const StoreRequest& request);
  void on_left(int local_rank, const Left& left);
  void on_resumed(int local_rank, const Resumed& resumed);
  void record_in_folder(const Resumed& resumed, const std::optional<Recovery>& recovery);
  void on_line(int local_rank, bool to_stderr, const std::string& line);
  void on_unfinished(int local_rank, bool to_stderr, const std::string& text);
  [[nodiscard]] std::string prefix_of(int local_rank) const;

  // Beats.
  void arm_beats_timer();
  void read_all_beats();
  void read_beats(int local_rank, const BeatSnapshot& beats, int64_t now_ns, bool may_judge_silence);
  void send_heartbeat(int64_t now_ns);
  void note_commit(const BeatSnapshot& beats);
  std::optional<Commit> newest_commit();  // newest commit that any worker of this node has ever made

  // The coordinator.
  std::unique_ptr<CoordinatorServer> make_server();
  std::shared_ptr<CoordinatorLink> make_link();
  void on_refused(Refused refused);
  void on_coordinator_message(const CoordinatorMessage& message);
  void on_news(const GroupBroke& broke);
  void on_news(const GroupPlaced& placed);
  void on_news(const BrokenBefore& before);
  void on_news(const WorkerEndedElsewhere& ended);
  void on_news(const DecidedElsewhere& decided);
  // A decision of this node, or of the launcher that started this agent: shown on this node's page and
  // sent to node 0.
  void on_decision(const RestartDecision& decision);
  void count_decision(int node, const RestartDecision& decision);
  void send_pending_decisions();
  void remember(WorkerFailure failure);
  void on_seek_problem(const std::string& text);
  void on_note(const Note& note);

  // Passes the event to the state machine and performs the outputs.
  void handle(NodeEvent event);
  void perform(const SendToCoordinator& output);
  void perform(const FindCoordinator& output);
  void perform(const StartWorker& output);
  void perform(const Assignment& first);
  void perform(const CutGroup& output);
  void perform(const LeaveTogether& output);
  void perform(const SignalWorkers& output);
  void perform(const DumpStacks& output);
  void perform(const KillProcess& output);
  void perform(const RestartDecision& output);
  void perform(const Remark& output);
  void perform(const Finish& output);
  void send_to_workers(const AgentMessage& message);

  void end(const Finish& finish);
  void wait_until_sent();
  [[nodiscard]] bool has_sent_all() const;
  void arm_deadline_timer();
  void arm_display_timer();

  // What others see.
  void publish();
  void fill_job_status();
  void fill_workers();
  // True when the run is ending. Progress is not shown any more then, so that an older figure does not follow the
  // workers' last lines.
  [[nodiscard]] bool is_ending() const;
  [[nodiscard]] RunPhase run_phase() const;
  [[nodiscard]] ProgressView progress_view();
  [[nodiscard]] std::optional<LoadingStatus> loading() const;

  // The control socket (agent_control.cc).
  void open_control_socket();
  void on_control(const ControlRequest& request, const ControlSocket::Answer& answer);
  void control(const GetStatus& request, const ControlSocket::Answer& answer);
  void control(const WaitForRecoveries& request, const ControlSocket::Answer& answer);
  void control(const ReportDecision& request, const ControlSocket::Answer& answer);
  void answer_recoveries();

  struct RecoveriesWaiter {
    int64_t after = 0;
    ControlSocket::Answer answer;
    boost::asio::steady_timer timer;
  };

  AgentOptions options_;
  PosixFileSystem fs_;
  boost::asio::io_context loop_;
  std::unique_ptr<GpuUseReader> gpu_use_;  // null without GPUs
  boost::asio::signal_set stop_signals_;
  boost::asio::signal_set child_signals_;
  boost::asio::steady_timer beats_timer_;
  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer display_timer_;
  boost::asio::steady_timer sent_check_timer_;
  Terminal terminal_;
  std::unique_ptr<NodeRanks> workers_;
  NodeState node_;
  std::unique_ptr<CoordinatorServer> server_;  // node 0
  std::shared_ptr<CoordinatorLink> link_;
  std::unique_ptr<ControlSocket> control_;
  std::unique_ptr<RunFolderView> run_folder_;  // node 0
  bool has_recorded_start_ = false;            // in recoveries.jsonl
  JobRecord job_;
  std::deque<NodeEvent> events_;
  bool is_handling_ = false;

  // What was last read from each worker's page, by local rank.
  struct Seen {
    int64_t step = -1;
    bool in_collective = false;
    bool on_device = false;
    int64_t changed_ns = 0;
    bool is_reported_silent = false;
    double detection_seconds = -1.0;  // from its last sign of life to the detection of its end; below zero: not known
  };
  std::vector<Seen> seen_;
  std::optional<Commit> newest_commit_;
  int64_t durable_step_ = -1;  // of the newest checkpoint, or what a program has kept
  int64_t beats_read_ns_ = 0;
  int64_t heartbeat_ns_ = 0;
  int first_rank_ = 0;
  uint64_t generation_ = 0;  // of the newest placement
  bool job_ended_ = false;   // the coordinator has sent EndJob

  StatusBoard board_;
  RunStatus status_;
  std::vector<WorkerStatus> local_workers_;
  DecisionCounts restarts_;
  DecisionCounts gave_up_;
  std::deque<RestartDecision> pending_decisions_;
  std::string last_problem_printed_;
  std::optional<TimePoint> armed_deadline_;
  std::optional<TimePoint> send_deadline_;
  std::list<RecoveriesWaiter> recoveries_waiters_;
  int interrupts_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace lockstep
