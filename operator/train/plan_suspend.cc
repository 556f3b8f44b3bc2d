#include "operator/train/plan_suspend.h"

#include <set>

#include "operator/train/plan_gang.h"
#include "operator/train/plan_pods.h"
#include "operator/train/pod_cleanup.h"
#include "operator/train/pod_group.h"

namespace lockstep::train {
namespace {

void forget_waits(PlanState& state) {
  state.book.recovering.reset();
  state.book.waiting_since = 0;
  state.book.placement = {};
}

void resume(PlanState& state) {
  state.status.start_time = state.now;
  state.book.were_ready = false;
  state.book.has_stepped = false;
  if (!state.queue.is_queued) forget_failures(state);
  state.event(false, state.queue.is_queued ? state.queue.reason : "Resumed", state.suspend.message, "Resume");
}

void stop_for_suspend(PlanState& state) {
  if (!state.book.suspending && !state.book.spec_hold) {
    state.event(state.queue.is_evicted, state.queue_hold ? state.queue_hold->reason : "Suspending",
                state.suspend.message, "Suspend");
  }
  state.book.suspending = true;
  forget_waits(state);
  const std::set<std::string> kept = pods_kept_for_logs(state.spec, state.status, state.observed.pods);
  for (const PodView& pod : state.observed.pods) {
    if (pod.deleting || kept.count(pod.meta.name) > 0) continue;
    state.act(DeletePod{pod.meta.name, pod.meta.uid},
              state.active_hold() != nullptr ? state.active_hold()->reason : "spec.suspend is true");
  }
  state.plan.why = state.suspend.message;
}

void stay_suspended(PlanState& state) {
  const api::Condition* const before = state.status.conditions.find(api::condition::kSuspended);
  const bool is_news = before == nullptr || before->status != api::ConditionStatus::kTrue ||
                       (state.queue_hold && before->reason != state.queue_hold->reason);
  if (is_news && !state.book.spec_hold) {
    const std::string reason = state.queue_hold ? state.queue_hold->reason : "Suspended";
    state.event(reason == kPriorityClassMissing, reason, state.suspend.message, "Suspend");
  }
  state.book.suspending = false;
  forget_waits(state);
  // The next pods get higher attempts than those that ran. A pod that is done stays done only with launcher Lockstep,
  // where its peers can go on without it.
  const bool keeps_done = state.spec.trainer.launcher == api::Launcher::kLockstep;
  const std::set<int> created = state.book.created;
  bool are_new = false;
  for (const int node_rank : created) {
    if (keeps_done && state.book.done.count(node_rank) > 0) continue;
    state.raise_attempt(node_rank);
    are_new = true;
  }
  if (are_new || is_pod_group_made(state)) next_pod_group(state);
  retire_pods(state);
  retire_pod_groups(state);
  state.plan.why = state.suspend.message;
}

}  // namespace

bool keep_suspended(PlanState& state) {
  state.suspend =
      apply_suspend(state.spec, {.was_suspended = state.status.conditions.is_true(api::condition::kSuspended),
                                 .pods_left = state.pods_left,
                                 .held = state.active_hold()});
  if (state.suspend.step == SuspendStep::kResuming && state.queue.is_queued) {
    state.suspend.message = state.queue.message;
  }
  if (state.suspend.step == SuspendStep::kResuming) resume(state);
  if (state.suspend.step == SuspendStep::kStopping) stop_for_suspend(state);
  if (state.suspend.step == SuspendStep::kSuspended) stay_suspended(state);
  return state.suspend.forbids_pods();
}

void forget_failures(PlanState& state) {
  state.book.counted.clear();
  state.book.out_of_memory = 0;
  state.book.without_progress.clear();
  state.book.quick_replacements.clear();
}

void cancel_suspend(PlanState& state) {
  state.book.suspending = false;
  for (const PodEnd& end : state.ends) state.raise_attempt(end.node_rank);
  state.ends.clear();
  // Pods that are gone already: to look them up would make a failure of the end that they were asked for.
  for (const LookUpPod& gone : state.lookups) state.raise_attempt(gone.node_rank);
  state.lookups.clear();
  if (wants_gang(state.spec)) {  // pods that still end count as members: all start anew, as one group
    const std::set<int> created = state.book.created;
    for (const int node_rank : created) state.raise_attempt(node_rank);
    next_pod_group(state);
  }
  state.event(false, "Resumed", "The job goes on; pods that were already told to stop get successors.", "Resume");
}

void suspend_until_spec_changes(PlanState& state, const JobFailure& why) {
  state.event(true, why.reason, why.message, "Suspend");
  state.book.spec_hold = Hold{state.observed.job.meta.generation, why.reason, why.message + "."};
  // The pod whose end is the reason counts as replaced, and so stays for its logs.
  for (const PodEnd& end : state.ends) state.raise_attempt(end.node_rank);
  keep_suspended(state);
}

}  // namespace lockstep::train
