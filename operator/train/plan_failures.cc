#include "operator/train/plan_failures.h"

#include <algorithm>
#include <utility>

#include "operator/train/failure_policy.h"
#include "operator/train/plan_capacity.h"
#include "operator/train/plan_gang.h"
#include "operator/train/plan_suspend.h"
#include "operator/train/status.h"

namespace lockstep::train {
namespace {

void note_restart(PlanState& state, const std::string& scope, const Replacement& r, const std::string& action) {
  state.event(r.verdict.is_counted, r.end.reason, r.message, action);
  state.measure(metric::kTrainJobRestarts, {{"scope", scope}, {"reason", r.end.reason}}, 1);
  // Of several incidents the last one is described; the duration is counted from the first.
  Recovering recovering = state.book.recovering.value_or(
      Recovering{.since = state.now, .generation = state.observed.report ? state.observed.report->generation : 0});
  recovering.scope = scope;
  recovering.reason = r.end.reason;
  recovering.message = r.message;
  state.book.recovering = std::move(recovering);
  state.plan.why = r.message;
}

void replace_pods(PlanState& state, const FailureOutcome& outcome) {
  for (const Replacement& r : outcome.replacements) {
    note_replacement(r.end.node_rank, state.now, state.book);
    state.raise_attempt(r.end.node_rank);
    ++state.status.restarts.pod;
    note_restart(state, "pod", r, "ReplacePod");
  }
}

void restart_gang(PlanState& state, const FailureOutcome& outcome) {
  const auto cause = std::find_if(outcome.replacements.begin(), outcome.replacements.end(), [](const Replacement& r) {
    return r.verdict.action == api::RuleAction::kRestartGang;
  });
  note_replacement(kGang, state.now, state.book);
  std::set<int> node_ranks = state.book.created;
  for (const Replacement& r : outcome.replacements) node_ranks.insert(r.end.node_rank);
  for (const int node_rank : node_ranks) state.raise_attempt(node_rank);
  next_pod_group(state);
  state.book.first_done_at = 0;
  ++state.status.restarts.gang;
  note_restart(state, "gang", *cause, "RestartGang");
}

// No event tells a job of changes of a node that it has no pod on.
constexpr api::UnixSeconds kAvoidedNodesRequeueSeconds = 30;

// A node that the pod avoids and that takes no pods anyway: it is gone, or somebody has cordoned it. Empty: there is
// none, or it is not known. Karpenter makes no node for a pod that must not run on a node of a certain name
// (docs/decisions.md), so it must not be kept away longer than it need.
std::string closed_node_avoided_by(const PodView& pod, const Observed& observed) {
  if (!observed.nodes) return {};
  const auto closed = std::find_if(pod.avoids.begin(), pod.avoids.end(), [&observed](const std::string& name) {
    const auto node = observed.nodes->find(name);
    return node == observed.nodes->end() || node->second.cordoned;
  });
  return closed == pod.avoids.end() ? std::string() : *closed;
}

}  // namespace

void react_to_ends(PlanState& state) {
  if (state.ends.empty()) return;
  const int64_t known_step = state.status.progress ? state.status.progress->step : -1;
  const FailureOutcome outcome = apply_failure_policy(state.spec, state.ends,
                                                      {.known_step = known_step,
                                                       .now = state.now,
                                                       .waits_for_pods = count_capacity(state).waits_for_pods(),
                                                       .queue_assigns_nodes = state.observed.queue_assigns_nodes},
                                                      state.book);
  for (const Replacement& r : outcome.replacements) {
    add_failure({.node = r.end.node_rank,
                 .rank = r.end.rank,
                 .attempt = r.end.attempt,
                 .host = r.end.node,
                 .exit_code = r.end.exit_code,
                 .reason = r.end.reason,
                 .message = r.end.message,
                 .time = r.end.time},
                state.status);
  }
  if (outcome.failure)
    return outcome.is_fixable_by_spec_change ? suspend_until_spec_changes(state, *outcome.failure)
                                             : state.fail(*outcome.failure);
  outcome.is_gang ? restart_gang(state, outcome) : replace_pods(state, outcome);
}

void release_avoided_nodes(PlanState& state) {
  const int window = state.spec.restart_policy.window_seconds;
  const std::vector<const PodView*> pods = state.current;
  for (const PodView* const pod : pods) {
    if (pod == nullptr || pod->scheduled || pod->avoids.empty()) continue;
    const std::string closed = closed_node_avoided_by(*pod, state.observed);
    state.book.avoided.erase(closed);
    const std::set<std::string> avoided = avoided_nodes(state.book, window, state.now);
    if (std::includes(avoided.begin(), avoided.end(), pod->avoids.begin(), pod->avoids.end())) {
      for (const std::string& node : pod->avoids) state.requeue(state.book.avoided.at(node) + window);
      if (state.observed.nodes) state.requeue(state.now + kAvoidedNodesRequeueSeconds);
      continue;
    }
    state.event(false, "NodeReleased",
                "Pod " + pod->meta.name + " has found no other node" +
                    (closed.empty() ? " within " + std::to_string(window) +
                                          " s (restartPolicy.windowSeconds); its next pod may go where the fault was."
                                    : "; node " + closed +
                                          ", which it avoids, is gone or cordoned, so its next pod need not avoid it."),
                "ReplacePod");
    state.raise_attempt(pod->node_rank);
  }
}

void end_recovery(PlanState& state) {
  if (!state.book.recovering) return;
  const Recovering& recovering = *state.book.recovering;
  const api::NodeCounts counts = count_pods(state);
  const bool trains_again = state.report != nullptr && state.report->is_running() && recovering.generation > 0 &&
                            state.report->generation > recovering.generation &&
                            state.report->read_at >= recovering.since;
  const bool all_ready = counts.ready + counts.succeeded == counts.desired;
  // Pod 0's report that the group does not train yet takes precedence over the readiness of the pods.
  const bool still_recovering = state.report != nullptr && state.report->phase == "Recovering";
  if (!trains_again && (!all_ready || still_recovering)) return;
  state.measure(metric::kTrainJobRecovery, {{"scope", recovering.scope}, {"reason", recovering.reason}},
                static_cast<double>(state.now - recovering.since));
  const std::string took = "The run goes on after " + std::to_string(state.now - recovering.since) + " s";
  state.event(false, "Recovered", took + ".", "Recover");
  state.recovered = took + ": " + recovering.message;
  state.book.recovering.reset();
}

}  // namespace lockstep::train
