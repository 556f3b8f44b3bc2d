#include "runner/agent/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "runner/base/check.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr int kPeerLostCode = static_cast<int>(ExitCode::kPeerLost);
constexpr int kCheckpointCode = static_cast<int>(ExitCode::kCheckpoint);
constexpr int kTimeoutCode = static_cast<int>(ExitCode::kTimeout);

bool is_stop_code(int code) {
  return code == static_cast<int>(ExitCode::kInterrupted) || code == static_cast<int>(ExitCode::kTerminated);
}

class Stepper {
 public:
  Stepper(SupervisorState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<SupervisorOutput> take() && { return std::move(out_); }

  void operator()(const Started&) {
    LOCKSTEP_CHECK(s_.phase == SupervisorPhase::kIdle, "Started comes once");
    start_generation();
  }

  void operator()(const WorkerSaidHello& event) {
    worker(event.local_rank).said_hello = true;
    const bool all = std::all_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) { return w.said_hello; });
    if (s_.phase != SupervisorPhase::kForming || !all) return;
    s_.phase = SupervisorPhase::kRunning;
    s_.deadline.reset();
    out_.emplace_back(SendAssignments{s_.generation()});
  }

  void operator()(const WorkerAtStep& event) {
    int64_t& step = worker(event.local_rank).step;
    step = std::max(step, event.step);
  }

  void operator()(const CheckpointSeen& event) {
    if (event.step <= s_.checkpoint_step) return;
    s_.checkpoint_step = event.step;
    s_.restarts.clear();
    s_.failures_without_progress = 0;
  }

  void operator()(const WorkerEnded& event) {
    SupervisedWorker& ended = worker(event.local_rank);
    LOCKSTEP_CHECK(ended.alive, "a worker ends once");
    ended.alive = false;
    record_end(event, ended);
    const int code = s_.ends.back().code;
    if (none_alive()) {
      decide();
    } else if (code != 0 && !is_stop_code(code)) {
      begin_draining();
    }
  }

  void operator()(const StopRequested& event) {
    if (!s_.signals.insert(event.signal).second || s_.phase == SupervisorPhase::kFinished) return;
    if (none_alive()) {
      stop_while_none_runs(event.signal);
    } else {
      out_.emplace_back(SignalWorkers{event.signal});
    }
  }

  void operator()(const Tick&) {
    if (!s_.deadline || now_ < *s_.deadline) return;
    s_.deadline.reset();
    if (s_.phase == SupervisorPhase::kWaiting) {
      start_generation();
    } else if (s_.phase == SupervisorPhase::kForming) {
      kill_all();
      s_.phase = SupervisorPhase::kDraining;
    } else if (s_.phase == SupervisorPhase::kDraining) {
      kill_all();
    }
  }

 private:
  SupervisedWorker& worker(int local_rank) {
    LOCKSTEP_CHECK(local_rank >= 0 && local_rank < s_.options.nproc, "a local rank of this agent");
    return s_.workers[static_cast<size_t>(local_rank)];
  }

  [[nodiscard]] bool none_alive() const {
    return std::none_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) { return w.alive; });
  }

  void start_generation() {
    ++s_.counter;
    s_.phase = SupervisorPhase::kForming;
    s_.ends.clear();
    s_.workers.assign(static_cast<size_t>(s_.options.nproc), SupervisedWorker{});
    for (SupervisedWorker& w : s_.workers) w.alive = true;
    s_.deadline = now_ + s_.options.rendezvous_timeout;
    out_.emplace_back(StartWorkers{s_.generation()});
  }

  void record_end(const WorkerEnded& event, const SupervisedWorker& ended) {
    WorkerEndRecord record{.local_rank = event.local_rank,
                           .pid = event.pid,
                           .code = event.code,
                           .how = describe_exit(event.code),
                           .message = event.message,
                           .step = ended.step};
    if (ended.code_when_killed && event.code == 128 + SIGKILL) {
      record.code = *ended.code_when_killed;
      if (record.code == kTimeoutCode) {
        record.message = "it did not say hello within " + std::to_string(s_.options.rendezvous_timeout.count()) +
                         " s (--rendezvous_timeout_seconds)";
      }
    }
    s_.ends.push_back(std::move(record));
  }

  void begin_draining() {
    if (s_.phase == SupervisorPhase::kDraining) return;
    s_.phase = SupervisorPhase::kDraining;
    s_.deadline = now_ + (s_.stopping() ? kStopGrace : kSurvivorGrace);
  }

  void kill_all() {
    for (SupervisedWorker& w : s_.workers) {
      if (!w.alive) continue;
      const bool silent = s_.phase == SupervisorPhase::kForming && !w.said_hello;
      w.code_when_killed = silent ? kTimeoutCode : kPeerLostCode;
    }
    out_.emplace_back(KillWorkers{});
  }

  // Between two generations: the failure that led here is the root cause, were it not for the stop.
  void stop_while_none_runs(int signal) {
    if (s_.ends.empty()) return finish(stopped(128 + signal));
    decide();
  }

  void decide() {
    std::vector<int> codes;
    for (const WorkerEndRecord& end : s_.ends) codes.push_back(end.code);
    const int code = root_cause(codes);
    if (code == 0) return finish(Finish{});
    const auto cause = std::find_if(s_.ends.begin(), s_.ends.end(), [&](const auto& end) { return end.code == code; });
    if (is_stop_code(code)) return finish(stopped(code));
    int64_t failure_step = -1;
    for (const SupervisedWorker& w : s_.workers) failure_step = std::max(failure_step, w.step);
    const bool for_good = !is_respawned(code) || (code == kCheckpointCode && failure_step <= 0 && is_at_beginning());
    if (s_.stopping() || for_good) return finish_because(*cause, "");
    decide_after_failure(*cause, failure_step);
  }

  // No step and no checkpoint so far, in no generation that has failed.
  [[nodiscard]] bool is_at_beginning() const { return s_.furthest_failure_step <= 0 && s_.checkpoint_step < 0; }

  void decide_after_failure(const WorkerEndRecord& cause, int64_t failure_step) {
    s_.failures_without_progress = failure_step > s_.furthest_failure_step ? 0 : s_.failures_without_progress + 1;
    s_.furthest_failure_step = std::max(failure_step, s_.furthest_failure_step);
    if (s_.failures_without_progress >= kNoProgressFailuresMax) {
      return finish_because(cause, "crash loop: " + std::to_string(kNoProgressFailuresMax) +
                                       " restarts in a row came no further than step " +
                                       std::to_string(std::max<int64_t>(s_.furthest_failure_step, 0)) + "; ");
    }
    std::erase_if(s_.restarts, [&](TimePoint at) { return now_ - at > kRestartWindow; });
    if (std::ssize(s_.restarts) >= s_.options.max_restarts) {
      return finish_because(cause, "giving up after " + std::to_string(s_.restarts.size()) +
                                       " restarts (--max_restarts " + std::to_string(s_.options.max_restarts) + "); ");
    }
    restart(cause);
  }

  void restart(const WorkerEndRecord& cause) {
    s_.restarts.push_back(now_);
    ++s_.restarts_total;
    out_.emplace_back(Restarting{
        .code = cause.code,
        .line = who(cause) + "; " +
                (is_at_beginning() ? "starting again from the beginning" : "going on from the newest checkpoint") +
                " (restart " + std::to_string(s_.restarts.size()) + " of " + std::to_string(s_.options.max_restarts) +
                ")"});
    if (s_.failures_without_progress == 0) return start_generation();
    s_.phase = SupervisorPhase::kWaiting;
    s_.deadline = now_ + std::min(kBackoffMax, kBackoffInitial * (1 << (s_.failures_without_progress - 1)));
  }

  void finish_because(const WorkerEndRecord& cause, const std::string& prefix) {
    // What the user gave is wrong: which of the ranks said so is of no interest.
    const bool is_input =
        cause.code == static_cast<int>(ExitCode::kUsage) || cause.code == static_cast<int>(ExitCode::kData);
    const bool words_alone = is_input && !cause.message.empty();
    finish(Finish{.code = cause.code,
                  .message = prefix + (words_alone ? cause.message : who(cause)),
                  .message_names_code = !words_alone && cause.how == describe_exit(cause.code),
                  .rank = cause.local_rank,
                  .step = cause.step});
  }

  static Finish stopped(int code) {
    return Finish{.code = code, .message = code == 128 + SIGINT ? "stopped by Ctrl-C" : "stopped by SIGTERM"};
  }

  void finish(Finish output) {
    s_.phase = SupervisorPhase::kFinished;
    s_.deadline.reset();
    out_.emplace_back(std::move(output));
  }

  [[nodiscard]] static std::string who(const WorkerEndRecord& end) {
    std::string text =
        "rank " + std::to_string(end.local_rank) + " (pid " + std::to_string(end.pid) + ") ended with " + end.how;
    if (end.step > 0) text += " at step " + std::to_string(end.step);
    if (!end.message.empty()) text += ": " + end.message;
    return text;
  }

  SupervisorState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<SupervisorOutput> out_;
};

}  // namespace

std::vector<SupervisorOutput> step(SupervisorState& state, const SupervisorEvent& event, TimePoint now) {
  Stepper stepper(state, now);
  std::visit(stepper, event);
  return std::move(stepper).take();
}

std::string describe_exit(int code) {
  const char* signal_name = code > 128 ? sigabbrev_np(code - 128) : nullptr;
  // 130 and 143 are also codes that a worker returns by itself; both read the same to a person.
  if (signal_name != nullptr) return "signal " + std::to_string(code - 128) + " (SIG" + signal_name + ")";
  return "exit code " + std::to_string(code) + " (" + exit_reason(code) + ")";
}

}  // namespace lockstep
