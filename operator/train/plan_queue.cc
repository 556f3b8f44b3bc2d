#include "operator/train/plan_queue.h"

#include <optional>
#include <set>
#include <utility>

#include "operator/train/desired_pod.h"
#include "operator/train/kueue.h"
#include "operator/train/plan_pods.h"
#include "operator/train/plan_suspend.h"

namespace lockstep::train {
namespace {

void add(PlanState& state, std::vector<Action> writes) {
  for (Action& write : writes) state.plan.actions.push_back(std::move(write));
}

// Why the last write of the Workload was refused, while it is too early to try again.
const std::string* write_problem(PlanState& state) {
  const CreateProblem* const problem = state.problem_of("Workload " + workload_name_of(state.observed.job));
  if (problem == nullptr || state.now >= try_again_at(*problem)) return nullptr;
  state.requeue(try_again_at(*problem));
  return &problem->message;
}

void apply(PlanState& state, const QueueInput& input) {
  state.queue = apply_queue(state.observed.job, state.observed.kueue, input);
  if (state.queue.requeue_at) state.requeue(*state.queue.requeue_at);
}

// Once for each new message: `before` is the one that was written last.
void report_priority_problem(PlanState& state, const api::Condition* before) {
  const std::string& problem = state.queue.priority_problem;
  if (problem.empty() || (before != nullptr && before->message.find(problem) != std::string::npos)) return;
  state.event(true, std::string(kPriorityClassMissing), problem, "Queue");
}

// Seconds that Kueue may take to pass an eviction on to the other cluster and to copy the job's status back.
constexpr api::UnixSeconds kCopyMarginSeconds = 60;

// A dispatched job that is evicted stops in the other cluster, with a checkpoint. Until its copied status counts no
// pods, its quota is kept, but only until this time: from a cluster that is lost no status comes. Nothing: it has
// stopped, or is not evicted.
std::optional<api::UnixSeconds> stops_elsewhere_until(const PlanState& state, const Workload& workload,
                                                      const Result<Json>& pod) {
  const bool has_stopped =
      state.status.nodes.active == 0 || state.status.conditions.is_true(api::condition::kSuspended);
  if (!workload.is_evicted() || !workload.is_reserved() || has_stopped) return std::nullopt;
  constexpr int64_t kKubernetesDefault = 30;
  const std::optional<int64_t> grace =
      pod.ok() ? number_field(*pod, {"spec", "terminationGracePeriodSeconds"}) : std::nullopt;
  const api::UnixSeconds until = workload.conditions.find("Evicted")->last_transition_time +
                                 grace.value_or(kKubernetesDefault) + kCopyMarginSeconds;
  return until > state.now ? std::optional(until) : std::nullopt;
}

bool is_complete(const PlanState& state) { return state.status.conditions.is_true(api::condition::kComplete); }

void finish(PlanState& state, int pods_left, const std::string& message) {
  const Workload* const workload = workload_of(state.observed.job, state.observed.kueue);
  if (workload == nullptr || !is_controlled_by(workload->meta, state.observed.job.meta)) return;
  add(state, finish_workload(*workload, is_complete(state), message, pods_left > 0, state.now));
}

}  // namespace

void ask_queue(PlanState& state) {
  const bool has_workloads = !state.observed.kueue.workloads.empty();
  if (!has_queue(state.observed.job) && !has_workloads) return;
  const Result<Json> pod = unadmitted_pod(state.observed);
  if (!pod.ok() && !has_workloads) return refuse_spec(state, pod.error().message);
  const bool wants_to_run = !state.spec.suspend && !state.book.spec_hold;
  const bool was_edited = state.book.pods_from_generation != 0 && state.node_ranks_with_pods.empty();
  apply(state, {.node_ranks_with_pods = state.node_ranks_with_pods,
                .was_stopped = state.status.conditions.is_true(api::condition::kSuspended) || was_edited,
                .wants_to_run = wants_to_run,
                .wanted_pods = state.observed.wanted_pods,
                .pod = pod.ok() ? std::optional<Json>(*pod) : std::nullopt,
                .write_problem = write_problem(state),
                .now = state.now});
  report_priority_problem(state, state.status.conditions.find(api::condition::kAdmitted));
  if (!state.queue.is_queued || state.queue.may_run || !wants_to_run) return;
  const api::Condition* const before = state.status.conditions.find(api::condition::kSuspended);
  const bool was_suspended_by_user =
      before != nullptr && before->status == api::ConditionStatus::kTrue && before->reason == "Suspended";
  if (was_suspended_by_user) forget_failures(state);
  state.queue_hold = Hold{state.observed.job.meta.generation, state.queue.reason, state.queue.message};
}

void write_workload(PlanState& state) {
  const bool says_more = !state.queue.writes.empty();
  add(state, std::exchange(state.queue.writes, {}));
  const Workload* const workload = workload_of(state.observed.job, state.observed.kueue);
  if (says_more || !state.queue.is_queued || !state.queue.may_run || workload == nullptr) return;
  if (!workload->is_admitted()) return;
  const api::NodeCounts counts = count_pods(state);
  if (auto write = say_pods_ready(*workload, counts.ready + counts.succeeded == counts.desired, state.now)) {
    add(state, {*std::move(write)});
  }
}

void finish_workload(PlanState& state) {
  finish(
      state, state.pods_left,
      state.status.conditions.find(is_complete(state) ? api::condition::kComplete : api::condition::kFailed)->message);
}

bool is_dispatched(const Observed& observed) {
  return observed.job.spec.managed_by == kMultiKueue && !observed.job.meta.deletion_time &&
         (has_queue(observed.job) || !observed.kueue.workloads.empty());
}

void plan_dispatched(PlanState& state) {
  state.plan.why = "spec.managedBy is " + std::string(kMultiKueue);
  if (is_complete(state) || state.status.conditions.is_true(api::condition::kFailed)) {
    return finish(state, 0, state.status.message);
  }
  const Result<Json> pod = unadmitted_pod(state.observed);
  // Kueue copies the job to the other cluster once and not again: there it runs as it was when it was admitted.
  const Workload* const found = workload_of(state.observed.job, state.observed.kueue);
  const Workload workload = found == nullptr ? Workload() : *found;
  const bool is_there = workload.is_admitted();
  const std::optional<api::UnixSeconds> stops_until = stops_elsewhere_until(state, workload, pod);
  if (stops_until) state.requeue(*stops_until);
  apply(state, {.node_ranks_with_pods = stops_until ? std::set<int>{0} : std::set<int>(),
                .was_stopped = !is_there,
                .wants_to_run = !state.spec.suspend,
                .wanted_pods = is_there ? workload.count - workload.reclaimable : state.observed.wanted_pods,
                .pod = pod.ok() ? std::optional<Json>(*pod) : std::nullopt,
                .write_problem = write_problem(state),
                .now = state.now});
  if (!state.queue.message.empty()) state.plan.why += "; " + state.queue.message;
  // It has no conditions of ours: Kueue copies its whole status.
  if (state.queue.reason == kPriorityClassMissing) state.event(true, state.queue.reason, state.queue.message, "Queue");
  report_priority_problem(state, nullptr);
  const bool says_more = !state.queue.writes.empty();
  add(state, std::exchange(state.queue.writes, {}));
  if (says_more || !state.queue.is_queued || !state.queue.may_run || !is_there) return;
  // After another admission the copied status speaks of the pods of the earlier one, until Kueue copies a newer one.
  const api::Condition* const ready = state.status.conditions.find(api::condition::kPodsReady);
  const bool are_ready = ready != nullptr && ready->status == api::ConditionStatus::kTrue &&
                         ready->last_transition_time >= workload.conditions.find("Admitted")->last_transition_time;
  if (auto write = say_pods_ready(workload, are_ready, state.now)) {
    add(state, {*std::move(write)});
  }
}

}  // namespace lockstep::train
