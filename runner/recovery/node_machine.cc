#include "runner/recovery/node_machine.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/one_line.h"
#include "runner/contract/agreement.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/generation.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep {
namespace {

constexpr const char* kCoordinatorLost = "CoordinatorLost";
// What the user can do, at the end of the message for a node that finds no coordinator.
constexpr const char* kWhatToDoWithoutCoordinator =
    "; check that node 0 runs "
    "and that --coordinator names it, or wait longer with --rendezvous_timeout_seconds";

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

// How the newest group that committed a step ended. Later groups, without a commit, are part of the same recovery. A
// commit belongs to the newest group that was placed before it, because workers leave a group before the next one.
BrokenBefore broken_before(const std::vector<GroupEnd>& group_ends, const std::optional<Commit>& commit,
                           TimePoint now) {
  const auto has_committed = [&](const GroupEnd& end) { return commit && commit->at > end.placed_at; };
  const auto found = std::find_if(group_ends.rbegin(), group_ends.rend(), has_committed);
  if (found == group_ends.rend()) return {};
  return {.seconds = std::chrono::duration<double>(now - found->at).count(),
          .silent_seconds = found->silent_seconds,
          .committed_seconds = std::chrono::duration<double>(now - commit->at).count(),
          .generation = found->generation,
          .step = commit->step,
          .step_in_flight = found->step_in_flight};
}

// One call of step(): changes the state and collects the outputs.
class NodeStepper {
 public:
  NodeStepper(NodeState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<NodeOutput> take() && { return std::move(out_); }

  // Before every event.
  void begin() {
    if (s_.deadline && now_ - *s_.deadline > kAsleepMin) shift_deadlines(now_ - s_.last_event);
    s_.last_event = now_;
  }

  void operator()(const Started&) {
    LOCKSTEP_CHECK(!s_.started, "Started comes once");
    s_.started = true;
    s_.workers.assign(static_cast<size_t>(s_.options.nproc), WorkerState{});
    for (int rank = 0; rank < s_.options.nproc; ++rank) start(rank);
    find_coordinator("no coordinator has answered yet");
  }

  // ---- the coordinator ----

  void operator()(const CoordinatorFound& found) {
    if (s_.job_ended) return;
    if (s_.joined) lose_coordinator("another coordinator was found");
    if (attempt_of(found.welcome.generation) < attempt_of(s_.highest)) {
      const uint32_t seen = attempt_of(s_.highest);
      const std::string refusal = "the coordinator found is of attempt " +
                                  std::to_string(attempt_of(found.welcome.generation)) + ", one of attempt " +
                                  std::to_string(seen) + " was seen before" + clock_hint(seen, "node 0");
      remark_once(refusal);
      return find_coordinator(refusal);
    }
    s_.highest = std::max(s_.highest, found.welcome.generation);
    s_.last_refusal.clear();
    s_.joined = true;
    s_.last_heard = now_;
    send(Join{s_.options.nproc, s_.highest, s_.ready, s_.leaving_code, s_.done,
              broken_before(s_.group_ends, found.commit, now_), terms_if_ready(), claims_if_ready()});
    if (s_.failed) send(*s_.failed);
    if (s_.unsent_checkpoint) send(CheckpointNews{*std::exchange(s_.unsent_checkpoint, std::nullopt)});
  }

  void operator()(const CoordinatorLost& lost) {
    if (!s_.job_ended) lose_coordinator(lost.why);
  }

  void operator()(const CoordinatorRefused& event) {
    if (s_.job_ended) return;
    // The text may come from any program that listens at that address.
    const std::string message = one_line(event.refused.message);
    if (!event.refused.retry && s_.failed) return end_job({s_.failed->code, s_.failed->message});
    if (!event.refused.retry) return end_job({code_of(ExitCode::kUsage), message});
    remark_once("refused: " + message);
    lose_coordinator("refused: " + message);
  }

  void operator()(const SearchFailed& failed) { s_.last_problem = failed.why; }

  void operator()(const CoordinatorSent& sent) {
    if (!s_.joined || s_.job_ended) return;
    s_.last_heard = now_;
    s_.seeking_since.reset();
    std::visit([this](const auto& message) { handle(message); }, sent.message);
  }

  // ---- the workers ----

  void operator()(const WorkerHello& event) {
    WorkerState& w = worker(event.local_rank);
    if (w.phase != WorkerPhase::kStarting) return;
    w.phase = WorkerPhase::kAwaiting;
    w.terms = event.terms;
    if (!w.code_when_killed) w.deadline.reset();
    if (!s_.stopping() && !is_over()) compare_terms(event.local_rank);
  }

  void operator()(const WorkerLeft& event) {
    WorkerState& w = worker(event.local_rank);
    if (w.phase != WorkerPhase::kPlaced || event.generation < w.generation) return;
    w.phase = WorkerPhase::kAwaiting;
    w.claim = event.claim;
    w.was_cut = false;
    w.in_collective = false;
    w.on_device = false;
    if (event.cause == kLeftReplaced) w.outlives = false;
    if (!w.code_when_killed) w.deadline.reset();
    // The end of a worker, if there was one, was reported before, and it says more than that a peer was lost.
    const bool was_told = event.cause == kLeftCut || event.cause == kLeftRegroup;
    if (was_told || s_.broken_reported == event.generation) return;
    report_broken({.generation = event.generation, .rank = -1, .cause = event.cause, .message = event.message});
  }

  void operator()(const WorkerAtStep& event) {
    WorkerState& w = worker(event.local_rank);
    w.step = std::max(w.step, event.step);
    w.in_collective = event.in_collective;
    w.on_device = event.on_device;
    if (w.phase == WorkerPhase::kStarting && w.deadline && !w.code_when_killed) {
      w.deadline = std::max<TimePoint>(*w.deadline, event.progress_at + s_.options.rendezvous_timeout);
    }
    s_.furthest_step = std::max(s_.furthest_step, event.step);
    s_.kept_step = std::max(s_.kept_step, event.step);
  }

  // Without any rank that holds the state, the run goes on from a checkpoint, or from the beginning.
  void operator()(const WorkerResumed& event) {
    if (event.resumed_step >= s_.placed_step) return;
    s_.kept_step = s_.placed_step = event.resumed_step;
    s_.has_lost_steps = true;
  }

  void operator()(const CheckpointNews& event) {
    note_checkpoint(event.step);
    if (s_.joined || s_.job_ended) {
      send_if_joined(event);
    } else {
      s_.unsent_checkpoint = event.step;
    }
  }

  void operator()(const ProgramProgressed&) { clear_count(); }

  void operator()(const WorkerOutlives& event) { worker(event.local_rank).outlives = true; }

  void operator()(const WorkerEnded& event) {
    WorkerState& w = worker(event.local_rank);
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

  void operator()(const WorkerSilent& event) {
    kill_hanging(event.local_rank, "its process has not run for " +
                                       seconds_text(std::chrono::floor<std::chrono::seconds>(event.since)) +
                                       " (stopped, frozen or starved)");
  }

  void operator()(const StopRequested& event) {
    if (!s_.signals.insert(event.signal).second) return;
    const int code = kSignalCodes + event.signal;
    if (s_.started && !s_.stopping() && !is_over()) return ask_to_leave(code);
    begin_stop(code);
    if (waits_for_the_coordinator()) return;
    if (none_alive()) return finish_stopped();
    if (s_.stop_code == code && !is_over()) leave(code);
    if (!s_.signals_sent.empty()) signal_workers(event.signal);
  }

  void operator()(const NodeTick&) {
    if (!s_.job_ended) judge_silence();
    // What ends the node comes first, so that no worker is started after it.
    if (waits_for_an_answer() && now_ >= *s_.answer_deadline) begin_stop(s_.asked_code);
    for (const bool was_killed : {true, false}) {
      for (int rank = 0; rank < static_cast<int>(s_.workers.size()); ++rank) {
        const WorkerState& w = worker(rank);
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
    // A node that was told to leave and whose workers are done: only its report is left, and nobody to send it to.
    const bool is_idle = s_.leaving_code != 0 && (s_.done || s_.failed);
    if (is_idle && !s_.joined && !s_.job_ended && !s_.finished) {
      give_up_search();
      conclude();
    }
    update_ready();
    set_deadline();
  }

 private:
  // ---- messages of the coordinator ----

  void handle(const Welcome&) {}
  void handle(const NodeNumber&) {}
  void handle(const Refused&) {}
  void handle(const StoreAnswerTo&) {}
  void handle(const CoordinatorBeat&) {}

  void handle(const Assignment& assignment) {
    if (assignment.generation <= s_.highest) return;
    s_.highest = assignment.generation;
    if (!std::exchange(s_.ready, false) || !presumes_what_they_hold(assignment)) {
      // A worker ended, or all were told to stop, while the assignment was under way. The others must not wait.
      return send(Broken{assignment.generation, -1, kNotReady, "its workers were not ready for the assignment"});
    }
    s_.placed = assignment.generation;
    s_.placed_at = now_;
    s_.placed_step = s_.kept_step;
    s_.assignment = assignment;
    s_.ends.clear();
    for (WorkerState& w : s_.workers) {
      w.phase = WorkerPhase::kPlaced;
      w.generation = assignment.generation;
      w.incidents_seen = s_.incidents;
    }
    out_.emplace_back(assignment);
  }

  // The messages below may quote a worker of another node, so their text is made one line.
  void handle(const CutGroup& cut) {
    if (cut.generation == s_.placed) cut_group(cut.cause, one_line(cut.message));
  }

  void handle(const Regroup& regroup) {
    if (regroup.generation == s_.placed) {
      note_group_end({.step_in_flight = false});
      if (regroup.leaving && !s_.stopping()) begin_stop(code_of(ExitCode::kTerminated));
      out_.emplace_back(LeaveTogether{regroup.generation, regroup.leaving ? s_.stop_code : 0});
    } else if (regroup.leaving) {
      stop_workers(s_.leaving_code);
    }
  }

  void handle(const StopJob& stop) {
    s_.leaving_code = stop.code;
    stop_workers(stop.code);
  }

  void handle(const KillWorker& kill) {
    // Workers that wait for an assignment do not hang, so such a message is about the group before.
    const bool is_ours = kill.local_rank >= 0 && kill.local_rank < s_.options.nproc;
    if (s_.placed != 0 && is_ours) kill_hanging(kill.local_rank, one_line(kill.message));
  }

  void handle(const EndJob& job) { end_job({job.code, one_line(job.message)}); }
  void handle(const CheckpointNews& news) { note_checkpoint(news.step); }

  // ---- finding, joining and losing the coordinator ----

  void send(NodeMessage message) { out_.emplace_back(SendToCoordinator{std::move(message)}); }
  // Without a coordinator nothing is sent; the next Join, or a message after it, reports the same.
  void send_if_joined(NodeMessage message) {
    if (s_.joined && !s_.job_ended) send(std::move(message));
  }

  // Notes a refusal once, because it recurs with every attempt to join as long as its reason lasts.
  void remark_once(const std::string& refusal) {
    if (std::exchange(s_.last_refusal, refusal) != refusal) out_.emplace_back(Remark{refusal});
  }

  void find_coordinator(const std::string& problem) {
    s_.last_problem = problem;
    if (!s_.seeking_since) s_.seeking_since = now_;
    out_.emplace_back(FindCoordinator{});
  }

  // Without the coordinator the workers get no store answers, and no cut when a peer is lost. So they leave their group
  // at once, also while they stop. (Rank 0 writes its last checkpoint before the last collective of a stop.)
  void lose_coordinator(const std::string& why, double silent_seconds = -1.0) {
    s_.joined = false;
    if (s_.placed != 0) cut_group(kCoordinatorLost, why, silent_seconds);
    find_coordinator(why);
    // No coordinator can make all nodes stop at one step, so this node stops by itself.
    if (s_.leaving_code != 0) stop_workers(s_.leaving_code);
  }

  void judge_silence() {
    if (s_.joined && now_ - s_.last_heard >= s_.options.heartbeat_timeout) {
      lose_coordinator("nothing heard from the coordinator for " + seconds_text(s_.options.heartbeat_timeout),
                       std::chrono::duration<double>(now_ - s_.last_heard).count());
    }
    // A coordinator that was found has heartbeat_timeout to send its first message.
    if (is_seeking() && now_ - *s_.seeking_since >= seeking_patience()) give_up_search();
  }

  [[nodiscard]] bool is_seeking() const { return !s_.joined && s_.seeking_since; }

  [[nodiscard]] std::chrono::milliseconds seeking_patience() const {
    if (s_.failed) return kGivenUpTimeouts * s_.options.heartbeat_timeout;
    return s_.options.rendezvous_timeout;
  }

  void give_up_search() {
    if (s_.done) return end_job({code_of(ExitCode::kDone), ""});
    if (s_.failed) return end_job({s_.failed->code, s_.failed->message});
    // Its workers were in a group, so they may hold steps.
    const std::string lost =
        s_.group_ends.empty()
            ? ""
            : "; node 0, which alone writes checkpoints, is gone, and the steps since the newest one with it";
    end_job({code_of(ExitCode::kPeerLost), "no coordinator for " + seconds_text(s_.options.rendezvous_timeout) + ": " +
                                               s_.last_problem + lost + kWhatToDoWithoutCoordinator});
  }

  // ---- the group ----

  struct HowItEnded {
    bool step_in_flight = true;
    double silent_seconds = -1.0;
  };
  // Records that the workers' group cannot go on or is being left. The first report for a group gives the time.
  void note_group_end(const HowItEnded& how) {
    if (s_.group_ends.empty() || s_.group_ends.back().generation != s_.placed) {
      if (s_.group_ends.size() == kGroupEndsKept) s_.group_ends.erase(s_.group_ends.begin());
      s_.group_ends.push_back({s_.placed, s_.placed_at, now_, how.silent_seconds, how.step_in_flight});
    }
    s_.group_ends.back().step_in_flight = s_.group_ends.back().step_in_flight || how.step_in_flight;
  }

  // Makes the workers leave their group.
  void cut_group(const std::string& cause, const std::string& message, double silent_seconds = -1.0) {
    note_group_end({.silent_seconds = silent_seconds});
    for (WorkerState& w : s_.workers) {
      if (w.phase != WorkerPhase::kPlaced || w.was_cut) continue;
      w.was_cut = true;
      w.cut_at = now_;
      if (!w.code_when_killed) w.deadline = now_ + kCutGrace;
    }
    out_.emplace_back(CutGroup{s_.placed, cause, message});
  }

  void report_broken(Broken broken) {
    s_.broken_reported = broken.generation;
    if (broken.generation != s_.placed || s_.job_ended) return;
    note_group_end({});
    send_if_joined(std::move(broken));
  }

  void report_broken(uint64_t generation, const WorkerEndRecord& end) {
    report_broken({.generation = generation,
                   .rank = end.rank,
                   .cause = exit_reason(end.code),
                   .message = describe_worker_end(end),
                   .detection_seconds = end.detection_seconds,
                   .exit_code = end.code});
  }

  [[nodiscard]] std::string terms_if_ready() const { return s_.ready ? s_.workers[0].terms : std::string(); }

  [[nodiscard]] std::vector<StateClaim> claims_if_ready() const {
    std::vector<StateClaim> claims;
    const bool any = s_.ready && std::any_of(s_.workers.begin(), s_.workers.end(),
                                             [](const WorkerState& w) { return w.claim.has_state; });
    for (const WorkerState& w : s_.workers) {
      if (any) claims.push_back(w.claim);
    }
    return claims;
  }

  // False when a worker that held a state has ended, and was started again, since the node said that it was ready: the
  // plans count on that state.
  [[nodiscard]] bool presumes_what_they_hold(const Assignment& assignment) const {
    for (size_t rank = 0; rank < std::min(s_.workers.size(), assignment.plans.size()); ++rank) {
      const Plan& plan = assignment.plans[rank];
      if (plan.source >= 0 && plan.state.rank < 1 && !s_.workers[rank].claim.has_state) return false;
    }
    return true;
  }

  void update_ready() {
    const bool ready = !s_.finished && !s_.stopping() && !is_over() && all_await();
    if (std::exchange(s_.ready, ready) == ready) return;
    if (ready) s_.placed = 0;
    if (!s_.finished && !s_.done) send_if_joined(NodeReady{ready, s_.highest, terms_if_ready(), claims_if_ready()});
  }

  // The workers of one node have the same flags and program, but may find different devices, or different data when the
  // data is replaced while they start.
  void compare_terms(int local_rank) {
    const WorkerState& w = worker(local_rank);
    for (int other = 0; other < s_.options.nproc; ++other) {
      const std::string why = disagreement(worker(other).terms, "rank " + std::to_string(rank_of(other)), w.terms,
                                           "rank " + std::to_string(rank_of(local_rank)));
      if (why.empty()) continue;
      return give_up(
          WorkerEndRecord{
              .local_rank = local_rank, .rank = rank_of(local_rank), .code = code_of(ExitCode::kUsage), .message = why},
          "", /*ends_job=*/!has_trained());
    }
  }

  void note_checkpoint(int64_t step) {
    if (step <= s_.checkpoint_step) return;
    s_.checkpoint_step = step;
    clear_count();
  }

  void clear_count() {
    if (!s_.options.restarts_are_total) s_.restarts.clear();
    s_.incidents_without_progress = 0;
    s_.machine_faults = 0;
  }

  // ---- the workers ----

  WorkerState& worker(int local_rank) {
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
  [[nodiscard]] bool is_over() const { return s_.complete || s_.gave_up || s_.job_ended; }

  // This node gives up, and as far as it knows, the job ends. The coordinator decides that within a few heartbeats.
  [[nodiscard]] bool waits_for_the_coordinator() const { return s_.gave_up && !s_.job_ended; }

  [[nodiscard]] bool waits_for_an_answer() const { return s_.answer_deadline && !is_over(); }

  [[nodiscard]] bool has_trained() const { return s_.furthest_step > 0 || s_.checkpoint_step >= 0; }

  [[nodiscard]] int rank_of(int local_rank) const { return (s_.assignment ? s_.assignment->rank : 0) + local_rank; }

  [[nodiscard]] bool has_rank_zero() const { return s_.assignment && s_.assignment->rank == 0; }

  [[nodiscard]] bool holds_steps(int local_rank) {
    const WorkerState& w = worker(local_rank);
    return s_.options.ranks_keep_state && w.alive() && !w.code_when_killed && w.step > 0;
  }

  void start(int local_rank) {
    WorkerState& w = worker(local_rank);
    w = WorkerState{};
    w.incidents_seen = s_.incidents;
    w.deadline = now_ + s_.options.rendezvous_timeout;
    for (WorkerEndRecord& end : s_.ends) {
      if (end.local_rank == local_rank) end.started_again = true;
    }
    out_.emplace_back(StartWorker{local_rank});
  }

  void kill(int local_rank, int code, std::string message) {
    WorkerState& w = worker(local_rank);
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

  void signal_workers(int signal) {
    if (none_alive() || !s_.signals_sent.insert(signal).second) return;
    out_.emplace_back(SignalWorkers{signal});
  }

  // Ends all workers that are still alive, because the node or the job ends with `code`. Rank 0, and each rank of a
  // program that outlives its groups, first writes the steps that it holds, unless they led to a loss that is not
  // finite; it has stop_timeout for that. The others are killed; their ends count as consequences (PeerLost), not as
  // causes.
  void end_workers(int code) {
    for (int local_rank = 0; local_rank < std::ssize(s_.workers); ++local_rank) {
      const WorkerState& w = worker(local_rank);
      const bool is_rank_zero = local_rank == 0 && has_rank_zero();
      const bool outlives = w.outlives && w.alive() && !w.code_when_killed;
      const bool writes =
          code != code_of(ExitCode::kNotFinite) && (outlives || (is_rank_zero && holds_steps(local_rank)));
      s_.writes_first = s_.writes_first || writes;
      if (!writes) kill(local_rank, code_of(ExitCode::kPeerLost), "");
    }
    if (!s_.writes_first) return;
    if (s_.placed != 0) cut_group(exit_reason(code), "its peers end");
    signal_workers(SIGTERM);
    s_.stop_deadline = now_ + s_.options.stop_timeout;
  }

  // ---- deadlines ----

  // This process did not run for `gap`: nobody had a chance to be heard in that time.
  void shift_deadlines(std::chrono::steady_clock::duration gap) {
    for (WorkerState& w : s_.workers) {
      if (w.deadline) *w.deadline += gap;
      w.cut_at += gap;
    }
    if (s_.stop_deadline) *s_.stop_deadline += gap;
    if (s_.answer_deadline) *s_.answer_deadline += gap;
    if (s_.seeking_since) *s_.seeking_since += gap;
    s_.last_heard += gap;
  }

  void on_worker_deadline(int local_rank) {
    WorkerState& w = worker(local_rank);
    w.deadline.reset();
    if (w.phase == WorkerPhase::kBackoff) {
      start(local_rank);
    } else if (w.code_when_killed) {
      give_up_unkillable(local_rank);
    } else if (w.phase == WorkerPhase::kStarting) {
      kill_hanging(local_rank, "it did not say hello within " + seconds_text(s_.options.rendezvous_timeout) +
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
    WorkerState& w = worker(local_rank);
    const bool was_placed = w.phase == WorkerPhase::kPlaced;
    w.phase = WorkerPhase::kEnded;
    w.is_given_up = true;
    const WorkerEndRecord end{.local_rank = local_rank,
                              .rank = rank_of(local_rank),
                              .code = code_of(ExitCode::kTimeout),
                              .how = "did not end " + seconds_text(kKillGrace) + " after SIGKILL",
                              .message = "its device or a file system does not answer: look at this machine",
                              .step = w.step};
    if (record_end(end, was_placed)) give_up(end, "", /*ends_job=*/false);
  }

  void on_stop_deadline() {
    s_.stop_deadline.reset();
    if (none_alive()) {
      if (!waits_for_the_coordinator()) finish_stopped();
      return;
    }
    const std::string message =
        s_.job_ended && s_.job_ended->code == 0
            ? "it had not left " + seconds_text(kEndGrace) + " after the end of the job"
            : "it had not stopped " + seconds_text(s_.options.stop_timeout) + " after it was asked to";
    for (int rank = 0; rank < s_.options.nproc; ++rank) kill_hanging(rank, message);
  }

  void set_deadline() {
    s_.deadline.reset();
    if (s_.finished) return;
    const auto consider = [&](const std::optional<TimePoint>& at) {
      if (at && (!s_.deadline || *at < *s_.deadline)) s_.deadline = at;
    };
    for (const WorkerState& w : s_.workers) consider(w.deadline);
    consider(s_.stop_deadline);
    if (waits_for_an_answer()) consider(s_.answer_deadline);
    if (s_.job_ended) return;
    // Ticks come at least so often, so that a standstill of this process shows.
    consider(now_ + kBeatInterval);
    if (s_.joined) consider(s_.last_heard + s_.options.heartbeat_timeout);
    if (is_seeking()) consider(*s_.seeking_since + seeking_patience());
  }

  // ---- a bad end: a restart, or the node gives up ----

  [[nodiscard]] WorkerEndRecord record_of(const WorkerEnded& event, const WorkerState& w) const {
    WorkerEndRecord record{.local_rank = event.local_rank,
                           .rank = rank_of(event.local_rank),
                           .pid = event.pid,
                           .code = event.code,
                           .how = "ended with " + describe_exit(event.code),
                           .message = event.message,
                           .step = w.step,
                           .detection_seconds = event.detection_seconds};
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
    if (verdict.consequence != Consequence::kRestart) return give_up(end, "", /*ends_job=*/true);
    restart_or_give_up(end, verdict.avoids_machine);
  }

  // Records the end and reports it. Returns false when no restart is to follow, because the job is over or stops. (The
  // other workers may then still write a checkpoint.)
  bool record_end(const WorkerEndRecord& end, bool was_placed) {
    s_.ends.push_back(end);
    // The end of a worker that was killed because the job was over is not reported.
    const bool is_consequence = worker(end.local_rank).code_when_killed == code_of(ExitCode::kPeerLost);
    if (is_over()) {
      if (!is_consequence && !s_.gave_up) remark_on(end);
      return false;
    }
    if (was_placed) report_broken(worker(end.local_rank).generation, end);
    if (!s_.stopping()) return true;
    s_.stop_deadline = now_ + s_.options.stop_timeout;
    return false;
  }

  void remark_on(const WorkerEndRecord& end) {
    out_.emplace_back(Remark{describe_worker_end(end) +
                             (s_.complete ? ", after training was complete" : ", after the job had ended")});
  }

  void restart_or_give_up(const WorkerEndRecord& end, bool is_machine_at_fault) {
    if (s_.leaves_because) return give_up(end, "", /*ends_job=*/false);
    if (worker(end.local_rank).incidents_seen == s_.incidents) {
      count_incident(is_machine_at_fault);
      if (const std::string why = why_no_restart(); !why.empty()) return give_up(end, why, /*ends_job=*/false);
      s_.restarts.push_back(now_);
    }
    restart(end);
  }

  void count_incident(bool is_machine_at_fault) {
    ++s_.incidents;
    s_.incidents_without_progress = has_progressed() ? 0 : s_.incidents_without_progress + 1;
    s_.incident_step = s_.kept_step;
    s_.furthest_incident_step = std::max(s_.furthest_step, s_.furthest_incident_step);
    s_.has_lost_steps = false;
    s_.machine_faults = is_machine_at_fault ? s_.machine_faults + 1 : 0;
    if (s_.options.restarts_are_total) return;
    std::erase_if(s_.restarts, [&](TimePoint at) { return now_ - at > kRestartWindow; });
  }

  // Since the incident before. A program that always fails at the same step, and then loses what it has made since its
  // checkpoint, makes these steps again each time without any progress. But a run that has lost its steps once, and in
  // which the others keep the state at each incident after that, does advance.
  [[nodiscard]] bool has_progressed() const {
    if (s_.furthest_step > s_.furthest_incident_step) return true;
    return !s_.has_lost_steps && s_.kept_step > s_.incident_step;
  }

  // The beginning of the message with which the node gives up after this incident; empty: it does not.
  [[nodiscard]] std::string why_no_restart() const {
    if (s_.machine_faults >= kMachineFaultsMax) {
      return "this machine was at fault " + std::to_string(s_.machine_faults) + " times in a row; ";
    }
    if (s_.incidents_without_progress >= kNoProgressIncidentsMax && !s_.options.restarts_are_total) {
      return "crash loop: " + std::to_string(kNoProgressIncidentsMax) +
             " restarts in a row came no further than step " + std::to_string(std::max<int64_t>(s_.furthest_step, 0)) +
             "; ";
    }
    if (std::ssize(s_.restarts) >= s_.options.max_restarts) {
      return "giving up after " + std::to_string(s_.restarts.size()) + " restarts (--max_restarts " +
             std::to_string(s_.options.max_restarts) + "); ";
    }
    return "";
  }

  void restart(const WorkerEndRecord& end) {
    ++s_.restarts_total;
    out_.emplace_back(RestartDecision{.level = "process",
                                      .reason = exit_reason(end.code),
                                      .line = describe_worker_end(end) + "; " + what_follows(end.local_rank) +
                                              " (restart " + std::to_string(s_.restarts.size()) + " of " +
                                              std::to_string(s_.options.max_restarts) + ")"});
    if (s_.incidents_without_progress == 0) return start(end.local_rank);
    WorkerState& w = worker(end.local_rank);
    w.phase = WorkerPhase::kBackoff;
    w.deadline = now_ + std::min(kBackoffMax, kBackoffInitial * (1 << (s_.incidents_without_progress - 1)));
  }

  // `local_rank`: of the worker that has ended.
  [[nodiscard]] std::string what_follows(int local_rank) {
    if (!s_.assignment) return "starting it again";
    const bool have_others_outlived = worker(local_rank).outlives && s_.assignment->world_size > s_.options.nproc;
    const bool others_outlive =
        have_others_outlived ||
        std::any_of(s_.workers.begin(), s_.workers.end(), [](const WorkerState& w) { return w.alive() && w.outlives; });
    if (!s_.options.ranks_keep_state && !others_outlive)
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

  // `ends_job`: as far as this node knows, the job ends with it; then it waits for the coordinator's answer.
  void give_up(const WorkerEndRecord& cause, std::string prefix, bool ends_job) {
    GiveUpReason reason{.cause = cause, .prefix = std::move(prefix)};
    // What failed first is the reason, and not that rank 0 could not be started to write the state.
    if (s_.leaves_because && cause.code != code_of(ExitCode::kNotFinite)) reason = *s_.leaves_because;
    const bool loses_steps = has_unwritten_steps_without_rank_zero(reason);
    if (loses_steps && starts_rank_zero_to_write(reason)) return;
    if (loses_steps) {
      reason.suffix =
          "; the steps since the newest checkpoint are lost, because rank 0, which alone writes checkpoints, is gone";
    }
    s_.gave_up = reason;
    s_.failed = NodeFailed{.code = reason.cause.code, .message = finish_of(reason).message, .ends_job = ends_job};
    out_.emplace_back(RestartDecision{.level = "process",
                                      .reason = exit_reason(s_.failed->code),
                                      .line = s_.failed->message + "; giving this node up",
                                      .gives_up = true});
    send_if_joined(*s_.failed);
    end_workers(reason.cause.code);
    if (!ends_job) s_.job_ended = EndJob{s_.failed->code, s_.failed->message};
  }

  // True when the other ranks of this node hold steps that are in no checkpoint, and rank 0 does not. (Ranks of other
  // nodes keep their state when this node ends.)
  [[nodiscard]] bool has_unwritten_steps_without_rank_zero(const GiveUpReason& reason) {
    if (reason.cause.code == code_of(ExitCode::kNotFinite) || !has_rank_zero() || holds_steps(0)) return false;
    if (s_.assignment->nnodes > 1) return false;
    for (int rank = 1; rank < std::ssize(s_.workers); ++rank) {
      if (holds_steps(rank) && worker(rank).step > s_.checkpoint_step) return true;
    }
    return false;
  }

  // The coordinator places a last group, in which rank 0 gets the state, and then tells this node to leave. Every
  // worker that does not run is needed for that. Not possible when the cause of the end would still be there: a broken
  // device, a process that cannot be killed, or one that runs with other terms than the others.
  bool starts_rank_zero_to_write(const GiveUpReason& reason) {
    const WorkerState& failed = worker(reason.cause.local_rank);
    const bool is_device_broken = s_.machine_faults >= kMachineFaultsMax;
    const bool would_recur = is_device_broken || failed.is_given_up || failed.alive();
    if (s_.leaves_because || s_.asked_code != 0 || would_recur || !s_.joined) return false;
    s_.leaves_because = reason;
    out_.emplace_back(
        Remark{finish_of(reason).message + "; giving this node up after rank 0 has written what the other ranks hold"});
    for (int rank = 0; rank < std::ssize(s_.workers); ++rank) {
      if (!worker(rank).alive()) start(rank);
    }
    ask_to_leave(code_of(ExitCode::kTerminated));
    return true;
  }

  // ---- stopping and ending ----

  // The coordinator answers with a Regroup or a StopJob.
  void ask_to_leave(int code) {
    if (code <= s_.asked_code) return;
    s_.asked_code = code;
    if (!s_.stop_deadline) s_.stop_deadline = now_ + s_.options.stop_timeout;
    if (!s_.answer_deadline) s_.answer_deadline = now_ + s_.options.stop_timeout / 2;
    leave(code);
  }

  void leave(int code) {
    if (s_.leaving_code != 0 || s_.job_ended) return;
    s_.leaving_code = code;
    if (!s_.joined) return stop_workers(code);
    send(Leave{code});
  }

  void stop_workers(int code) {
    begin_stop(code);
    signal_workers(s_.stop_code - kSignalCodes);
  }

  void begin_stop(int code) {
    s_.answer_deadline.reset();
    s_.stop_code = std::max(
        {s_.stop_code, s_.asked_code,
         code == code_of(ExitCode::kInterrupted) ? code_of(ExitCode::kInterrupted) : code_of(ExitCode::kTerminated)});
    if (!s_.stop_deadline && !none_alive()) s_.stop_deadline = now_ + s_.options.stop_timeout;
  }

  // The job ends, for this node at least.
  void end_job(EndJob end) {
    if (s_.job_ended) return;
    s_.job_ended = std::move(end);
    const int code = s_.job_ended->code;
    if (code == 0) {
      s_.stop_deadline = s_.stop_deadline ? std::min(*s_.stop_deadline, now_ + kEndGrace) : now_ + kEndGrace;
    } else if (s_.gave_up) {
      return;  // the workers were told to end when the node gave up
    } else if (is_stop(code)) {
      stop_workers(code);
    } else if (code == code_of(ExitCode::kPeerLost)) {
      // Too few nodes were ready for too long. Rank 0 writes its state to a checkpoint before it ends.
      stop_workers(code_of(ExitCode::kTerminated));
    } else {
      end_workers(code);
    }
  }

  void abandon_backoffs() {
    if (!s_.stopping() && !is_over()) return;
    for (WorkerState& w : s_.workers) {
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
    if (s_.finished || may_go_on || waits_for_the_coordinator()) return;
    if (s_.gave_up) {
      finish(finish_of(*s_.gave_up));
    } else if (s_.job_ended) {
      finish(Finish{.code = s_.job_ended->code, .message = s_.job_ended->message});
    } else if (s_.complete) {
      report_done();
    } else if (s_.stopping()) {
      finish_stopped();
    }
  }

  void report_done() {
    if (std::exchange(s_.done, true)) return;
    s_.ready = false;
    s_.placed = 0;
    send_if_joined(NodeDone{});
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
    finish(finish_of(GiveUpReason{.cause = *cause, .prefix = ""}));
  }

  // PeerLost is only a consequence, so the first end with another code, if there is one, is given as the cause.
  [[nodiscard]] Finish finish_of(const GiveUpReason& reason) const {
    const WorkerEndRecord* cause = &reason.cause;
    for (const WorkerEndRecord& end : s_.ends) {
      if (cause->code == code_of(ExitCode::kPeerLost) && end.code != code_of(ExitCode::kPeerLost) && !end.started_again)
        cause = &end;
    }
    const bool words_alone = is_input_code(cause->code) && !cause->message.empty();
    return Finish{
        .code = cause->code,
        .message = reason.prefix + (words_alone ? cause->message : describe_worker_end(*cause)) + reason.suffix,
        .message_names_code =
            !words_alone && reason.suffix.empty() && cause->how == "ended with " + describe_exit(cause->code),
        .rank = cause->rank,
        .step = cause->step};
  }

  void finish(Finish output) {
    s_.finished = true;
    out_.emplace_back(std::move(output));
  }

  NodeState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<NodeOutput> out_;
};

}  // namespace

std::vector<NodeOutput> step(NodeState& state, const NodeEvent& event, TimePoint now) {
  if (state.finished) return {};
  NodeStepper stepper(state, now);
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
