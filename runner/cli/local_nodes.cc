#include "runner/cli/local_nodes.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "runner/agent/control_socket.h"
#include "runner/agent/output_relay.h"
#include "runner/agent/termination_log.h"
#include "runner/base/fork.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/base/random_hex.h"
#include "runner/cli/control_client.h"
#include "runner/cli/parse_command.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/recovery/node_restarts.h"

namespace lockstep {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// An agent that is stopped (SIGSTOP) is replaced after so many heartbeat timeouts. The coordinator declares its node
// lost after one; but an agent that continues later still has its workers' state, which a new one would not have.
constexpr int kStoppedPatience = 4;
constexpr std::chrono::milliseconds kStoppedPollInterval{500};
// Longest wait for an agent's answer. Without it, a restart may count against the limits although there was progress.
constexpr std::chrono::milliseconds kProgressAnswerTimeout{500};

Error unavailable(const std::string& what) {
  return Error{ErrorCode::kUnavailable, what + ": " + std::strerror(errno)};
}

// Another program may take the port before node 0 does; then node 0 fails with a message about it.
Result<int> free_port() {
  using Tcp = boost::asio::ip::tcp;
  boost::asio::io_context loop;
  Tcp::acceptor acceptor(loop);
  boost::system::error_code error;
  acceptor.open(Tcp::v4(), error);
  if (!error) acceptor.bind(Tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0), error);
  if (error) return Error{ErrorCode::kUnavailable, "no free port: " + error.message()};
  return int{acceptor.local_endpoint().port()};
}

// Runs between fork and exec (see base/fork.h).
[[noreturn]] void run_child(char* const* arguments, char* const* environment, const AgentDescriptors& fds) {
  if (fds.stdout_fd >= 0) ::dup2(fds.stdout_fd, STDOUT_FILENO);
  if (fds.stderr_fd >= 0) ::dup2(fds.stderr_fd, STDERR_FILENO);
  reset_signals();
  ::execve(arguments[0], arguments, environment);
  ::_exit(1);
}

// The termination message that an agent wrote (agent/termination_log.h).
struct TerminationMessage {
  std::string message;
  bool job_ended = false;
  int64_t step = -1;  // the highest that it knew to be committed; below zero: it has left no words
};
TerminationMessage read_termination_message(int fd) {
  std::array<char, kTerminationMessageBytesMax> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  TerminationMessage termination;
  const Result<Json> json = parse_json(std::string_view(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))),
                                       "the termination message");
  if (!json.ok() || !json->is_object()) return termination;
  if (json->contains("message") && json->at("message").is_string()) termination.message = json->at("message");
  if (json->contains("step") && json->at("step").is_number_integer()) termination.step = json->at("step");
  termination.job_ended = json->contains("jobEnded") && json->at("jobEnded") == true;
  return termination;
}

RestartDecision restart_decision(const NodeDecision& decision) {
  return {.level = decision.level,
          .reason = exit_reason(decision.code),
          .line = decision.line,
          .gives_up = decision.gives_up,
          .is_exported = false};
}

class LocalNodes {
 public:
  LocalNodes(FileSystem& fs, const LocalNodesOptions& options, LocalNetwork network, std::string program)
      : fs_(fs),
        options_(options),
        network_(std::move(network)),
        program_(std::move(program)),
        stop_signals_(loop_, SIGINT, SIGTERM),
        child_signals_(loop_, SIGCHLD),
        deadline_timer_(loop_),
        nodes_(NodesOptions{.nodes = options.nodes,
                            .limits = {.max_restarts = options.max_restarts},
                            .has_steps = options.program.empty(),
                            .first_attempt = static_cast<uint32_t>(std::time(nullptr)),
                            .stop_timeout = options.stop_timeout}),
        agents_(static_cast<size_t>(options.nodes)),
        checkpoint_step_at_start_(newest_checkpoint_step()) {
    if (!ignores_hangup()) stop_signals_.add(SIGHUP);
  }

  ~LocalNodes() {
    for (Agent& agent : agents_) {
      if (agent.termination_fd >= 0) ::close(agent.termination_fd);
    }
  }
  LocalNodes(const LocalNodes&) = delete;
  LocalNodes& operator=(const LocalNodes&) = delete;

  int run() {
    wait_for_stop_signals();
    wait_for_children();
    apply(NodesStarted{});
    loop_.run();
    return exit_code_;
  }

 private:
  struct Agent {
    pid_t pid = 0;
    bool alive = false;
    std::shared_ptr<OutputRelay> out;  // null: it writes to our own terminal
    std::shared_ptr<OutputRelay> err;
    int termination_fd = -1;
    std::optional<TimePoint> stopped_since;  // by SIGSTOP or the like
  };

