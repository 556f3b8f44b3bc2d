#include "runner/recovery/member.h"

#include <algorithm>
#include <utility>

#include "runner/base/clock.h"
#include "runner/base/one_line.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/generation.h"

namespace lockstep {
namespace {

constexpr const char* kCoordinatorLost = "CoordinatorLost";
// What the user can do, at the end of the message for a node that finds no coordinator.
constexpr const char* kWhatToDoWithoutCoordinator =
    "; check that node 0 runs "
    "and that --coordinator names it, or wait longer with --rendezvous_timeout_seconds";

class MemberStepper {
 public:
  MemberStepper(MemberState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<MemberOutput> take() && { return std::move(out_); }

  void begin() {
    if (!s_.started) {
      s_.started = true;
      seek("no coordinator has answered yet");
    } else if (now_ - s_.last_event > std::max(s_.options.heartbeat_timeout / 2, kAsleepMin)) {
      // This process did not run: the coordinator had no chance to be heard in that time.
      s_.last_heard += now_ - s_.last_event;
      if (s_.seeking_since) *s_.seeking_since += now_ - s_.last_event;
    }
    s_.last_event = now_;
  }

  // ---- the coordinator ----

  void operator()(const CoordinatorFound& found) {
    if (s_.joined) lose("another coordinator was found");
    if (attempt_of(found.welcome.generation) < attempt_of(s_.highest)) {
      const uint32_t seen = attempt_of(s_.highest);
      const std::string refusal = "the coordinator found is of attempt " +
                                  std::to_string(attempt_of(found.welcome.generation)) + ", one of attempt " +
                                  std::to_string(seen) + " was seen before" + clock_hint(seen, "node 0");
      note_once(refusal);
      return seek(refusal);
    }
    s_.highest = std::max(s_.highest, found.welcome.generation);
    s_.last_refusal.clear();
    s_.joined = true;
    s_.last_heard = now_;
    send(Join{s_.options.nproc, s_.highest, s_.ready, s_.leaving_code, s_.done, broken_before(found.commit),
              s_.ready ? s_.terms : std::string()});
    if (s_.failed) send(*s_.failed);
    if (s_.untold_checkpoint) send(CheckpointNews{*std::exchange(s_.untold_checkpoint, std::nullopt)});
  }

  void operator()(const CoordinatorLost& lost) { lose(lost.why); }

  void operator()(const CoordinatorRefused& event) {
    // The text may come from any program that listens at that address.
    const std::string message = one_line(event.refused.message);
    if (!event.refused.retry && s_.failed) return end(s_.failed->code, s_.failed->message);
    if (!event.refused.retry) return end(code_of(ExitCode::kUsage), message);
    note_once("refused: " + message);
    lose("refused: " + message);
  }

  void operator()(const SeekProblem& problem) { s_.last_problem = problem.text; }

  void operator()(const CoordinatorSaid& said) {
    if (!s_.joined) return;
    s_.last_heard = now_;
    s_.seeking_since.reset();
    std::visit([this](const auto& message) { on_message(message); }, said.message);
  }

  // ---- the supervisor ----

  void operator()(const WorkersReady& event) {
    if (event.ready == s_.ready) return;
    s_.ready = event.ready;
    s_.terms = event.terms;
    if (s_.ready) s_.placed = 0;
    send_if_joined(NodeReady{s_.ready, s_.highest, s_.terms});
  }

  void operator()(const Broken& broken) {
    if (broken.generation != s_.placed) return;
    note_break({});
    send_if_joined(broken);
  }

  void operator()(const Leave& leave) {
    if (s_.leaving_code != 0) return;
    s_.leaving_code = leave.code;
    if (s_.joined) {
      send(leave);
    } else {
      stop_workers(leave.code);
    }
  }

  void operator()(const NodeDone& done) {
    s_.done = true;
    s_.ready = false;
    s_.placed = 0;
    send_if_joined(done);
  }

  void operator()(const NodeFailed& failed) {
    s_.failed = failed;
    send_if_joined(failed);
    // The others go on without this node. If it failed for good, as far as it knows, it waits for the coordinator,
    // which ends the job (EndJob) or knows that others have trained with the same input (Refused).
    if (!failed.for_good) end(failed.code, failed.message);
  }

  void operator()(const CheckpointNews& news) {
    if (s_.joined) {
      send(news);
    } else {
      s_.untold_checkpoint = news.step;
    }
  }

  void operator()(const MemberTick&) {
    if (s_.joined && now_ - s_.last_heard >= s_.options.heartbeat_timeout) {
      lose("nothing heard from the coordinator for " + seconds_text(s_.options.heartbeat_timeout),
           std::chrono::duration<double>(now_ - s_.last_heard).count());
    }
    // A coordinator that was found has heartbeat_timeout to send its first message.
    if (is_seeking() && now_ - *s_.seeking_since >= seeking_patience()) give_up_seeking();
  }

  // Ends a node that was told to leave and whose workers are done: only its report is left, and there is no coordinator
  // to send it to.
  void end_if_idle_and_alone() {
    if (!s_.joined && !s_.ended && s_.leaving_code != 0 && (s_.done || s_.failed)) give_up_seeking();
  }

  void set_deadline() {
    s_.deadline.reset();
    if (s_.ended) return;
    s_.deadline = now_ + kBeatInterval;
    if (s_.joined) tick_at(s_.last_heard + s_.options.heartbeat_timeout);
    if (is_seeking()) tick_at(*s_.seeking_since + seeking_patience());
  }

 private:
  void send(MemberMessage message) { out_.emplace_back(Tell{std::move(message)}); }
  // Without a coordinator nothing is sent; the next Join, or a message after it, reports the same.
  void send_if_joined(MemberMessage message) {
    if (s_.joined) send(std::move(message));
  }
  void tick_at(TimePoint at) {
    if (at > now_) s_.deadline = std::min(*s_.deadline, at);
  }

  // Notes a refusal once, because it recurs with every attempt to join as long as its reason lasts.
  void note_once(const std::string& refusal) {
    if (std::exchange(s_.last_refusal, refusal) != refusal) out_.emplace_back(MemberNote{refusal});
  }

  struct BreakSeen {
    bool step_in_flight = true;
    double silent_seconds = -1.0;
  };
  // Records that the workers' group cannot go on or is being left. The first report for a group gives the time.
  void note_break(const BreakSeen& seen) {
    if (s_.breaks.empty() || s_.breaks.back().generation != s_.placed) {
      if (s_.breaks.size() == kBreaksKept) s_.breaks.erase(s_.breaks.begin());
      s_.breaks.push_back({s_.placed, s_.placed_at, now_, seen.silent_seconds, seen.step_in_flight});
    }
    s_.breaks.back().step_in_flight = s_.breaks.back().step_in_flight || seen.step_in_flight;
  }

  // How the newest group that committed a step ended. Later groups, without a commit, are part of the same recovery. A
  // commit belongs to the newest group that was placed before it, because workers leave a group before the next one.
  [[nodiscard]] BrokenBefore broken_before(const std::optional<Commit>& commit) const {
    const auto has_committed = [&](const MemberState::Break& b) { return commit && commit->at > b.placed_at; };
    const auto found = std::find_if(s_.breaks.rbegin(), s_.breaks.rend(), has_committed);
    if (found == s_.breaks.rend()) return {};
    return {.seconds = std::chrono::duration<double>(now_ - found->at).count(),
            .silent_seconds = found->silent_seconds,
            .committed_seconds = std::chrono::duration<double>(now_ - commit->at).count(),
            .generation = found->generation,
            .step = commit->step,
            .step_in_flight = found->step_in_flight};
  }

  void seek(const std::string& problem) {
    s_.last_problem = problem;
    if (!s_.seeking_since) s_.seeking_since = now_;
    out_.emplace_back(Seek{});
  }

  // Without the coordinator the workers get no store answers, and no cut when a peer is lost. So they leave their group
  // at once, also while they stop. (Rank 0 writes its last checkpoint before the last collective of a stop.)
  void lose(const std::string& why, double silent_seconds = -1.0) {
    s_.joined = false;
    if (s_.placed != 0) {
      note_break({.silent_seconds = silent_seconds});
      out_.emplace_back(CutGroup{s_.placed, kCoordinatorLost, why});
    }
    seek(why);
    // No coordinator can make all nodes stop at one step, so this node stops by itself.
    if (s_.leaving_code != 0) stop_workers(s_.leaving_code);
  }

  [[nodiscard]] bool is_seeking() const { return !s_.joined && s_.seeking_since; }

  [[nodiscard]] std::chrono::milliseconds seeking_patience() const {
    if (s_.failed) return kLastWordsTimeouts * s_.options.heartbeat_timeout;
    return s_.options.rendezvous_timeout;
  }

  void give_up_seeking() {
    if (s_.done) return end(code_of(ExitCode::kDone), "");
    if (s_.failed) return end(s_.failed->code, s_.failed->message);
    // Its workers were in a group, so they may hold steps.
    const std::string lost =
        s_.breaks.empty()
            ? ""
            : "; node 0, which alone writes checkpoints, is gone, and the steps since the newest one with it";
    end(code_of(ExitCode::kPeerLost), "no coordinator for " + seconds_text(s_.options.rendezvous_timeout) + ": " +
                                          s_.last_problem + lost + kWhatToDoWithoutCoordinator);
  }

  void end(int code, const std::string& message) {
    s_.ended = true;
    out_.emplace_back(EndJob{code, message});
  }

  void stop_workers(int code) {
    s_.stopping = true;
    out_.emplace_back(StopJob{code});
  }

  // ---- messages of the coordinator ----

  void on_message(const Welcome&) {}
  void on_message(const NodeNumber&) {}
  void on_message(const Refused&) {}
  void on_message(const StoreAnswerTo&) {}
  void on_message(const CoordinatorBeat&) {}

  void on_message(const Assignment& assignment) {
    if (assignment.generation <= s_.highest) return;
    s_.highest = assignment.generation;
    if (!s_.ready || s_.stopping) {
      // A worker ended, or all were told to stop, while the assignment was under way.
      return send(Broken{assignment.generation, -1, kNotReady, "its workers were not ready for the assignment"});
    }
    s_.ready = false;
    s_.placed = assignment.generation;
    s_.placed_at = now_;
    out_.emplace_back(assignment);
  }

  // The messages below may quote a worker of another node, so their text is made one line.
  void on_message(const CutGroup& cut) {
    if (cut.generation != s_.placed) return;
    note_break({});
    out_.emplace_back(CutGroup{cut.generation, cut.cause, one_line(cut.message)});
  }

  void on_message(const Regroup& regroup) {
    if (regroup.generation == s_.placed) {
      s_.stopping = s_.stopping || regroup.leaving;
      note_break({.step_in_flight = false});
      out_.emplace_back(regroup);
    } else if (regroup.leaving) {
      stop_workers(s_.leaving_code);
    }
  }

  void on_message(const StopJob& stop) {
    s_.leaving_code = stop.code;
    stop_workers(stop.code);
  }

  void on_message(const KillWorker& kill) {
    // Workers that wait for an assignment do not hang, so such a message is about the group before.
    if (s_.placed != 0) out_.emplace_back(KillWorker{kill.local_rank, one_line(kill.message)});
  }

  void on_message(const EndJob& job) { end(job.code, one_line(job.message)); }
  void on_message(const CheckpointNews& news) { out_.emplace_back(news); }

  MemberState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<MemberOutput> out_;
};

}  // namespace

std::vector<MemberOutput> step(MemberState& state, const MemberEvent& event, TimePoint now) {
  if (state.ended) return {};
  MemberStepper stepper(state, now);
  stepper.begin();
  std::visit(stepper, event);
  stepper.end_if_idle_and_alone();
  stepper.set_deadline();
  return std::move(stepper).take();
}

}  // namespace lockstep
