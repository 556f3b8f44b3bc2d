#include "runner/recovery/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/clock.h"
#include "runner/contract/agreement.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"

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
    w.on_device = false;
    if (!w.code_when_killed) w.deadline.reset();
    // The end of a worker, if there was one, was reported before, and it says more than that a peer was lost.
    if (event.cause == kLeftCut || event.cause == kLeftRegroup || s_.broken_said == event.generation) return;
    tell_broken(event.generation, -1, event.cause, event.message);
  }

  void operator()(const WorkerAtStep& event) {
    SupervisedWorker& w = worker(event.local_rank);
    w.step = std::max(w.step, event.step);
    w.in_collective = event.in_collective;
    w.on_device = event.on_device;
    if (w.phase == WorkerPhase::kStarting && w.deadline && !w.code_when_killed) {
      w.deadline = std::max<TimePoint>(*w.deadline, event.progress_at + s_.options.start_timeout);
    }
    s_.furthest_step = std::max(s_.furthest_step, w.step);
  }

  void operator()(const CheckpointNews& event) {
    if (event.step <= s_.checkpoint_step) return;
    s_.checkpoint_step = event.step;
    clear_count();
  }

  void operator()(const ProgramProgressed&) { clear_count(); }

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
    if (s_.started && !s_.stopping() && !is_over()) return ask_to_leave(code);
    begin_stop(code);
    if (waits_for_the_member()) return;
    if (none_alive()) return finish_stopped();
    if (s_.stop_code == code && !is_over()) out_.emplace_back(Leave{code});
    if (!s_.signals_sent.empty()) signal_workers(event.signal);
  }

  void operator()(const Assignment& assignment) {
    if (!all_await() || s_.stopping() || is_over()) return refuse_assignment(assignment.generation);
    s_.assignment = assignment;
    s_.ends.clear();
    s_.said_ready = false;
    for (SupervisedWorker& w : s_.workers) {
      w.phase = WorkerPhase::kPlaced;
      w.generation = assignment.generation;
      w.incidents_seen = s_.incidents;
    }
    out_.emplace_back(assignment);
  }

  void operator()(const CutGroup& event) {
    bool any = false;
    for (SupervisedWorker& w : s_.workers) {
      if (w.phase != WorkerPhase::kPlaced || w.generation != event.generation || w.was_cut) continue;
      w.was_cut = true;
      w.cut_at = now_;
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
    if (event.code == 0) {
      s_.stop_deadline = s_.stop_deadline ? std::min(*s_.stop_deadline, now_ + kEndGrace) : now_ + kEndGrace;
    } else if (s_.verdict) {
      return;  // the workers were told to end when the node gave up
    } else if (is_stop(event.code)) {
      begin_stop(event.code);
      signal_workers(s_.stop_code - kSignalCodes);
    } else if (event.code == code_of(ExitCode::kPeerLost)) {
      // Too few nodes were ready for too long. Rank 0 writes its state to a checkpoint before it ends.
      begin_stop(code_of(ExitCode::kTerminated));
      signal_workers(SIGTERM);
    } else {
      end_workers(event.code);
    }
  }

  void operator()(const SupervisorTick&) {
    // What ends the node comes first, so that no worker is started after it.
    if (waits_to_be_told() && now_ >= *s_.told_deadline) begin_stop(s_.asked_code);
    for (const bool was_killed : {true, false}) {
      for (int rank = 0; rank < static_cast<int>(s_.workers.size()); ++rank) {
        const SupervisedWorker& w = worker(rank);
        const bool is_due = w.deadline && now_ >= *w.deadline;
        if (is_due && w.code_when_killed.has_value() == was_killed) on_worker_deadline(rank);
      }
      abandon_backoffs();
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
  void clear_count() {
    if (!s_.options.restarts_are_total) s_.restarts.clear();
    s_.incidents_without_progress = 0;
    s_.machine_faults = 0;
  }

  void shift_deadlines(std::chrono::steady_clock::duration gap) {
    for (SupervisedWorker& w : s_.workers) {
      if (w.deadline) *w.deadline += gap;
      w.cut_at += gap;
    }
    if (s_.stop_deadline) *s_.stop_deadline += gap;
    if (s_.told_deadline) *s_.told_deadline += gap;
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

  [[nodiscard]] bool waits_to_be_told() const { return s_.told_deadline && !is_over(); }

  [[nodiscard]] bool has_trained() const { return s_.furthest_step > 0 || s_.checkpoint_step >= 0; }

  [[nodiscard]] int rank_of(int local_rank) const { return (s_.assignment ? s_.assignment->rank : 0) + local_rank; }

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

  // Ends all workers that are still alive, because the node or the job ends with `code`. Rank 0 first writes the steps
  // that it holds, unless they led to a loss that is not finite; it has stop_timeout for that. The others are killed;
  // their ends count as consequences (PeerLost), not as causes.
  void end_workers(int code) {
    s_.writes_first = code != code_of(ExitCode::kNotFinite) && has_rank_zero() && holds_steps(0);
    for (int rank = s_.writes_first ? 1 : 0; rank < std::ssize(s_.workers); ++rank) {
      kill(rank, code_of(ExitCode::kPeerLost), "");
    }
    if (!s_.writes_first) return;
    (*this)(CutGroup{s_.assignment->generation, exit_reason(code), ""});  // its peers end
    signal_workers(SIGTERM);
    s_.stop_deadline = now_ + s_.options.stop_timeout;
  }

  [[nodiscard]] bool has_rank_zero() const { return s_.assignment && s_.assignment->rank == 0; }

  [[nodiscard]] bool holds_steps(int local_rank) {
    const SupervisedWorker& w = worker(local_rank);
    return s_.options.ranks_keep_state && w.alive() && !w.code_when_killed && w.step > 0;
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
    } else if (w.was_cut && w.on_device && now_ >= w.cut_at + kCutDeviceGrace) {
      kill_hanging(local_rank,
                   "still waiting for its device " + seconds_text(kCutDeviceGrace) + " after its group was cut");
    } else if (w.was_cut) {
      // It computes or writes, and notices the cut when that is done.
      const TimePoint of_device = w.cut_at + kCutDeviceGrace;
      w.deadline = of_device > now_ ? std::min(of_device, now_ + kCutGrace) : now_ + kCutGrace;
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
    if (none_alive()) {
      if (!waits_for_the_member()) finish_stopped();
      return;
    }
    const std::string message =
        s_.job_ended && s_.job_ended->code == 0
            ? "it had not left " + seconds_text(kEndGrace) + " after the end of the job"
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
    if (waits_to_be_told()) consider(s_.told_deadline);
  }

  // ---- assignments ----

  // A worker has ended while the assignment was under way. The member knows that by now, but the other nodes may have
  // their assignments and must not wait for this node.
  void refuse_assignment(uint64_t generation) {
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
          "", /*for_good=*/!has_trained());
    }
  }

  // ---- a bad end: a restart, or the node gives up ----

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
    const EndVerdict verdict =
        judge_end({.code = end.code,
                   .is_configuration_changed = termination_reason(end.code, end.message) == kConfigurationChanged,
                   .after_first_commit = has_trained()});
    if (verdict.consequence != Consequence::kRestart) return give_up(end, "", true);
    restart_or_give_up(end, verdict.avoids_machine);
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

  void restart_or_give_up(const WorkerEndRecord& end, bool is_machine_at_fault) {
    if (s_.leaves_because) return give_up(end, "", false);
    if (worker(end.local_rank).incidents_seen == s_.incidents) {
      count_incident();
      s_.machine_faults = is_machine_at_fault ? s_.machine_faults + 1 : 0;
      if (s_.machine_faults >= kMachineFaultsMax) {
        return give_up(end, "this machine was at fault " + std::to_string(s_.machine_faults) + " times in a row; ",
                       false);
      }
      if (s_.incidents_without_progress >= kNoProgressIncidentsMax && !s_.options.restarts_are_total) {
        return give_up(end,
                       "crash loop: " + std::to_string(kNoProgressIncidentsMax) +
                           " restarts in a row came no further than step " +
                           std::to_string(std::max<int64_t>(s_.furthest_step, 0)) + "; ",
                       false);
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
    if (s_.options.restarts_are_total) return;
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
    if (!s_.assignment) return "starting it again";
    if (!s_.options.ranks_keep_state)
      return "starting all ranks again, from the program's own checkpoint if it has one";
    const bool others_hold_state = s_.assignment->world_size > s_.options.nproc ||
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
    SupervisorVerdict verdict{.cause = cause, .prefix = std::move(prefix)};
    // What failed first is the reason, and not that rank 0 could not be started to write the state.
    if (s_.leaves_because && cause.code != code_of(ExitCode::kNotFinite)) verdict = *s_.leaves_because;
    const bool loses_steps = has_unwritten_steps_without_rank_zero(verdict);
    if (loses_steps && starts_rank_zero_to_write(verdict)) return;
    if (loses_steps) {
      verdict.suffix =
          "; the steps since the newest checkpoint are lost, because rank 0, which alone writes checkpoints, is gone";
    }
    s_.verdict = verdict;
    out_.emplace_back(
        NodeFailed{.code = verdict.cause.code, .message = finish_of(verdict).message, .for_good = for_good});
    end_workers(verdict.cause.code);
  }

  // True when the other ranks of this node hold steps that are in no checkpoint, and rank 0 does not. (Ranks of other
  // nodes keep their state when this node ends.)
  [[nodiscard]] bool has_unwritten_steps_without_rank_zero(const SupervisorVerdict& verdict) {
    if (verdict.cause.code == code_of(ExitCode::kNotFinite) || !has_rank_zero() || holds_steps(0)) return false;
    if (s_.assignment->nnodes > 1) return false;
    for (int rank = 1; rank < std::ssize(s_.workers); ++rank) {
      if (holds_steps(rank) && worker(rank).step > s_.checkpoint_step) return true;
    }
    return false;
  }

  // The coordinator places a last group, in which rank 0 gets the state, and then tells this node to leave. Every
  // worker that does not run is needed for that. Not possible when the cause of the end would still be there: a broken
  // device, a process that cannot be killed, or one that runs with other terms than the others.
  bool starts_rank_zero_to_write(const SupervisorVerdict& verdict) {
    const SupervisedWorker& failed = worker(verdict.cause.local_rank);
    const bool is_device_broken = s_.machine_faults >= kMachineFaultsMax;
    const bool would_recur = is_device_broken || failed.is_given_up || failed.alive();
    if (s_.leaves_because || s_.asked_code != 0 || would_recur) return false;
    s_.leaves_because = verdict;
    out_.emplace_back(Remark{finish_of(verdict).message +
                             "; giving this node up after rank 0 has written what the other ranks hold"});
    for (int rank = 0; rank < std::ssize(s_.workers); ++rank) {
      if (!worker(rank).alive()) start(rank);
    }
    ask_to_leave(code_of(ExitCode::kTerminated));
    return true;
  }

  // ---- stopping and ending ----

  // The coordinator answers with a Regroup or a StopJob; the member does so when there is no coordinator.
  void ask_to_leave(int code) {
    if (code <= s_.asked_code) return;
    s_.asked_code = code;
    if (!s_.stop_deadline) s_.stop_deadline = now_ + s_.options.stop_timeout;
    if (!s_.told_deadline) s_.told_deadline = now_ + s_.options.stop_timeout / 2;
    out_.emplace_back(Leave{code});
  }

  void begin_stop(int code) {
    s_.told_deadline.reset();
    s_.stop_code = std::max(
        {s_.stop_code, s_.asked_code,
         code == code_of(ExitCode::kInterrupted) ? code_of(ExitCode::kInterrupted) : code_of(ExitCode::kTerminated)});
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

  // Ends workers that are in no group: they have nothing to save, and no assignment will come any more.
  void end_the_unplaced() {
    const bool writes_first = s_.writes_first || (s_.job_ended && s_.job_ended->code == code_of(ExitCode::kPeerLost));
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
    if (s_.leaves_because) return finish(finish_of(*s_.leaves_because));
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
    return Finish{
        .code = cause->code,
        .message = verdict.prefix + (words_alone ? cause->message : describe_worker_end(*cause)) + verdict.suffix,
        .message_names_code =
            !words_alone && verdict.suffix.empty() && cause->how == "ended with " + describe_exit(cause->code),
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