  void wait_for_stop_signals() {
    stop_signals_.async_wait([this](boost::system::error_code error, int signal) {
      if (error) return;
      apply(NodesStopRequested{signal == SIGHUP ? SIGTERM : signal});  // SIGHUP: the terminal was closed
      wait_for_stop_signals();
    });
  }

  void wait_for_children() {
    child_signals_.async_wait([this](boost::system::error_code error, int) {
      if (error) return;
      reap();
      wait_for_children();
    });
  }

  void reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
      const auto it =
          std::find_if(agents_.begin(), agents_.end(), [pid](const Agent& a) { return a.alive && a.pid == pid; });
      if (it == agents_.end()) continue;
      const int node = static_cast<int>(it - agents_.begin());
      if (WIFSTOPPED(status)) {
        it->stopped_since = now();
      } else if (WIFCONTINUED(status)) {
        it->stopped_since.reset();
      } else {
        on_end(node, *it, status);
      }
    }
    arm_deadline_timer();
  }

  void on_end(int node, Agent& agent, int status) {
    agent.alive = false;
    agent.stopped_since.reset();
    if (agent.out != nullptr) agent.out->finish();
    if (agent.err != nullptr) agent.err->finish();
    const TerminationMessage termination = read_termination_message(agent.termination_fd);
    NodeEnded end{.node = node,
                  .pid = agent.pid,
                  .code = exit_code_of_wait_status(status),
                  .message = termination.message,
                  .job_ended = termination.job_ended,
                  .step = termination.step};
    if (end.code != 0) find_progress(end);
    apply(end);
  }

  // An agent that a signal has ended could not say how far its ranks were. The agents that are left may know it, and
  // the run's folder has the checkpoints.
  void find_progress(NodeEnded& end) {
    if (const int64_t newest = newest_checkpoint_step(); newest > checkpoint_step_at_start_)
      end.checkpoint_step = newest;
    for (size_t node = 0; node < agents_.size(); ++node) {
      if (!agents_[node].alive || agents_[node].stopped_since || options_.control_folder.empty()) continue;
      Result<ControlClient> client = ControlClient::connect(options_.control_folder, static_cast<int>(node));
      if (!client.ok()) continue;
      const Result<Json> answer = client->ask({{"command", "status"}}, kProgressAnswerTimeout);
      if (!answer.ok()) continue;
      end.step = std::max(end.step, answer->value("step", int64_t{-1}));
      end.checkpoint_step = std::max(end.checkpoint_step, answer->value("durable_step", int64_t{-1}));
    }
  }

  // Below zero: there is none, or nobody can tell.
  int64_t newest_checkpoint_step() {
    if (options_.run_folder.empty()) return -1;
    const Result<std::vector<CheckpointEntry>> entries = list_checkpoints(fs_, options_.run_folder);
    int64_t newest = -1;
    if (!entries.ok()) return newest;
    for (const CheckpointEntry& entry : *entries) {
      if (!entry.error) newest = std::max(newest, entry.step);
    }
    return newest;
  }

  // ---- what was decided ----

  void apply(const NodesEvent& event) {
    for (const NodesOutput& output : step(nodes_, event, now())) {
      std::visit([this](const auto& o) { perform(o); }, output);
    }
    arm_deadline_timer();
  }

  void perform(const StartNode& output) {
    if (const Status started = start(output.node, output.attempt); !started.ok()) {
      say("lockstep: cannot start node " + std::to_string(output.node) + ": " + started.error().message);
      kill_all();
      end(code_of(ExitCode::kCrash), started.error().message);
    }
  }

  void perform(const SignalNodes& output) {
    for (const Agent& agent : agents_) {
      if (agent.alive) ::kill(agent.pid, output.signal);
    }
  }

  void perform(const KillNode& output) {
    const Agent& agent = agents_[static_cast<size_t>(output.node)];
    if (agent.alive) ::kill(agent.pid, SIGKILL);
  }

  void perform(const NodeDecision& output) {
    last_line_ = output.line;
    say("lockstep: " + output.line);
    if (output.level.empty()) return;
    if (output.gives_up) return send_to_node_0(restart_decision(output));
    pending_decision_ = output;
  }

  // A new agent gets the decision in its environment (start()). When none is started, because the job ends, node
  // 0's agent gets it through its control socket.
  void send_to_node_0(const RestartDecision& decision) const {
    if (options_.control_folder.empty() || !agents_[0].alive) return;
    const Result<int> connection = connect_control_socket(options_.control_folder, 0);
    if (!connection.ok()) return;  // the agent is ending, starting or stopped; the decision is in the log anyway
    const std::string line = decision_request(decision) + "\n";
    [[maybe_unused]] const ssize_t sent = ::send(*connection, line.data(), line.size(), MSG_NOSIGNAL);
    ::close(*connection);
  }

  void perform(const FinishNodes& output) {
    // The agents have printed why the run fails, and the decision's line what follows, so nothing is printed here.
    const bool is_new = output.node >= 0 && last_line_.find(output.message) == std::string::npos;
    if (output.code != 0 && is_new) say("lockstep: " + output.message);
    end(output.code, output.message);
  }

  void end(int code, const std::string& message) {
    exit_code_ = code;
    write_termination_log(options_.termination_log, Termination{.exit_code = code, .message = message});
    loop_.stop();
  }

  void kill_all() {
    for (const Agent& agent : agents_) {
      if (agent.alive) ::kill(agent.pid, SIGKILL);
    }
  }

  // ---- starting ----

  Status start(int node, uint32_t attempt) {
    Agent& agent = agents_[static_cast<size_t>(node)];
    if (agent.termination_fd >= 0) ::close(agent.termination_fd);
    agent = Agent{};
    agent.termination_fd = ::memfd_create("lockstep-termination-message", MFD_CLOEXEC);
    if (agent.termination_fd < 0) return unavailable("no memory for its termination message");
    NodeLaunch launch = node_launch(options_, network_, node, attempt);
    if (pending_decision_ && (pending_decision_->level == "gang" ? node == 0 : node == pending_decision_->node)) {
      launch.environment[std::string(env::kStartedBecause)] = encode(NodeMessage(restart_decision(*pending_decision_)));
      pending_decision_.reset();
    }
    const auto path_of = [](int fd) { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd); };
    launch.environment[std::string(env::kTerminationLog)] = path_of(agent.termination_fd);
    // Node 0 writes to the terminal itself, because of its progress line.
    std::array<int, 2> out{-1, -1};
    std::array<int, 2> err{-1, -1};
    if (node != 0 && (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0)) {
      return unavailable("no pipe");
    }
    agent.pid = start_agent(program_, launch, AgentDescriptors{.stdout_fd = out[1], .stderr_fd = err[1]});
    const Status forked = agent.pid > 0 ? Status() : unavailable("no process");
    for (const int fd : {out[1], err[1]}) {
      if (fd >= 0) ::close(fd);
    }
    if (!forked.ok()) return forked;
    agent.alive = true;
    if (node != 0) {
      agent.out = relay(node, out[0], false);
      agent.err = relay(node, err[0], true);
    }
    return {};
  }

  std::shared_ptr<OutputRelay> relay(int node, int fd, bool to_stderr) {
    const std::string prefix = "[node " + std::to_string(node) + "] ";
    auto relay = std::make_shared<OutputRelay>(
        loop_, fd, [this, prefix, to_stderr](const std::string& line) { write_line(prefix + line, to_stderr); });
    relay->start();
    return relay;
  }

  // ---- output ----

  void say(const std::string& line) const { write_line(line, true); }

  // Node 0's progress line may be on the terminal. It is erased first, and node 0 draws it again at the next update.
  void write_line(const std::string& line, bool to_stderr) const {
    const std::string text = (options_.terminal.live ? "\r\033[K" : "") + line + "\n";
    [[maybe_unused]] const ssize_t written =
        ::write(to_stderr ? STDERR_FILENO : STDOUT_FILENO, text.data(), text.size());
  }

  // ---- time ----

  void arm_deadline_timer() {
    std::optional<TimePoint> next = nodes_.deadline;
    for (const Agent& agent : agents_) {
      if (!agent.stopped_since) continue;
      const TimePoint look =
          std::max(*agent.stopped_since + kStoppedPatience * options_.heartbeat_timeout, now() + kStoppedPollInterval);
      if (!next || look < *next) next = look;
    }
    deadline_timer_.cancel();
    if (!next) return;
    deadline_timer_.expires_at(*next);
    deadline_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) on_deadline();
    });
  }

  void on_deadline() {
    for (size_t node = 0; node < agents_.size(); ++node) {
      const std::optional<TimePoint> since = agents_[node].stopped_since;
      if (!since || now() - *since < kStoppedPatience * options_.heartbeat_timeout) continue;
      apply(NodeSilent{.node = static_cast<int>(node),
                       .since = std::chrono::duration_cast<std::chrono::milliseconds>(now() - *since)});
    }
    apply(NodesTick{});
  }

  FileSystem& fs_;
  const LocalNodesOptions& options_;  // outlives this object: owned by run_local_nodes
  LocalNetwork network_;
  std::string program_;
  boost::asio::io_context loop_;
  boost::asio::signal_set stop_signals_;
  boost::asio::signal_set child_signals_;
  boost::asio::steady_timer deadline_timer_;
  NodesState nodes_;
  std::vector<Agent> agents_;         // by node
  int64_t checkpoint_step_at_start_;  // an earlier start of the run has written it
  std::string last_line_;
  std::optional<NodeDecision> pending_decision_;  // a decision that no agent has received yet
  int exit_code_ = code_of(ExitCode::kCrash);
};

}  // namespace

