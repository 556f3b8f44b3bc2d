#include "runner/recovery/node_restarts.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/plural.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep {
namespace {

std::string describe_node_end(const NodeEnded& end, const LocalNode& node) {
  std::string text = "node " + std::to_string(end.node) + " (pid " + std::to_string(end.pid) + ") ended with " +
                     describe_exit(end.code);
  const std::string& words = node.killed_because.empty() ? end.message : node.killed_because;
  return words.empty() ? text : text + ": " + words;
}

class NodesStepper {
 public:
  NodesStepper(NodesState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<NodesOutput> take() && { return std::move(out_); }

  // Before every event.
  void begin() {
    if (s_.kill_deadline && now_ - *s_.kill_deadline > kAsleepMin) *s_.kill_deadline += now_ - s_.last_event;
    s_.last_event = now_;
  }

  void operator()(const NodesStarted&) {
    LOCKSTEP_CHECK(!s_.started, "NodesStarted comes once");
    s_.started = true;
    s_.nodes.assign(static_cast<size_t>(s_.options.nodes), LocalNode{});
    for (LocalNode& n : s_.nodes) n.attempt = s_.options.first_attempt;
    for (int i = 0; i < s_.options.nodes; ++i) launch(i);
  }

  void operator()(const NodeEnded& event) {
    LocalNode& n = node(event.node);
    LOCKSTEP_CHECK(n.is_alive, "a node ends once");
    n.is_alive = false;
    clear_counts_at(event.checkpoint_step, s_.counts);
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
      restart_or_end(event, n);
    }
  }

  void operator()(const NodeSilent& event) {
    LocalNode& n = node(event.node);
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

  void operator()(const NodesTick&) {
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

  LocalNode& node(int index) {
    LOCKSTEP_CHECK(index >= 0 && index < std::ssize(s_.nodes), "one of the nodes");
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
    LocalNode& n = node(index);
    n.is_alive = true;
    n.started_at = now_;
    n.was_killed = false;
    n.killed_because.clear();
    out_.emplace_back(StartNode{index, n.attempt});
  }

  void launch_again(int index) {
    LocalNode& n = node(index);
    ++n.attempt;
    launch(index);
  }

  void kill(int index) {
    LocalNode& n = node(index);
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

  // ---- a restart, or the end of the job ----

  void restart_or_end(const NodeEnded& end, const LocalNode& n) {
    const EndVerdict verdict = judge_end(
        {.code = end.code,
         .is_configuration_changed = termination_reason(end.code, end.message) == kConfigurationChanged,
         .after_first_commit = std::max(end.step, s_.counts.furthest_step) > 0 || s_.counts.checkpoint_step >= 0});
    // A job that ended because peers were missing may find them with the next attempt. Its other ends are final.
    const bool lost_its_peers = end.code == code_of(ExitCode::kPeerLost);
    if (verdict.consequence != Consequence::kRestart || (end.job_ended && !lost_its_peers)) {
      return end_job(end, "pod", "");
    }
    const bool was_silent = !n.killed_because.empty();
    const bool knows_steps = s_.options.has_steps && end.step >= 0;
    const bool is_stopped_at_once = is_stop(end.code) && !knows_steps && now_ - n.started_at < kShortLife;
    const bool is_counted = (verdict.is_counted || is_stopped_at_once) && !was_silent;
    const CountedEnd counted =
        count_end({.node = end.node,
                   .known_step = end.step,
                   .is_counted = is_counted,
                   .is_out_of_memory = end.code == code_of(ExitCode::kOutOfMemory),
                   .tells_of_progress = knows_steps && (is_counted || (lost_its_peers && !was_silent))},
                  s_.options.limits, std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count(),
                  s_.counts);
    if (counted.used_up != UsedUp::kNothing) {
      const bool was_gang = counted.used_up == UsedUp::kNoProgress;
      return end_job(end, was_gang ? "gang" : "pod", why_given_up(end, counted.used_up));
    }
    if (counted.is_last_try) return restart_all(end, counted.no_progress);
    replace(end, counted, is_counted, was_silent ? "a lost node" : verdict.because);
  }

  [[nodiscard]] std::string why_given_up(const NodeEnded& end, UsedUp used_up) const {
    const RestartLimits& limits = s_.options.limits;
    if (used_up == UsedUp::kRestarts) {
      const std::string max = std::to_string(limits.max_restarts);
      return "giving up after " + max + " replaced nodes (--max_restarts " + max + "); ";
    }
    if (used_up == UsedUp::kOutOfMemory) return "out of memory for the second time with no checkpoint between; ";
    return no_further(end.node, limits.no_progress_restarts) + "; ";
  }

  [[nodiscard]] std::string no_further(int node, int times) const {
    const int64_t step = s_.counts.furthest_step;
    return plural(times, "time") + " in a row a restart of node " + std::to_string(node) + " came no further than " +
           (step <= 0 ? "its start" : "step " + std::to_string(step));
  }

  void replace(const NodeEnded& end, const CountedEnd& counted, bool is_counted, const std::string& because) {
    const std::string count = is_counted ? "replacement " + std::to_string(counted.failures) + " of " +
                                               std::to_string(s_.options.limits.max_restarts)
                                         : "not counted: " + because;
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .level = "pod",
                                   .is_counted = is_counted,
                                   .line = describe_node_end(end, node(end.node)) + "; starting it again as attempt " +
                                           std::to_string(node(end.node).attempt + 1) + " (" + count + ")"});
    launch_again(end.node);
  }

  void restart_all(const NodeEnded& end, int no_progress) {
    s_.gang_stopping = true;
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .level = "gang",
                                   .line = describe_node_end(end, node(end.node)) + "; " +
                                           no_further(end.node, no_progress - 1) +
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

  void end_job(const NodeEnded& end, const std::string& level, const std::string& prefix) {
    blame(end, prefix);
    out_.emplace_back(NodeDecision{.node = end.node,
                                   .code = end.code,
                                   .level = level,
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
    for (int i = 0; i < s_.options.nodes; ++i) launch_again(i);
  }

  void finish(FinishNodes output) {
    s_.finished = true;
    out_.emplace_back(std::move(output));
  }

  NodesState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<NodesOutput> out_;
};

}  // namespace

std::vector<NodesOutput> step(NodesState& state, const NodesEvent& event, TimePoint now) {
  if (state.finished) return {};
  NodesStepper stepper(state, now);
  stepper.begin();
  std::visit(stepper, event);
  stepper.settle();
  return std::move(stepper).take();
}

}  // namespace lockstep
