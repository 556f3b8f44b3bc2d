#include "runner/recovery/node_ladder.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "runner/base/check.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep {
namespace {

std::string describe_node_end(const NodeEnded& end, const LadderNode& node) {
  std::string text = "node " + std::to_string(end.node) + " (pid " + std::to_string(end.pid) + ") ended with " +
                     describe_exit(end.code);
  const std::string& words = node.killed_because.empty() ? end.message : node.killed_because;
  return words.empty() ? text : text + ": " + words;
}

class Ladder {
 public:
  Ladder(NodeLadderState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<NodeLadderOutput> take() && { return std::move(out_); }

  // Before every event.
  void begin() {
    if (s_.kill_deadline && now_ - *s_.kill_deadline > kAsleepMin) *s_.kill_deadline += now_ - s_.last_event;
    s_.last_event = now_;
  }

  void operator()(const NodeLadderStarted&) {
    LOCKSTEP_CHECK(!s_.started, "NodeLadderStarted comes once");
    s_.started = true;
    s_.nodes.assign(static_cast<size_t>(s_.options.nodes), LadderNode{});
    for (LadderNode& n : s_.nodes) n.attempt = s_.options.first_attempt;
    for (int i = 0; i < s_.options.nodes; ++i) launch(i);
  }

  void operator()(const NodeEnded& event) {
    LadderNode& n = node(event.node);
    LOCKSTEP_CHECK(n.is_alive, "a node ends once");
    n.is_alive = false;
    if (event.checkpoint_step > s_.checkpoint_step) make_progress(event.checkpoint_step);
    if (event.code != kSignalCodes + SIGKILL) n.killed_because.clear();  // it ended before our SIGKILL reached it
    if (event.code == 0) {
      on_complete();
    } else if (s_.complete) {
      if (n.was_killed) return;
      out_.emplace_back(NodeDecision{.node = event.node,
                                     .code = event.code,
                                     .line = describe_node_end(event, n) + ", after training was complete"});
    } else if (s_.verdict || s_.gang_stopping) {
      return;
    } else if (s_.stop_code != 0) {
      if (!is_stop(event.code) && !n.was_killed) blame(event, "");
    } else {
      climb(event, n);
    }
  }

  void operator()(const NodeSilent& event) {
    LadderNode& n = node(event.node);
    if (!n.is_alive || n.was_killed) return;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(event.since).count();
    n.killed_because = "it was silent for " + std::to_string(seconds) + " s and was killed";
    kill(event.node);
  }

  void operator()(const NodesStopRequested& event) {
    const bool is_first = s_.signals.insert(event.signal).second;
    if (event.signal == SIGINT && ++s_.interrupts > 1) return kill_all();
    if (!is_first) return;
    s_.stop_code = std::max(s_.stop_code, kSignalCodes + event.signal);
    s_.gang_stopping = false;
    stop_all(event.signal);
  }

  void operator()(const NodeLadderTick&) {
    if (!s_.kill_deadline || now_ < *s_.kill_deadline) return;
    s_.kill_deadline.reset();
    if (s_.stop_code != 0 && !s_.verdict) {
      s_.verdict = FinishNodes{.code = code_of(ExitCode::kTimeout),
                               .message = names_of_alive_nodes() + " had not stopped " +
                                          std::to_string(stop_grace().count()) + " s after being asked to"};
    }
    kill_all();
  }

  // Does what follows from the new state, whichever event led to it.
  void settle() {
    const bool none_alive = std::none_of(s_.nodes.begin(), s_.nodes.end(), [](const auto& n) { return n.is_alive; });
    if (none_alive) conclude();
    s_.deadline = s_.finished ? std::nullopt : s_.kill_deadline;
  }

 private:
  [[nodiscard]] std::chrono::seconds stop_grace() const { return s_.options.stop_timeout + kNodeStopMargin; }

  LadderNode& node(int index) {
    LOCKSTEP_CHECK(index >= 0 && index < std::ssize(s_.nodes), "a node of this ladder");
    return s_.nodes[static_cast<size_t>(index)];
  }

  [[nodiscard]] std::string names_of_alive_nodes() const {
    std::string names;
    for (size_t i = 0; i < s_.nodes.size(); ++i) {
      if (s_.nodes[i].is_alive) names += (names.empty() ? "node " : ", node ") + std::to_string(i);
    }
    return names;
  }

  // ---- starting and stopping ----

  void launch(int index) {
    LadderNode& n = node(index);
    n.is_alive = true;
    n.was_killed = false;
    n.killed_because.clear();
    n.started_at = now_;
    out_.emplace_back(StartNode{index, n.attempt});
  }

  void launch_again(int index) {
    LadderNode& n = node(index);
    ++n.attempt;
    n.is_replacement = true;
    launch(index);
  }

  void kill(int index) {
    LadderNode& n = node(index);
    if (!n.is_alive || n.was_killed) return;
    n.was_killed = true;
    out_.emplace_back(KillNode{index});
  }

  void kill_all() {
    for (int i = 0; i < static_cast<int>(s_.nodes.size()); ++i) kill(i);
  }

  void stop_all(int signal) {
    const bool any_alive = std::any_of(s_.nodes.begin(), s_.nodes.end(), [](const auto& n) { return n.is_alive; });
    if (!any_alive) return;
    out_.emplace_back(SignalNodes{signal});
    if (!s_.kill_deadline) s_.kill_deadline = now_ + stop_grace();
  }

  // ---- the ladder ----

  void climb(const NodeEnded& end, LadderNode& n) {
    const EndVerdict verdict =
        judge_end({.code = end.code,
                   .is_configuration_changed = termination_reason(end.code, end.message) == kConfigurationChanged,
                   .after_first_commit = s_.checkpoint_step >= 0});
    // Why this end does not count against max_restarts; empty when it counts.
    std::string uncounted = verdict.is_counted ? "" : verdict.because;
    if (!n.killed_because.empty()) uncounted = "a lost node";
    // A job that ended because peers were missing may find them with the next attempt. Its other ends are final.
    const bool is_final =
        verdict.consequence != Consequence::kRestart || (end.job_ended && end.code != code_of(ExitCode::kPeerLost));
    if (is_final) return end_job(end, "pod", "");
    const bool is_short = n.is_replacement && now_ - n.started_at < kShortLife;
    n.short_lives = is_short ? n.short_lives + 1 : 0;
    if (n.short_lives >= kShortLivesMax) return no_progress(end);
    std::erase_if(s_.restarts, [&](TimePoint at) { return now_ - at > kRestartWindow; });
    if (uncounted.empty()) {
      if (std::ssize(s_.restarts) >= s_.options.max_restarts) {
        return end_job(end, "pod",
                       "giving up after " + std::to_string(s_.restarts.size()) + " replaced nodes (--max_restarts " +
                           std::to_string(s_.options.max_restarts) + "); ");
      }
      s_.restarts.push_back(now_);
    }
    replace(end, uncounted);
  }

  void make_progress(int64_t checkpoint_step) {
    s_.checkpoint_step = checkpoint_step;
    s_.restarts.clear();
    for (LadderNode& n : s_.nodes) n.short_lives = 0;
    s_.gang_used = false;
  }

  void replace(const NodeEnded& end, const std::string& uncounted) {
    const std::string count = uncounted.empty() ? "replacement " + std::to_string(s_.restarts.size()) + " of " +
                                                      std::to_string(s_.options.max_restarts)
                                                : "not counted: " + uncounted;
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .rung = "pod",
                                   .is_counted = uncounted.empty(),
                                   .line = describe_node_end(end, node(end.node)) + "; starting it again as attempt " +
                                           std::to_string(node(end.node).attempt + 1) + " (" + count + ")"});
    launch_again(end.node);
  }

