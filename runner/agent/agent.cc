#include "runner/agent/agent.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <utility>

#include "runner/agent/termination_log.h"
#include "runner/base/build_info.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/metric_names.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kGpuUseInterval{1};  // NVML's own figures are averages over about a second

// Overloads in one object, for std::visit.
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;  // clang 14 does not deduce it

TimePoint now() { return std::chrono::steady_clock::now(); }

bool is_failure(int code) {
  return code != 0 && code != static_cast<int>(ExitCode::kInterrupted) &&
         code != static_cast<int>(ExitCode::kTerminated);
}

MetricFamily family_of(const MetricName& name, std::vector<MetricSample> samples) {
  return MetricFamily{
      .name = std::string(name.name), .help = std::string(name.help), .type = name.type, .metrics = std::move(samples)};
}

MetricSample sample_of(std::map<std::string, std::string> labels, double value) {
  MetricSample sample;
  sample.labels = std::move(labels);
  sample.value = value;
  return sample;
}

}  // namespace

Agent::Agent(AgentOptions options, std::unique_ptr<GpuMonitor> gpus)
    : options_(std::move(options)),
      gpus_(std::move(gpus)),
      stop_signals_(loop_, SIGINT, SIGTERM),
      child_signals_(loop_, SIGCHLD),
      deadline_timer_(loop_),
      display_timer_(loop_),
      terminal_(options_.terminal, STDOUT_FILENO, STDERR_FILENO),
      oom_kills_(options_.oom_kill_path),
      supervisor_(options_.supervisor) {
  status_.job = options_.job;
  status_.workload = options_.workload;
  status_.start_time_unix_seconds = std::time(nullptr);
}

int Agent::run() {
  wait_for_stop_signals();
  wait_for_children();
  arm_display_timer();
  apply(Started{});
  if (!exit_code_) loop_.run();
  LOCKSTEP_CHECK(exit_code_.has_value(), "the loop ends with an exit code");
  return *exit_code_;
}

// ---- signals and children ----

void Agent::wait_for_stop_signals() {
  stop_signals_.async_wait([this](boost::system::error_code error, int signal) {
    if (error) return;
    on_stop_signal(signal);
    wait_for_stop_signals();
  });
}

void Agent::on_stop_signal(int signal) {
  if (signal == SIGINT && ++interrupts_ > 1) {
    kill_workers();
    return end(Finish{.code = static_cast<int>(ExitCode::kInterrupted), .message = "stopped by a second Ctrl-C"});
  }
  if (signal == SIGINT) {
    terminal_.err_line("lockstep: stopping after this step and its checkpoint; Ctrl-C again leaves at once");
  }
  apply(StopRequested{signal});
}

void Agent::wait_for_children() {
  child_signals_.async_wait([this](boost::system::error_code error, int) {
    if (error) return;
    reap_children();
    wait_for_children();
  });
}

void Agent::reap_children() {
  // All children, not only ours: as PID 1 of a pod the agent inherits orphans.
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto it = std::find_if(workers_.begin(), workers_.end(),
                                 [&](const auto& worker) { return worker->alive && worker->pid == pid; });
    if (it != workers_.end()) on_worker_end(**it, wait_status);
    if (exit_code_) return;
  }
}

void Agent::on_worker_end(Worker& worker, int wait_status) {
  worker.alive = false;  // reaped: its pid may be somebody else's from now on
  worker.link->drain();
  worker.link->close();
  worker.out->finish();
  worker.err->finish();
  store_.forget_client(worker.local_rank);

  int code = exit_code_of_wait_status(wait_status);
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !worker.killed_by_us;
  if (killed && oom_kills_.rose()) {
    code = static_cast<int>(ExitCode::kOutOfMemory);
    worker.last_words = "the kernel killed it because the memory limit was reached";
  }
  WorkerStatus& status = status_.workers[static_cast<size_t>(worker.local_rank)];
  status.state = code == 0 ? "done" : "ended";
  if (is_failure(code) && !worker.killed_by_us) {
    status_.recent_failures.push_back(
        WorkerFailure{.rank = status.rank,
                      .pid = worker.pid,
                      .exit_code = code,
                      .reason = exit_reason(code),
                      .message = worker.last_words.empty() ? "ended with " + describe_exit(code) : worker.last_words,
                      .step = status.step,
                      .generation = supervisor_.generation(),
                      .time_unix_seconds = std::time(nullptr)});
    if (status_.recent_failures.size() > kRecentFailuresMax) {
      status_.recent_failures.erase(status_.recent_failures.begin());
    }
  }
  apply(WorkerEnded{.local_rank = worker.local_rank, .pid = worker.pid, .code = code, .message = worker.last_words});
}

