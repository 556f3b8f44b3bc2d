#include "operator/train/plan.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "operator/kube/resource.h"
#include "operator/train/bookkeeping.h"
#include "operator/train/elastic.h"
#include "operator/train/failure_policy.h"
#include "operator/train/object_names.h"
#include "operator/train/plan_assessment.h"
#include "operator/train/plan_capacity.h"
#include "operator/train/plan_conditions.h"
#include "operator/train/plan_disruption.h"
#include "operator/train/plan_failures.h"
#include "operator/train/plan_pods.h"
#include "operator/train/plan_queue.h"
#include "operator/train/plan_state.h"
#include "operator/train/plan_suspend.h"
#include "operator/train/pod_cleanup.h"
#include "operator/train/status.h"
#include "operator/train/success_policy.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

bool is_finished(const api::TrainJobStatus& status) {
  return status.conditions.is_true(api::condition::kComplete) || status.conditions.is_true(api::condition::kFailed);
}

Success check_success(PlanState& state) {
  std::vector<PodState> pods;
  for (size_t i = 0; i < state.current.size(); ++i) {
    const PodView* const pod = state.current[i];
    if (state.book.done.count(static_cast<int>(i)) > 0) {
      pods.push_back(PodState::kDone);
    } else if (state.failed[i]) {
      pods.push_back(PodState::kLost);
    } else {
      pods.push_back(pod != nullptr && pod->started ? PodState::kRuns : PodState::kNotStarted);
    }
  }
  Success success = apply_success_policy(
      state.spec, {.pods = std::move(pods), .first_done_at = state.book.first_done_at, .now = state.now});
  if (success.complete && state.made_no_step)
    success.complete->append(" No step was left to make: " + state.book.origin + ".");
  if (success.complete) {
    state.measure(metric::kTrainJobCompletions, {}, 1);
    state.end_job(api::condition::kComplete, {"AllDone", *success.complete});
  }
  if (success.requeue_at) state.requeue(*success.requeue_at);
  return success;
}

void scale(PlanState& state) {
  const int before = state.status.nodes.desired;
  const int wanted = state.spec.trainer.num_nodes;
  if (before != 0 && before != wanted) {
    state.event(false, "Scaled", "From " + plural(before, "pod") + " to " + std::to_string(wanted) + ".", "Scale");
  }
  const std::vector<int> removed(state.book.created.lower_bound(wanted), state.book.created.end());
  for (const int node_rank : removed) state.raise_attempt(node_rank);
  std::erase_if(state.book.done, [wanted](int node_rank) { return node_rank >= wanted; });
  const PodView* const pod0 = state.pod0();
  const std::optional<int> num_nodes = num_nodes_to_send(state.observed);
  if (num_nodes && state.report != nullptr && pod0 != nullptr && !pod0->ip.empty()) {
    state.act(SendNumNodes{pod0->ip, *num_nodes}, "the coordinator wants " +
                                                      std::to_string(*state.report->wanted_nodes) + ", numNodes is " +
                                                      std::to_string(*num_nodes));
  }
  if (num_nodes) state.requeue(state.now + kResendSeconds);
}

void decide(PlanState& state) {
  const Success success = check_success(state);
  if (state.is_over) return;
  if (state.book.spec_hold && state.book.spec_hold->generation != state.observed.job.meta.generation) {
    state.book.spec_hold.reset();
    forget_failures(state);
  }
  give_reservation_back(state);
  ask_queue(state);
  if (state.is_over || keep_suspended(state)) return;
  if (!state.status.start_time) state.status.start_time = state.now;
  if (state.book.suspending) cancel_suspend(state);
  if (!success.stops_replacing_pods) react_to_ends(state);
  if (state.is_over || state.book.spec_hold) return;
  const Capacity capacity = count_capacity(state);
  enforce_deadlines(state, capacity);
  if (state.is_over) return;
  if (state.book.done.empty()) enforce_placement_timeout(state, capacity);
  release_avoided_nodes(state);
  if (!success.stops_replacing_pods) make_room_for_pod0(state);
  scale(state);
  plan_pods(state, success.stops_replacing_pods);
  end_recovery(state);
}

// ttlSecondsAfterFinished. MultiKueue's copy of a job stays: Kueue takes its result over to the manager's cluster,
// where this time runs, and then deletes the copy.
void delete_when_its_time_is_over(PlanState& state) {
  const std::optional<int64_t>& time = state.spec.ttl_seconds_after_finished;
  if (!time || state.observed.job.meta.labels.count(std::string(kMultiKueueOriginLabel)) > 0) return;
  const api::UnixSeconds end = state.status.completion_time.value_or(state.now);
  if (state.now < end + *time) return state.requeue(end + *time);
  state.act(DeleteJob{},
            "it finished at " + api::format_time(end) + ", and ttlSecondsAfterFinished is " + std::to_string(*time));
}

void plan_after_the_end(PlanState& state) {
  api::NodeCounts counts = count_pods(state);
  if (is_finished(state.observed.job.status)) {
    // These counts stay as they were when the job finished: cleaning up pods does not change how they ended.
    counts.succeeded = state.status.nodes.succeeded;
    counts.failed = state.status.nodes.failed;
  }
  state.status.nodes = counts;
  for (const PodView* pod : pods_to_clean_up(state.spec, state.observed.pods)) {
    state.act(DeletePod{pod->meta.name, pod->meta.uid},
              std::string("the job has finished, and podCleanup is ") + api::to_string(state.spec.pod_cleanup));
  }
  finish_workload(state);
  delete_when_its_time_is_over(state);
}