std::vector<std::string> gpus_of_node(const std::vector<std::string>& gpus, int nodes, int nproc, int node) {
  const auto gpus_per_node = static_cast<size_t>(nproc);
  if (gpus.size() < gpus_per_node * static_cast<size_t>(nodes)) return gpus;
  const auto first = gpus.begin() + static_cast<std::ptrdiff_t>(gpus_per_node) * node;
  return {first, first + nproc};
}

NodeLaunch node_launch(const LocalNodesOptions& options, const LocalNetwork& network, int node, uint32_t attempt) {
  const bool is_launch = !options.program.empty();
  NodeLaunch launch{.arguments = {is_launch ? "launch" : "run"}, .environment = options.environment};
  launch.arguments.insert(launch.arguments.end(), options.arguments.begin(), options.arguments.end());
  const auto add = [&launch](const std::string& flag, const std::string& value) {
    launch.arguments.push_back("--" + flag + "=" + value);
  };
  // Only node 0 has a status page, which shows the whole job; and a taken port must not end another node.
  const bool has_status = node == 0 ? options.status_port_given : true;
  const int status_port = node == 0 ? options.status_port : 0;
  add("local_nodes", "auto");
  add("nnodes", std::to_string(options.min_nodes) + ":" + std::to_string(options.nodes));
  add("node_rank", std::to_string(node));
  add("coordinator", network.coordinator_host + ":" + std::to_string(network.coordinator_port));
  add("nproc", std::to_string(options.nproc));
  if (options.share_cores && !is_launch)
    add("threads", std::to_string(std::max(1, options.cores / (options.nodes * options.nproc))));
  if (has_status) add("status_port", std::to_string(status_port));
  if (options.gpus.empty() && !is_launch) add("device", "cpu");
  if (is_launch) {
    launch.arguments.emplace_back("--");
    launch.arguments.insert(launch.arguments.end(), options.program.begin(), options.program.end());
  }

  Environment& environment = launch.environment;
  for (const std::string_view name :
       {env::kNodeRank, env::kNumNodes, env::kMinNodes, env::kMaxNodes, env::kNprocPerNode, env::kCoordinator,
        env::kJobCompletionIndex, env::kStartedBecause}) {
    environment.erase(std::string(name));
  }
  environment[std::string(env::kToken)] = network.token;
  environment[std::string(env::kCommandLine)] = options.command_line;
  environment[std::string(env::kPodAttempt)] = std::to_string(attempt);
  if (is_launch) environment[std::string(env::kControlFolder)] = options.control_folder;
  if (!options.gpus.empty()) {
    environment[std::string(env::kCudaVisibleDevices)] =
        joined(gpus_of_node(options.gpus, options.nodes, options.nproc, node), ",");
  }
  return launch;
}

pid_t start_agent(const std::string& program, const NodeLaunch& launch, const AgentDescriptors& descriptors) {
  std::vector<std::string> arguments{program};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<std::string> environment;
  for (const auto& [name, value] : launch.environment) environment.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);
  const pid_t pid = fork_bound_child();
  if (pid == 0) run_child(argv.data(), envp.data(), descriptors);
  return pid;
}

int run_local_nodes(FileSystem& fs, const LocalNodesOptions& options) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail(Error{ErrorCode::kUnavailable, "cannot read /proc/self/exe: " + error.message()});
  std::signal(SIGPIPE, SIG_IGN);
  const Result<int> port = free_port();
  if (!port.ok()) return fail(port.error());
  LocalNetwork network{.coordinator_host = kLoopback, .coordinator_port = *port, .token = random_hex(64)};
  if (!options.warning.empty()) std::fprintf(stderr, "%s\n", options.warning.c_str());
  std::printf("starting %d nodes with %s each on this machine\n", options.nodes, plural(options.nproc, "rank").c_str());
  std::fflush(nullptr);
  return LocalNodes(fs, options, std::move(network), program.string()).run();
}

}  // namespace lockstep