  void no_progress(const NodeEnded& end) {
    const std::string why = std::to_string(kShortLivesMax) + " replacements in a row lived less than " +
                            std::to_string(kShortLife.count()) + " s";
    if (s_.gang_used) return end_job(end, "gang", why + ", after all nodes had been started again together; ");
    s_.gang_used = true;
    s_.gang_stopping = true;
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .rung = "gang",
                                   .line = describe_node_end(end, node(end.node)) + "; " + why +
                                           ": stopping all nodes and starting them again together"});
    stop_all(SIGTERM);
  }

  // ---- the end ----

  void on_complete() {
    s_.complete = true;
    s_.gang_stopping = false;
    const TimePoint until = now_ + kNodeEndGrace;
    s_.kill_deadline = s_.kill_deadline ? std::min(*s_.kill_deadline, until) : until;
  }

  void blame(const NodeEnded& end, const std::string& prefix) {
    s_.verdict =
        FinishNodes{.code = end.code, .message = prefix + describe_node_end(end, node(end.node)), .node = end.node};
  }

  void end_job(const NodeEnded& end, const std::string& rung, const std::string& prefix) {
    blame(end, prefix);
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .rung = rung,
                                   .gives_up = true,
                                   .line = s_.verdict->message + "; ending the job"});
    stop_all(SIGTERM);
  }

  void conclude() {
    if (s_.complete) return finish(FinishNodes{});
    if (s_.verdict) return finish(*s_.verdict);
    if (s_.stop_code != 0) return finish(FinishNodes{.code = s_.stop_code, .message = stop_words(s_.stop_code)});
    if (!std::exchange(s_.gang_stopping, false)) return;
    s_.kill_deadline.reset();
    for (int i = 0; i < s_.options.nodes; ++i) {
      node(i).short_lives = 0;
      launch_again(i);
    }
  }

  void finish(FinishNodes output) {
    s_.finished = true;
    out_.emplace_back(std::move(output));
  }

  NodeLadderState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<NodeLadderOutput> out_;
};

}  // namespace

std::vector<NodeLadderOutput> step(NodeLadderState& state, const NodeLadderEvent& event, TimePoint now) {
  if (state.finished) return {};
  Ladder ladder(state, now);
  ladder.begin();
  std::visit(ladder, event);
  ladder.settle();
  return std::move(ladder).take();
}

}  // namespace lockstep
