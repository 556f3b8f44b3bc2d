#include "runner/agent/node_workers.h"

#include <sys/wait.h>

#include <algorithm>
#include <boost/asio/local/stream_protocol.hpp>
#include <csignal>
#include <limits>
#include <utility>

#include "runner/agent/thread_states.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/stack_lines.h"

namespace lockstep {

NodeWorkers::NodeWorkers(boost::asio::io_context& loop, WorkerCommand command, std::string oom_kill_path, int nproc,
                         Handlers handlers)
    : loop_(loop),
      command_(std::move(command)),
      oom_kills_(std::move(oom_kill_path)),
      handlers_(std::move(handlers)),
      workers_(static_cast<size_t>(nproc)) {}

// ---- starting ----

Status NodeWorkers::start(int local_rank) {
  TRY_ASSIGN(BeatPageMapping beats, BeatPageMapping::create());
  TRY_ASSIGN(const SpawnedWorker spawned, spawn_worker(command_, local_rank, beats.fd()));
  beats.close_fd();
  auto worker =
      std::make_unique<Worker>(Worker{.local_rank = local_rank, .pid = spawned.pid, .beats = std::move(beats)});
  Worker* const w = worker.get();  // lives until its successor starts, so longer than its link calls handlers
  // Its queue needs no limit: a worker that does not read its replies cannot make further requests.
  w->link = std::make_shared<LineSocket>(
      loop_, LineSocket::Socket(loop_, boost::asio::local::stream_protocol(), spawned.link_fd),
      LineSocket::Limits{.line_bytes_max = kLineBytesMax, .queue_bytes_max = std::numeric_limits<size_t>::max()});
  w->out = relay(spawned.stdout_fd, local_rank, false);
  w->err = relay(spawned.stderr_fd, local_rank, true);
  w->link->start({.on_line = [this, w](const std::string& line) { on_line(*w, line); },
                  .on_closed = [](const std::string&) {}});  // its end is noticed by reaping it
  w->out->start();
  w->err->start();
  workers_[static_cast<size_t>(local_rank)] = std::move(worker);
  return {};
}

std::shared_ptr<OutputRelay> NodeWorkers::relay(int fd, int local_rank, bool to_stderr) {
  return std::make_shared<OutputRelay>(loop_, fd, [this, local_rank, to_stderr](const std::string& line) {
    handlers_.on_line(local_rank, to_stderr, line);
    if (to_stderr && line == kStackEnd) on_stack_end(local_rank);
  });
}

// ---- what they say ----

void NodeWorkers::on_line(Worker& worker, const std::string& line) {
  const Result<WorkerMessage> message = decode_worker_message(line);
  if (!message.ok()) return refuse(worker, "it sent a message that the agent cannot read: " + message.error().message);
  if (const auto* const hello = std::get_if<Hello>(&*message)) {
    if (std::string why = refusal_of(*hello); !why.empty()) return refuse(worker, std::move(why));
  }
  if (const auto* const failing = std::get_if<Failing>(&*message)) worker.last_words = failing->message;
  if (const auto* const request = std::get_if<StoreRequest>(&*message)) {
    worker.open_requests.insert(request->id);
    if (shared_gets_.joins(worker.local_rank, *request)) return;
  }
  handlers_.on_message(worker.local_rank, *message);
}

// It is ended, and `why` is the reason of its end.
void NodeWorkers::refuse(Worker& worker, std::string why) {
  worker.last_words = std::move(why);
  kill_now(worker);  // before it sees the end of its link
  worker.link->close();
}

void NodeWorkers::send(int local_rank, const AgentMessage& message) {
  if (is_alive(local_rank)) at(local_rank)->link->send(encode(message));
}

void NodeWorkers::answer_store(int local_rank, const StoreReply& reply) {
  const auto answer = [this](int to, const StoreReply& its_reply) {
    if (is_alive(to) && at(to)->open_requests.erase(its_reply.id) > 0) send(to, its_reply);
  };
  answer(local_rank, reply);
  for (const SharedGets::Asked& other : shared_gets_.pop_others({.local_rank = local_rank, .id = reply.id})) {
    StoreReply same = reply;
    same.id = other.id;
    answer(other.local_rank, same);
  }
}

std::optional<BeatSnapshot> NodeWorkers::beats(int local_rank) const {
  const Worker* const worker = at(local_rank);
  if (worker == nullptr) return std::nullopt;
  return worker->beats.read();
}

int NodeWorkers::count_alive() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& worker) { return worker != nullptr && worker->alive; }));
}

// ---- ending ----

void NodeWorkers::reap() {
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto it = std::find_if(workers_.begin(), workers_.end(), [pid](const auto& worker) {
      return worker != nullptr && worker->alive && worker->pid == pid;
    });
    if (it != workers_.end()) on_end(**it, wait_status);
  }
}

void NodeWorkers::on_end(Worker& worker, int wait_status) {
  worker.alive = false;  // reaped: from now on another process may get its pid
  worker.link->drain();
  worker.link->close();
  worker.out->finish();
  worker.err->finish();
  WorkerEnd end{.local_rank = worker.local_rank,
                .pid = worker.pid,
                .code = exit_code_of_wait_status(wait_status),
                .last_words = worker.last_words,
                .killed_by_us = worker.killed_by_us};
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !worker.killed_by_us;
  if (killed && oom_kills_.claim_kill(std::chrono::steady_clock::now())) {
    end.code = code_of(ExitCode::kOutOfMemory);
    end.last_words = "the kernel killed it because the memory limit was reached";
  }
  handlers_.on_end(end);  // this may start a successor and destroy `worker`
}

void NodeWorkers::signal_all(int signal) {
  for (const auto& worker : workers_) {
    if (worker != nullptr && worker->alive) ::kill(worker->pid, signal);
  }
}

void NodeWorkers::dump_stacks(int local_rank, int rank) {
  if (!is_alive(local_rank)) return;
  Worker& worker = *at(local_rank);
  handlers_.on_note("rank " + std::to_string(rank) + " (pid " + std::to_string(worker.pid) +
                    ") hangs; its threads, as the kernel sees them:");
  for (const std::string& line : thread_states("/proc", worker.pid)) handlers_.on_note("  " + line);
  if (!handles_signal("/proc", worker.pid, SIGUSR1)) return;
  ::kill(worker.pid, SIGUSR1);
  worker.dumped_at = std::chrono::steady_clock::now();
}

void NodeWorkers::kill(int local_rank) {
  if (!is_alive(local_rank)) return;
  Worker& worker = *at(local_rank);
  worker.killed_by_us = true;
  if (!worker.dumped_at) return kill_now(worker);
  if (worker.kill_timer != nullptr) return;
  worker.kill_timer = std::make_unique<boost::asio::steady_timer>(loop_, *worker.dumped_at + kStackTime);
  worker.kill_timer->async_wait([this, local_rank, pid = worker.pid](boost::system::error_code error) {
    if (!error && this->pid(local_rank) == pid) kill_now(*at(local_rank));
  });
}

void NodeWorkers::on_stack_end(int local_rank) {
  Worker& worker = *at(local_rank);
  worker.dumped_at.reset();
  if (worker.kill_timer != nullptr) kill_now(worker);
}

void NodeWorkers::kill_now(Worker& worker) {
  if (worker.alive) ::kill(-worker.pid, SIGKILL);  // its whole process group
}

void NodeWorkers::kill_all() {
  for (const auto& worker : workers_) {
    if (worker == nullptr || !worker->alive) continue;
    worker->killed_by_us = true;
    kill_now(*worker);
  }
}

}  // namespace lockstep
