// Agent: `lockstep run` at work. Starts the workers, relays what they print, answers their store requests, shows
// progress, serves HTTP, forwards signals, restarts after a failure, and ends with the root cause's exit code.
//
// Role: the thin I/O side of the supervisor (supervisor.h decides, this does) on one event loop.
// Threads: everything runs on the thread that calls run(); only the status server has threads of its own, which read
// the StatusBoard.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/agent/devices.h"
#include "runner/agent/local_link.h"
#include "runner/agent/output_relay.h"
#include "runner/agent/status_server.h"
#include "runner/agent/store.h"
#include "runner/agent/supervisor.h"
#include "runner/agent/terminal.h"
#include "runner/agent/worker_process.h"

namespace lockstep {

struct AgentOptions {
  WorkerCommand worker;
  std::string job;       // for /status
  std::string workload;  // for /status and the progress line
  SupervisorOptions supervisor;
  TerminalOptions terminal;
  std::string termination_log;  // path; empty = none
  std::string oom_kill_path;    // see OomKillCounter
};

class Agent {
 public:
  // gpus: null when none is used.
  Agent(AgentOptions options, std::unique_ptr<GpuMonitor> gpus);

  // What the status server shows; lives as long as the agent.
  [[nodiscard]] const StatusBoard& board() const { return board_; }

  // Returns the exit code (contract/exit_code). No worker is alive then. Call once.
  int run();

 private:
  struct Worker {
    int local_rank = 0;
    pid_t pid = 0;
    bool alive = true;
    std::shared_ptr<LocalLink> link;
    std::shared_ptr<OutputRelay> out;
    std::shared_ptr<OutputRelay> err;
    bool killed_by_us = false;
    std::string last_words;  // why it says it fails
  };

  void wait_for_children();
  void wait_for_stop_signals();
  void on_stop_signal(int signal);
  void reap_children();
  void on_worker_end(Worker& worker, int wait_status);
  void on_message(Worker& worker, const WorkerMessage& message);
  void on_bad_line(Worker& worker, const Error& error);

  // Feeds the supervisor and does what it says.
  void apply(const SupervisorEvent& event);
  void perform(const StartWorkers& output);
  void perform(const SendAssignments& output);
  void perform(const SignalWorkers& output);
  void perform(const KillWorkers& output);
  void perform(const Restarting& output);
  void perform(const Finish& output);

  Status start_worker(int local_rank);
  std::shared_ptr<OutputRelay> relay(int fd, int rank, bool to_stderr);
  void kill_workers();
  void end(const Finish& finish);
  void send_answers(const std::vector<StoreAnswer>& answers);
  void arm_deadline_timer();
  void arm_display_timer();
  void publish();
  void publish_agent_metrics();
  // Progress is past: the workers' own last words are not to be followed by an older figure.
  [[nodiscard]] bool is_ending() const;
  [[nodiscard]] RunPhase run_phase() const;
  [[nodiscard]] ProgressView progress_view();

  AgentOptions options_;
  std::unique_ptr<GpuMonitor> gpus_;
  boost::asio::io_context loop_;
  boost::asio::signal_set stop_signals_;
  boost::asio::signal_set child_signals_;
  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer display_timer_;
  Terminal terminal_;
  OomKillCounter oom_kills_;
  SupervisorState supervisor_;
  KeyValueStore store_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by local rank; of the current generation
  StatusBoard board_;
  RunStatus status_;
  std::map<std::string, int64_t> restarts_by_reason_;
  std::vector<GpuUse> gpu_use_;
  std::optional<TimePoint> gpu_use_read_;
  std::optional<TimePoint> armed_deadline_;
  int interrupts_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace lockstep
