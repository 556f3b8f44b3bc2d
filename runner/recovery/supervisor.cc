#include "runner/recovery/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/clock.h"
#include "runner/contract/agreement.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// True for errors in what the user gave. Every rank finds the same one, so the message need not name the rank.
bool is_input_code(int code) { return code == code_of(ExitCode::kUsage) || code == code_of(ExitCode::kData); }

std::string describe_worker_end(const WorkerEndRecord& end) {
  std::string text = "rank " + std::to_string(end.rank);
  if (end.pid > 0) text += " (pid " + std::to_string(end.pid) + ")";
  text += " " + end.how;
  if (end.step > 0) text += " at step " + std::to_string(end.step);
  if (!end.message.empty()) text += ": " + end.message;
  return text;
}

class SupervisorStepper {
 public:
  SupervisorStepper(SupervisorState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<SupervisorOutput> take() && { return std::move(out_); }

  // Before every event.
  void begin() {
    if (s_.deadline && now_ - *s_.deadline > kAsleepMin) shift_deadlines(now_ - s_.last_event);
    s_.last_event = now_;
  }

  void operator()(const Started&) {
    LOCKSTEP_CHECK(!s_.started, "Started comes once");
    s_.started = true;
    s_.workers.assign(static_cast<size_t>(s_.options.nproc), SupervisedWorker{});
    for (int rank = 0; rank < s_.options.nproc; ++rank) start(rank);
  }

  void operator()(const WorkerSaidHello& event) {
    SupervisedWorker& w = worker(event.local_rank);
    if (w.phase != WorkerPhase::kStarting) return;
    w.phase = WorkerPhase::kAwaiting;
    w.terms = event.terms;
    if (!w.code_when_killed) w.deadline.reset();
    if (!s_.stopping() && !is_over()) compare_terms(event.local_rank);
  }

  void operator()(const WorkerLeft& event) {
    SupervisedWorker& w = worker(event.local_rank);
    if (w.phase != WorkerPhase::kPlaced || event.generation < w.generation) return;
    w.phase = WorkerPhase::kAwaiting;
    w.was_cut = false;
    w.in_collective = false;
    if (!w.code_when_killed) w.deadline.reset();
    // The end of a worker, if there was one, was reported before, and it says more than that a peer was lost.
    if (event.cause == kLeftCut || event.cause == kLeftRegroup || s_.broken_said == event.generation) return;
    tell_broken(event.generation, -1, event.cause, event.message);
  }

  void operator()(const WorkerAtStep& event) {
    SupervisedWorker& w = worker(event.local_rank);
    w.step = std::max(w.step, event.step);
    w.in_collective = event.in_collective;
    if (w.phase == WorkerPhase::kStarting && w.deadline && !w.code_when_killed) {
      w.deadline = std::max<TimePoint>(*w.deadline, event.progress_at + s_.options.start_timeout);
    }
    s_.furthest_step = std::max(s_.furthest_step, w.step);
  }

  void operator()(const CheckpointNews& event) {
    if (event.step <= s_.checkpoint_step) return;
    s_.checkpoint_step = event.step;
    s_.restarts.clear();
    s_.incidents_without_progress = 0;
  }

  void operator()(const WorkerEnded& event) {
    SupervisedWorker& w = worker(event.local_rank);
    if (w.is_given_up) return;
    LOCKSTEP_CHECK(w.alive(), "a worker ends once");
    const WorkerEndRecord end = record_of(event, w);
    const bool was_placed = w.phase == WorkerPhase::kPlaced;
    w.phase = WorkerPhase::kEnded;
    w.deadline.reset();
    if (end.code == 0) {
      s_.complete = true;
    } else if (is_stop(end.code)) {
      // Without a request to stop, somebody has sent the worker a signal. All ranks of a group stop together, so the
      // others follow.
      if (!is_over()) begin_stop(end.code);
    } else {
      on_bad_end(end, was_placed);
    }
  }

  void operator()(const StopRequested& event) {
    if (!s_.signals.insert(event.signal).second) return;
    const int code = kSignalCodes + event.signal;
    begin_stop(code);
    if (waits_for_the_member()) return;
    if (none_alive()) return finish_stopped();
    if (s_.stop_code == code && !is_over()) out_.emplace_back(Leave{code});
    if (!s_.signals_sent.empty()) signal_workers(event.signal);
  }

  void operator()(const Placement& placement) {
    if (!all_await() || s_.stopping() || is_over()) return refuse_placement(placement.generation);
    s_.placement = placement;
    s_.ends.clear();
    s_.said_ready = false;
    for (SupervisedWorker& w : s_.workers) {
      w.phase = WorkerPhase::kPlaced;
      w.generation = placement.generation;
      w.incidents_seen = s_.incidents;
    }
    out_.emplace_back(AssignWorkers{placement});
  }

  void operator()(const CutGroup& event) {
    bool any = false;
    for (SupervisedWorker& w : s_.workers) {
      if (w.phase != WorkerPhase::kPlaced || w.generation != event.generation || w.was_cut) continue;
      w.was_cut = true;
      if (!w.code_when_killed) w.deadline = now_ + kCutGrace;
      any = true;
    }
    if (any) out_.emplace_back(Cut{event.generation, event.cause});
  }

  void operator()(const Regroup& event) {
    if (event.leaving && !s_.stopping()) begin_stop(code_of(ExitCode::kTerminated));
    const bool any = std::any_of(s_.workers.begin(), s_.workers.end(), [&](const auto& w) {
      return w.phase == WorkerPhase::kPlaced && w.generation == event.generation;
    });
    if (any) out_.emplace_back(LeaveTogether{event.generation, event.leaving ? s_.stop_code : 0});
  }

  void operator()(const StopJob& event) {
    begin_stop(event.code);
    signal_workers(s_.stop_code - kSignalCodes);
  }

  void operator()(const KillWorker& event) { kill_hanging(event.local_rank, event.message); }

  void operator()(const WorkerSilent& event) {
    kill_hanging(event.local_rank, "its process has not run for " +
                                       seconds_text(std::chrono::floor<std::chrono::seconds>(event.since)) +
                                       " (stopped, frozen or starved)");
  }

  void operator()(const EndJob& event) {
    if (s_.job_ended) return;
    s_.job_ended = event;
    if (is_stop(event.code)) {
      begin_stop(event.code);
      signal_workers(s_.stop_code - kSignalCodes);
    } else if (event.code == code_of(ExitCode::kPeerLost)) {
      // Too few nodes were ready for too long. Rank 0 writes its state to a checkpoint before it ends.
      begin_stop(code_of(ExitCode::kTerminated));
      signal_workers(SIGTERM);
    } else if (event.code == 0) {
      s_.stop_deadline = s_.stop_deadline ? std::min(*s_.stop_deadline, now_ + kEndGrace) : now_ + kEndGrace;
    } else {
      kill_remaining();
    }
  }

  void operator()(const SupervisorTick&) {
    for (int rank = 0; rank < static_cast<int>(s_.workers.size()); ++rank) {
      const SupervisedWorker& w = worker(rank);
      if (w.deadline && now_ >= *w.deadline) on_worker_deadline(rank);
    }
    if (s_.stop_deadline && now_ >= *s_.stop_deadline) on_stop_deadline();
  }

  // Does what follows from the new state, whichever event led to it.
  void settle() {
    if (!s_.finished) {
      abandon_backoffs();
      end_the_unplaced();
      conclude();
    }
    update_ready();
    update_deadline();
  }

 private:
  void shift_deadlines(std::chrono::steady_clock::duration gap) {
    for (SupervisedWorker& w : s_.workers) {
      if (w.deadline) *w.deadline += gap;
    }
    if (s_.stop_deadline) *s_.stop_deadline += gap;
  }

  SupervisedWorker& worker(int local_rank) {
    LOCKSTEP_CHECK(local_rank >= 0 && local_rank < std::ssize(s_.workers), "a local rank of this agent");
    return s_.workers[static_cast<size_t>(local_rank)];
  }

  [[nodiscard]] bool none_alive() const {
    return std::none_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) { return w.alive(); });
  }

  [[nodiscard]] bool all_await() const {
    return s_.started && std::all_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) {
             return w.phase == WorkerPhase::kAwaiting && !w.code_when_killed;
           });
  }

  // Training is complete, or the node ends for another reason than a stop: no worker is started or placed any more.
  [[nodiscard]] bool is_over() const { return s_.complete || s_.verdict || s_.job_ended; }

  // This node gives up, but the coordinator must be told first. The member answers within a few heartbeats with
  // EndJob, for the whole job or for this node only.
  [[nodiscard]] bool waits_for_the_member() const { return s_.verdict && !s_.job_ended; }

  [[nodiscard]] int rank_of(int local_rank) const { return (s_.placement ? s_.placement->first_rank : 0) + local_rank; }

  // ---- starting and killing ----

  void start(int local_rank) {
    SupervisedWorker& w = worker(local_rank);
    w = SupervisedWorker{};
    w.incidents_seen = s_.incidents;
    w.deadline = now_ + s_.options.start_timeout;
    for (WorkerEndRecord& end : s_.ends) {
      if (end.local_rank == local_rank) end.started_again = true;
    }
    out_.emplace_back(StartWorker{local_rank});
  }

  void kill(int local_rank, int code, std::string message) {
    SupervisedWorker& w = worker(local_rank);
    if (!w.alive() || w.code_when_killed) return;
    w.code_when_killed = code;
    w.message_when_killed = std::move(message);
    w.deadline = now_ + kKillGrace;
    if (code == code_of(ExitCode::kTimeout)) out_.emplace_back(DumpStacks{local_rank});
    out_.emplace_back(KillProcess{local_rank});
  }

  void kill_hanging(int local_rank, std::string message) {
    kill(local_rank, code_of(ExitCode::kTimeout), std::move(message));
  }

  // Kills all workers that are still alive. Their ends count as consequences (PeerLost), not as causes.
  void kill_remaining() {
    for (int rank = 0; rank < s_.options.nproc; ++rank) kill(rank, code_of(ExitCode::kPeerLost), "");
  }

  void signal_workers(int signal) {
    if (none_alive() || !s_.signals_sent.insert(signal).second) return;
    out_.emplace_back(SignalWorkers{signal});
  }

  // ---- deadlines ----

  void on_worker_deadline(int local_rank) {
    SupervisedWorker& w = worker(local_rank);
    w.deadline.reset();
    if (w.phase == WorkerPhase::kBackoff) {
      start(local_rank);
    } else if (w.code_when_killed) {
      give_up_unkillable(local_rank);
    } else if (w.phase == WorkerPhase::kStarting) {
      kill_hanging(local_rank, "it did not say hello within " + seconds_text(s_.options.start_timeout) +
                                   " (--rendezvous_timeout_seconds) of its start or its last progress");
    } else if (w.was_cut && w.in_collective) {
      kill_hanging(local_rank, "still in a collective " + seconds_text(kCutGrace) + " after its group was cut");
    } else if (w.was_cut) {
      w.deadline = now_ + kCutGrace;  // it computes or writes, and notices the cut when that is done
    }
  }

  // The worker sleeps in the kernel, where no signal reaches it. No other can be started in its place on this machine,
  // so the node gives up.
  void give_up_unkillable(int local_rank) {
    SupervisedWorker& w = worker(local_rank);
    const bool was_placed = w.phase == WorkerPhase::kPlaced;
    w.phase = WorkerPhase::kEnded;
    w.is_given_up = true;
    const WorkerEndRecord end{.local_rank = local_rank,
                              .rank = rank_of(local_rank),
                              .code = code_of(ExitCode::kTimeout),
                              .how = "did not end " + seconds_text(kKillGrace) + " after SIGKILL",
                              .message = "its device or a file system does not answer: look at this machine",
                              .step = w.step};
    if (record_end(end, was_placed)) give_up(end, "", /*for_good=*/false);
  }

  void on_stop_deadline() {
    s_.stop_deadline.reset();
    if (waits_for_the_member()) return;
    if (none_alive()) return finish_stopped();
    const std::string message =
        s_.job_ended ? "it had not left " + seconds_text(kEndGrace) + " after the end of the job"
                     : "it had not stopped " + seconds_text(s_.options.stop_timeout) + " after it was asked to";
    for (int rank = 0; rank < s_.options.nproc; ++rank) kill_hanging(rank, message);
  }

  void update_deadline() {
    s_.deadline.reset();
    if (s_.finished) return;
    const auto consider = [&](const std::optional<TimePoint>& at) {
      if (at && (!s_.deadline || *at < *s_.deadline)) s_.deadline = at;
    };
    for (const SupervisedWorker& w : s_.workers) consider(w.deadline);
    consider(s_.stop_deadline);
  }

  // ---- placements ----

  // A worker has ended while the placement was under way. The member knows that by now, but the other nodes may have
  // their placements and must not wait for this node.
  void refuse_placement(uint64_t generation) {
    if (s_.ends.empty()) return tell_broken(generation, -1, kNotReady, "the workers of this node were not ready");
    const WorkerEndRecord& last = s_.ends.back();
    tell_broken(generation, last.rank, exit_reason(last.code), describe_worker_end(last));
  }

  void tell_broken(uint64_t generation, int rank, const std::string& cause, const std::string& message) {
    if (s_.finished) return;
    s_.broken_said = generation;
    Broken broken{.generation = generation, .rank = rank, .cause = cause, .message = message};
    for (const WorkerEndRecord& known : s_.ends) {
      if (rank >= 0 && known.rank == rank) broken.exit_code = known.code;
    }
    out_.emplace_back(std::move(broken));
  }

  void update_ready() {
    const bool ready = !s_.finished && !s_.stopping() && !is_over() && all_await();
    if (ready == s_.said_ready) return;
    s_.said_ready = ready;
    if (!s_.finished) out_.emplace_back(WorkersReady{ready, ready ? s_.workers[0].terms : std::string()});
  }

  // The workers of one node have the same flags and program, but may find different devices, or different data when the
  // data is replaced while they start.
  void compare_terms(int local_rank) {
    const SupervisedWorker& w = worker(local_rank);
    for (int other = 0; other < s_.options.nproc; ++other) {
      const std::string why = disagreement(worker(other).terms, "rank " + std::to_string(rank_of(other)), w.terms,
                                           "rank " + std::to_string(rank_of(local_rank)));
      if (why.empty()) continue;
      return give_up(
          WorkerEndRecord{
              .local_rank = local_rank, .rank = rank_of(local_rank), .code = code_of(ExitCode::kUsage), .message = why},
          "", /*for_good=*/true);
    }
  }

  // ---- a bad end, and the ladder ----

  [[nodiscard]] WorkerEndRecord record_of(const WorkerEnded& event, const SupervisedWorker& w) const {
    WorkerEndRecord record{.local_rank = event.local_rank,
                           .rank = rank_of(event.local_rank),
                           .pid = event.pid,
                           .code = event.code,
                           .how = "ended with " + describe_exit(event.code),
                           .message = event.message,
                           .step = w.step};
    if (w.code_when_killed && event.code == kSignalCodes + SIGKILL) {
      record.code = *w.code_when_killed;
      record.message = w.message_when_killed;
    }
    return record;
  }

  void on_bad_end(const WorkerEndRecord& end, bool was_placed) {
    if (!record_end(end, was_placed)) return;
    const bool nothing_done = s_.furthest_step <= 0 && s_.checkpoint_step < 0;
    if (!is_respawned(end.code) || (end.code == code_of(ExitCode::kCheckpoint) && nothing_done))
      return give_up(end, "", true);
    climb_the_ladder(end);
  }

  // Records the end and reports it. Returns false when no restart is to follow, because the job is over or stops. (The
  // other workers may then still write a checkpoint.)
  bool record_end(const WorkerEndRecord& end, bool was_placed) {
    s_.ends.push_back(end);
    // The end of a worker that was killed because the job was over is not reported.
    const bool is_consequence = worker(end.local_rank).code_when_killed == code_of(ExitCode::kPeerLost);
    if (is_over()) {
      if (!is_consequence && !s_.verdict) remark_on(end);
      return false;
    }
    if (was_placed) {
      tell_broken(worker(end.local_rank).generation, end.rank, exit_reason(end.code), describe_worker_end(end));
    }
    if (!s_.stopping()) return true;
    s_.stop_deadline = now_ + s_.options.stop_timeout;
    return false;
  }

  void remark_on(const WorkerEndRecord& end) {
    out_.emplace_back(Remark{describe_worker_end(end) +
                             (s_.complete ? ", after training was complete" : ", after the job had ended")});
  }

  void climb_the_ladder(const WorkerEndRecord& end) {
    if (worker(end.local_rank).incidents_seen == s_.incidents) {
      count_incident();
      if (s_.incidents_without_progress >= kNoProgressIncidentsMax) {
        return give_up(end,
                       "crash loop: " + std::to_string(kNoProgressIncidentsMax) +
                           " restarts in a row came no further than step " +
                           std::to_string(std::max<int64_t>(s_.furthest_step, 0)) + "; ",
                       true);
      }
      if (std::ssize(s_.restarts) >= s_.options.max_restarts) {
        return give_up(end,
                       "giving up after " + std::to_string(s_.restarts.size()) + " restarts (--max_restarts " +
                           std::to_string(s_.options.max_restarts) + "); ",
                       false);
      }
      s_.restarts.push_back(now_);
    }
    restart(end);
  }

  void count_incident() {
    ++s_.incidents;
    s_.incidents_without_progress =
        s_.furthest_step > s_.furthest_incident_step ? 0 : s_.incidents_without_progress + 1;
    s_.furthest_incident_step = std::max(s_.furthest_step, s_.furthest_incident_step);
    std::erase_if(s_.restarts, [&](TimePoint at) { return now_ - at > kRestartWindow; });
  }

  void restart(const WorkerEndRecord& end) {
    ++s_.restarts_total;
    out_.emplace_back(Restarting{.local_rank = end.local_rank,
                                 .code = end.code,
                                 .line = describe_worker_end(end) + "; " + what_follows() + " (restart " +
                                         std::to_string(s_.restarts.size()) + " of " +
                                         std::to_string(s_.options.max_restarts) + ")"});
    if (s_.incidents_without_progress == 0) return start(end.local_rank);
    SupervisedWorker& w = worker(end.local_rank);
    w.phase = WorkerPhase::kBackoff;
    w.deadline = now_ + std::min(kBackoffMax, kBackoffInitial * (1 << (s_.incidents_without_progress - 1)));
  }

  [[nodiscard]] std::string what_follows() const {
    if (!s_.placement) return "starting it again";
    const bool others_hold_state = s_.placement->world_size > s_.options.nproc ||
                                   std::any_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) {
                                     return w.alive() && w.generation != 0 && !w.code_when_killed;
                                   });
    if (others_hold_state) return "starting it again, the others keep their state";
    if (s_.checkpoint_step >= 0) return "starting it again from the newest checkpoint";
    if (s_.furthest_step <= 0) return "starting it again from the beginning";
    // An earlier start of this run may have written a checkpoint; that is not known here.
    return "starting it again from the newest checkpoint, or from the beginning if there is none";
  }

  void give_up(const WorkerEndRecord& cause, std::string prefix, bool for_good) {
    s_.verdict = SupervisorVerdict{.cause = cause, .prefix = std::move(prefix)};
    out_.emplace_back(NodeFailed{.code = cause.code, .message = finish_of(*s_.verdict).message, .for_good = for_good});
    kill_remaining();
  }

  // ---- stopping and ending ----

  void begin_stop(int code) {
    s_.stop_code = std::max(s_.stop_code, code == code_of(ExitCode::kInterrupted) ? code_of(ExitCode::kInterrupted)
                                                                                  : code_of(ExitCode::kTerminated));
    if (!s_.stop_deadline && !none_alive()) s_.stop_deadline = now_ + s_.options.stop_timeout;
  }

  void abandon_backoffs() {
    if (!s_.stopping() && !is_over()) return;
    for (SupervisedWorker& w : s_.workers) {
      if (w.phase != WorkerPhase::kBackoff) continue;
      w.phase = WorkerPhase::kEnded;
      w.deadline.reset();
    }
  }

  // Ends workers that are in no group: they have nothing to save, and no placement will come any more.
  void end_the_unplaced() {
    const bool writes_first = s_.job_ended && s_.job_ended->code == code_of(ExitCode::kPeerLost);
    if (is_over() && !writes_first) {
      for (int rank = 0; rank < static_cast<int>(s_.workers.size()); ++rank) {
        if (worker(rank).phase != WorkerPhase::kPlaced) kill(rank, code_of(ExitCode::kPeerLost), "");
      }
    } else if (s_.stopping()) {
      const bool any_placed = std::any_of(s_.workers.begin(), s_.workers.end(),
                                          [](const auto& w) { return w.phase == WorkerPhase::kPlaced; });
      if (!any_placed) signal_workers(s_.stop_code - kSignalCodes);
    }
  }

  void conclude() {
    const bool may_go_on =
        std::any_of(s_.workers.begin(), s_.workers.end(), [](const auto& w) { return w.phase != WorkerPhase::kEnded; });
    if (may_go_on) return;
    if (waits_for_the_member()) return;
    if (s_.verdict) {
      finish(finish_of(*s_.verdict));
    } else if (s_.job_ended) {
      finish(Finish{.code = s_.job_ended->code, .message = s_.job_ended->message});
    } else if (s_.complete) {
      if (!std::exchange(s_.said_done, true)) out_.emplace_back(NodeDone{});
    } else if (s_.stopping()) {
      finish_stopped();
    }
  }

  // No worker is alive. If a worker failed and was not started again, the node ends because of that and not of the
  // stop.
  void finish_stopped() {
    if (s_.complete) return finish(Finish{});
    std::vector<int> codes;
    for (const WorkerEndRecord& end : s_.ends) {
      if (!end.started_again) codes.push_back(end.code);
    }
    if (codes.empty()) {
      return finish(Finish{.code = s_.stop_code, .message = stop_words(s_.stop_code)});
    }
    const auto cause = std::find_if(s_.ends.begin(), s_.ends.end(), [code = root_cause(codes)](const auto& end) {
      return !end.started_again && end.code == code;
    });
    finish(finish_of(SupervisorVerdict{.cause = *cause, .prefix = ""}));
  }

  // PeerLost is only a consequence, so the first end with another code, if there is one, is given as the cause.
  [[nodiscard]] Finish finish_of(const SupervisorVerdict& verdict) const {
    const WorkerEndRecord* cause = &verdict.cause;
    for (const WorkerEndRecord& end : s_.ends) {
      if (cause->code == code_of(ExitCode::kPeerLost) && end.code != code_of(ExitCode::kPeerLost) && !end.started_again)
        cause = &end;
    }
    const bool words_alone = is_input_code(cause->code) && !cause->message.empty();
    return Finish{.code = cause->code,
                  .message = verdict.prefix + (words_alone ? cause->message : describe_worker_end(*cause)),
                  .message_names_code = !words_alone && cause->how == "ended with " + describe_exit(cause->code),
                  .rank = cause->rank,
                  .step = cause->step};
  }

  void finish(Finish output) {
    s_.finished = true;
    out_.emplace_back(std::move(output));
  }

  SupervisorState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<SupervisorOutput> out_;
};

}  // namespace

std::vector<SupervisorOutput> step(SupervisorState& state, const SupervisorEvent& event, TimePoint now) {
  if (state.finished) return {};
  SupervisorStepper stepper(state, now);
  stepper.begin();
  std::visit(stepper, event);
  stepper.settle();
  return std::move(stepper).take();
}

std::string describe_exit(int code) {
  const char* signal_name = code > kSignalCodes ? sigabbrev_np(code - kSignalCodes) : nullptr;
  // 130 and 143 are also codes that a worker returns by itself; both read the same to a person.
  if (signal_name != nullptr) return "signal " + std::to_string(code - kSignalCodes) + " (SIG" + signal_name + ")";
  return "exit code " + std::to_string(code) + " (" + exit_reason(code) + ")";
}

}  // namespace lockstep
