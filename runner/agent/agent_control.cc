// The agent's handlers of control requests (control_socket.h).
#include <unistd.h>

#include <csignal>
#include <utility>

#include "runner/agent/agent.h"
#include "runner/base/clock.h"
#include "runner/base/fork.h"

namespace lockstep {
namespace {

std::chrono::nanoseconds duration_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

void Agent::open_control_socket() {
  if (options_.control_folder.empty()) return;
  Result<std::unique_ptr<ControlSocket>> opened = ControlSocket::open(
      loop_, options_.control_folder, options_.node_rank,
      [this](const ControlRequest& request, const ControlSocket::Answer& answer) { on_control(request, answer); });
  if (opened.ok()) {
    control_ = std::move(*opened);
  } else {
    terminal_.err_line("warning: no control socket: " + opened.error().message);
  }
}

void Agent::on_control(const ControlRequest& request, const ControlSocket::Answer& answer) {
  std::visit([&](const auto& r) { control(r, answer); }, request);
}

int Agent::local_rank_for(int rank, const ControlSocket::Answer& answer) {
  const int local_rank = rank - first_rank_;
  if (local_rank < 0 || local_rank >= nproc()) {
    const std::string last = std::to_string(rank_of(nproc() - 1));
    answer({{"error", "rank " + std::to_string(rank) + " is not on node " + std::to_string(options_.node_rank) +
                          ", which has ranks " + std::to_string(first_rank_) + " to " + last}});
    return -1;
  }
  if (!workers_->is_alive(local_rank)) {
    answer({{"error", "rank " + std::to_string(rank) + " is not running"}});
    return -1;
  }
  return local_rank;
}

OrderedJson Agent::answer_about(int local_rank) {
  const std::optional<BeatSnapshot> beats = workers_->beats(local_rank);
  return {{"ok", true},
          {"rank", rank_of(local_rank)},
          {"node", options_.node_rank},
          {"pid", workers_->pid(local_rank)},
          {"step", beats ? beats->step : 0},
          {"nanoseconds", monotonic_ns()}};
}

void Agent::control(const GetStatus&, const ControlSocket::Answer& answer) {
  publish();
  answer({{"ok", true}, {"pid", ::getpid()}, {"nanoseconds", monotonic_ns()}, {"status", to_json(status_)}});
}

void Agent::control(const KillRank& request, const ControlSocket::Answer& answer) {
  const int local_rank = local_rank_for(request.rank, answer);
  if (local_rank < 0) return;
  const OrderedJson about = answer_about(local_rank);
  seen_[static_cast<size_t>(local_rank)].killed_ns = monotonic_ns();
  workers_->signal(local_rank, SIGKILL);
  answer(about);
}

void Agent::control(const StopRank& request, const ControlSocket::Answer& answer) {
  const int local_rank = local_rank_for(request.rank, answer);
  if (local_rank < 0) return;
  const OrderedJson about = answer_about(local_rank);
  workers_->signal(local_rank, SIGSTOP);
  if (request.seconds > 0) {
    auto& timer = continue_timers_.emplace_back(loop_, duration_of(request.seconds));
    timer.async_wait([this, local_rank, pid = workers_->pid(local_rank)](boost::system::error_code error) {
      if (!error && workers_->pid(local_rank) == pid) workers_->signal(local_rank, SIGCONT);
    });
  }
  answer(about);
}

void Agent::control(const InjectIntoRank& request, const ControlSocket::Answer& answer) {
  const int local_rank = local_rank_for(request.rank, answer);
  if (local_rank < 0) return;
  const OrderedJson about = answer_about(local_rank);
  workers_->send(local_rank, request.fault);
  answer(about);
}

void Agent::control(const KillAgent&, const ControlSocket::Answer& answer) {
  // The answer, with what the agent was doing, is sent before the kill.
  answer({{"ok", true},
          {"pid", ::getpid()},
          {"node", options_.node_rank},
          {"step", local_workers_[0].step},
          {"nanoseconds", monotonic_ns()}});
  kill_self(std::chrono::steady_clock::now() + kLastWordsTimeout);
}

void Agent::kill_self(TimePoint latest) {
  if (control_->is_idle() || std::chrono::steady_clock::now() >= latest) kill_this_process();
  sent_check_timer_.expires_after(kSentCheckInterval);
  sent_check_timer_.async_wait([this, latest](boost::system::error_code error) {
    if (!error) kill_self(latest);
  });
}

void Agent::control(const WaitForRecoveries& request, const ControlSocket::Answer& answer) {
  if (!is_first()) {
    return answer(
        {{"error", "only node 0's agent knows of recoveries; this one is node " + std::to_string(options_.node_rank)}});
  }
  recoveries_waiters_.push_back(
      RecoveriesWaiter{.after = request.after,
                       .answer = answer,
                       .timer = boost::asio::steady_timer(loop_, duration_of(request.seconds))});
  recoveries_waiters_.back().timer.async_wait([this](boost::system::error_code error) {
    if (!error) answer_recoveries();
  });
  answer_recoveries();
}

void Agent::control(const ReportDecision& request, const ControlSocket::Answer& answer) {
  on_decision(request.decision);
  publish();
  answer({{"ok", true}});
}

// Answers the waiting `recoveries` requests that have enough recoveries by now or have waited long enough; at the end
// of the run all of them. Requests of clients that have disconnected are dropped.
void Agent::answer_recoveries() {
  const auto at = std::chrono::steady_clock::now();
  OrderedJson recent = OrderedJson::array();
  for (const Recovery& recovery : job_.recent()) recent.push_back(to_json(recovery));
  OrderedJson all{{"ok", true},
                  {"total", job_.recoveries_total()},
                  {"ended", exit_code_.has_value()},
                  {"recoveries", std::move(recent)}};
  if (exit_code_) all["exitCode"] = *exit_code_;
  for (auto it = recoveries_waiters_.begin(); it != recoveries_waiters_.end();) {
    const bool is_due = job_.recoveries_total() > it->after || it->timer.expiry() <= at || exit_code_;
    if (is_due) it->answer(all);
    it = is_due || !it->answer.is_awaited() ? recoveries_waiters_.erase(it) : std::next(it);
  }
}

}  // namespace lockstep
