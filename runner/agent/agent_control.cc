// The agent's handlers of control requests (control_socket.h).
#include <unistd.h>

#include <utility>

#include "runner/agent/agent.h"
#include "runner/base/clock.h"

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

void Agent::control(const GetStatus&, const ControlSocket::Answer& answer) {
  publish();
  answer({{"ok", true},
          {"pid", ::getpid()},
          {"nanoseconds", monotonic_ns()},
          {"step", newest_commit() ? newest_commit_->step : 0},
          {"durable_step", durable_step_},
          {"status", to_json(status_)}});
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