// ---- messages ----

void Agent::on_message(Worker& worker, const WorkerMessage& message) {
  WorkerStatus& status = status_.workers[static_cast<size_t>(worker.local_rank)];
  std::visit(Overloaded{
                 [&](const Hello&) { apply(WorkerSaidHello{worker.local_rank}); },
                 [&](const StoreRequest& m) { send_answers(store_.apply(worker.local_rank, m, now())); },
                 [&](const Beat& m) {
                   status.step = m.step;
                   status.phase = m.phase;
                   apply(WorkerAtStep{worker.local_rank, m.step});
                 },
                 [&](const Progress& m) { status_.progress = m; },
                 [&](const Evaluation& m) { status_.metrics = m.metrics; },
                 [&](const CheckpointWritten& m) {
                   status_.last_checkpoint = m;
                   apply(CheckpointSeen{m.step});
                 },
                 [&](const Metrics& m) { board_.publish_metrics(worker.local_rank, m.families); },
                 [&](const Failing& m) { worker.last_words = m.message; },
                 [&](const Done&) { status.state = "done"; },
                 // The worker leaves with code 10 next; its end is what the supervisor acts on.
                 [&](const PeerLost&) {},
             },
             message);
  if (!std::holds_alternative<StoreRequest>(message)) publish();
}

void Agent::on_bad_line(Worker& worker, const Error& error) {
  worker.last_words = "it sent a message that the agent cannot read: " + error.message;
  if (worker.alive) ::kill(-worker.pid, SIGKILL);
}

void Agent::send_answers(const std::vector<StoreAnswer>& answers) {
  for (const StoreAnswer& answer : answers) workers_[static_cast<size_t>(answer.client)]->link->send(answer.reply);
  arm_deadline_timer();
}

// ---- the supervisor's hands ----

void Agent::apply(const SupervisorEvent& event) {
  for (const SupervisorOutput& output : step(supervisor_, event, now())) {
    std::visit([this](const auto& o) { perform(o); }, output);
    if (exit_code_) return;
  }
  arm_deadline_timer();
  publish();
}

void Agent::perform(const StartWorkers& output) {
  store_.begin_generation(output.generation);
  const int nproc = options_.supervisor.nproc;
  workers_.clear();
  status_.generation = output.generation;
  status_.workers.assign(static_cast<size_t>(nproc), WorkerStatus{});
  for (int local_rank = 0; local_rank < nproc; ++local_rank) {
    board_.publish_metrics(local_rank, {});
    if (const Status started = start_worker(local_rank); !started.ok()) {
      kill_workers();
      const bool missing = started.error().code == ErrorCode::kNotFound;
      return end(Finish{.code = static_cast<int>(missing ? ExitCode::kUsage : ExitCode::kCrash),
                        .message = started.error().message});
    }
  }
}

Status Agent::start_worker(int local_rank) {
  TRY_ASSIGN(const SpawnedWorker spawned, spawn_worker(options_.worker, local_rank));
  auto worker = std::make_unique<Worker>();
  Worker* const w = worker.get();  // lives until the next generation starts, long after its link is closed
  w->local_rank = local_rank;
  w->pid = spawned.pid;
  w->link = std::make_shared<LocalLink>(
      loop_, spawned.link_fd,
      LocalLink::Handlers{.on_message = [this, w](const WorkerMessage& message) { on_message(*w, message); },
                          .on_bad_line = [this, w](const Error& error) { on_bad_line(*w, error); }});
  w->out = relay(spawned.stdout_fd, local_rank, false);
  w->err = relay(spawned.stderr_fd, local_rank, true);
  w->link->start();
  w->out->start();
  w->err->start();
  WorkerStatus& status = status_.workers[static_cast<size_t>(local_rank)];
  status.rank = local_rank;
  status.pid = spawned.pid;
  status.state = "starting";
  workers_.push_back(std::move(worker));
  return {};
}

std::shared_ptr<OutputRelay> Agent::relay(int fd, int rank, bool to_stderr) {
  const std::string prefix = rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  return std::make_shared<OutputRelay>(loop_, fd, [this, prefix, to_stderr](const std::string& line) {
    to_stderr ? terminal_.err_line(prefix + line) : terminal_.out_line(prefix + line);
  });
}

void Agent::perform(const SendAssignments& output) {
  const int nproc = options_.supervisor.nproc;
  for (const auto& worker : workers_) {
    worker->link->send(Assignment{.generation = output.generation,
                                  .rank = worker->local_rank,
                                  .local_rank = worker->local_rank,
                                  .world_size = nproc,
                                  .local_world_size = nproc,
                                  .node_rank = 0,
                                  .nnodes = 1});
    WorkerStatus& status = status_.workers[static_cast<size_t>(worker->local_rank)];
    if (status.state == "starting") status.state = "joined";
  }
}