// What a status says besides counts of pods, figures of progress and words.
struct Essence {
  std::optional<api::JobPhase> phase;
  std::map<std::string, std::pair<api::ConditionStatus, std::string>> conditions = {};  // type → status and reason
  std::map<int, int> attempts;
  std::vector<api::RecentFailure> recent_failures;
  api::RestartCounts restarts;
  Bookkeeping book;
  bool operator==(const Essence&) const = default;
};

Essence essence_of(const api::TrainJobStatus& status) {
  Essence essence{.phase = status.phase,
                  .attempts = status.attempts,
                  .recent_failures = status.recent_failures,
                  .restarts = status.restarts,
                  .book = bookkeeping_from_json(status.bookkeeping)};
  for (const api::Condition& condition : status.conditions.list()) {
    essence.conditions[condition.type] = {condition.status, condition.reason};
  }
  // The next operator could read these from the pods, and begins startupTimeoutSeconds anew.
  Bookkeeping& book = essence.book;
  book.created.clear();
  book.done.clear();
  book.first_done_at = book.waiting_since = book.checked_generation = 0;
  if (book.process_restarts_now == 0) book.process_restarts_pod.clear();
  return essence;
}

// How long may the new status wait for one that says more, and is written in its place? One of the same essence waits
// two seconds, or, when nothing but figures of progress is new, until Settings::progress_seconds are over. With many
// small jobs most writes are of these kinds. A job's first status waits while only its Service and pods are still to be
// created. Every other one is written at once, because users and `lockstep-operator try` watch it.
api::UnixSeconds time_to_wait(const PlanState& state) {
  constexpr api::UnixSeconds kCounts = 2;
  const Plan& plan = state.plan;
  if (!plan.events.empty() || !plan.measurements.empty()) return 0;
  const api::TrainJobStatus& before = state.observed.job.status;
  const bool is_first = !before.phase;
  const bool only_makes_pods = std::all_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
    if (const auto* const pod = std::get_if<CreatePod>(&action.what)) return is_first || !pod->is_first;
    const auto* const object = std::get_if<CreateObject>(&action.what);
    return is_first && object != nullptr && text_field(object->object, {"kind"}) == kube::kServices.kind;
  });
  api::TrainJobStatus rest = state.status;
  rest.progress = before.progress;
  if (before.progress && rest == before) {
    const api::UnixSeconds since = state.now - before.progress->last_updated_time;
    return since < 0 ? 0 : std::max<api::UnixSeconds>(state.observed.settings.progress_seconds - since, 0);
  }
  if (!only_makes_pods || (is_first && plan.actions.empty())) return 0;
  Essence essence = essence_of(before);
  if (is_first) essence.phase = state.status.phase;
  if (is_first) essence.conditions = essence_of(state.status).conditions;
  return essence == essence_of(state.status) ? kCounts : 0;
}

Plan finish(PlanState& state) {
  state.status.observed_generation = state.observed.job.meta.generation;
  state.status.restarts.total = state.status.restarts.process + state.status.restarts.pod + state.status.restarts.gang;
  state.status.bookkeeping = to_json(state.book);
  if (!(state.status == state.observed.job.status)) {
    state.plan.status_wait_seconds = time_to_wait(state);
    // Not in a write of their own.
    forget_settled(state.status.progress ? state.status.progress->step : -1, state.now, state.book);
    state.status.bookkeeping = to_json(state.book);
    state.plan.status = state.status;
  }
  if (state.plan.why.empty()) state.plan.why = state.status.message;
  return std::move(state.plan);
}

// Why this operator does nothing about the job; empty: it manages the job.
std::string why_ignored(const Observed& o) {
  if (o.job.spec.managed_by != api::kControllerName) return "spec.managedBy is \"" + o.job.spec.managed_by + "\"";
  if (o.job.meta.deletion_time) return "the TrainJob is being deleted; the garbage collector takes its objects";
  const bool cannot_create = std::any_of(o.problems.begin(), o.problems.end(), [](const auto& problem) {
    return problem.second.kind == CreateProblem::Kind::kNamespaceTerminating;
  });
  return cannot_create ? "the namespace is being deleted" : "";
}

}  // namespace

Plan make_plan(const Observed& observed) {
  PlanState state(observed);
  if (is_dispatched(observed)) {
    plan_dispatched(state);
    if (is_finished(state.status)) delete_when_its_time_is_over(state);  // the status that Kueue has copied
    return std::move(state.plan);
  }
  state.plan.why = why_ignored(observed);
  if (!state.plan.why.empty()) return std::move(state.plan);
  if (is_finished(state.status)) {
    assess_pods(state);
    plan_after_the_end(state);
  } else {
    state.status.selector = pod_selector(observed.job.meta.name);
    assess_pods(state);
    read_report(state);
    decide(state);
    write_conditions(state);
    is_finished(state.status) ? plan_after_the_end(state) : write_workload(state);
  }
  keep_disruption_budget(state);
  return finish(state);
}

}  // namespace lockstep::train