void Agent::perform(const SignalWorkers& output) {
  for (const auto& worker : workers_) {
    if (worker->alive) ::kill(worker->pid, output.signal);
  }
}

void Agent::perform(const KillWorkers&) { kill_workers(); }

void Agent::kill_workers() {
  for (const auto& worker : workers_) {
    if (!worker->alive) continue;
    worker->killed_by_us = true;
    ::kill(-worker->pid, SIGKILL);  // its whole process group
  }
}

void Agent::perform(const Restarting& output) {
  ++restarts_by_reason_[exit_reason(output.code)];
  ++status_.restarts;
  terminal_.err_line("lockstep: " + output.line);
}

void Agent::perform(const Finish& output) { end(output); }

void Agent::end(const Finish& finish) {
  exit_code_ = finish.code;
  terminal_.hide_progress();
  if (finish.code != 0) {
    const std::string code = " (exit code " + std::to_string(finish.code) + ", " + exit_reason(finish.code) + ")";
    terminal_.err_line("lockstep: " + finish.message + (finish.message_names_code ? "" : code));
  }
  write_termination_log(options_.termination_log, Termination{.exit_code = finish.code,
                                                              .message = finish.message,
                                                              .rank = finish.rank,
                                                              .step = finish.step,
                                                              .generation = supervisor_.generation()});
  publish();
  loop_.stop();
}

// ---- time ----

void Agent::arm_deadline_timer() {
  std::optional<TimePoint> next = supervisor_.deadline;
  if (const auto store = store_.next_deadline(); store && (!next || *store < *next)) next = store;
  if (next == armed_deadline_) return;
  armed_deadline_ = next;
  deadline_timer_.cancel();
  if (!next) return;
  deadline_timer_.expires_at(*next);
  deadline_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    armed_deadline_.reset();
    send_answers(store_.expire(now()));
    apply(Tick{});
  });
}

void Agent::arm_display_timer() {
  display_timer_.expires_after(terminal_.interval());
  display_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    if (is_ending()) {
      terminal_.hide_progress();
    } else {
      terminal_.show_progress(progress_view(), now());
    }
    arm_display_timer();
  });
}

// ---- what others see ----

bool Agent::is_ending() const {
  return supervisor_.stopping() || std::any_of(status_.workers.begin(), status_.workers.end(),
                                               [](const WorkerStatus& worker) { return worker.state == "done"; });
}

RunPhase Agent::run_phase() const {
  if (exit_code_) return *exit_code_ == 0 ? RunPhase::kComplete : RunPhase::kFailed;
  if (supervisor_.stopping()) return RunPhase::kStopping;
  switch (supervisor_.phase) {
    case SupervisorPhase::kIdle:
      return RunPhase::kStarting;
    case SupervisorPhase::kForming:
      return supervisor_.counter > 1 ? RunPhase::kRecovering : RunPhase::kStarting;
    case SupervisorPhase::kRunning:
      return RunPhase::kRunning;
    case SupervisorPhase::kDraining:
    case SupervisorPhase::kWaiting:
      return RunPhase::kRecovering;
    case SupervisorPhase::kFinished:
      return RunPhase::kFailed;
  }
  return RunPhase::kFailed;
}

ProgressView Agent::progress_view() {
  if (gpus_ && (!gpu_use_read_ || now() - *gpu_use_read_ >= kGpuUseInterval)) {
    gpu_use_ = gpus_->use();
    gpu_use_read_ = now();
  }
  std::string phase = to_string(run_phase());
  // The worker's own word says more than "Running" before the first step.
  if (!status_.workers.empty() && !status_.workers[0].phase.empty()) phase = status_.workers[0].phase;
  return ProgressView{
      .workload = options_.workload, .phase = std::move(phase), .progress = status_.progress, .gpus = gpu_use_};
}

void Agent::publish() {
  status_.phase = run_phase();
  board_.publish(status_);
  publish_agent_metrics();
}

void Agent::publish_agent_metrics() {
  const auto alive = std::count_if(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->alive; });
  std::vector<MetricSample> restarts;
  for (const auto& [reason, count] : restarts_by_reason_) {
    restarts.push_back(sample_of({{"reason", reason}}, static_cast<double>(count)));
  }
  board_.publish_agent_metrics({
      family_of(metric::kRestarts, std::move(restarts)),
      family_of(metric::kWorkersAlive, {sample_of({}, static_cast<double>(alive))}),
      family_of(metric::kBuildInfo, {sample_of({{"version", build_version()}}, 1.0)}),
  });
}

}  // namespace lockstep
