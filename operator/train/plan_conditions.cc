#include "operator/train/plan_conditions.h"

#include <utility>

#include "operator/train/plan_gang.h"
#include "operator/train/pod_group.h"

namespace lockstep::train {
namespace {

void write_last_conditions(PlanState& state) {
  const std::string_view how =
      state.status.conditions.is_true(api::condition::kComplete) ? api::condition::kComplete : api::condition::kFailed;
  const std::string reason(how);
  const std::string message = how == api::condition::kComplete ? "The job is complete." : "The job has failed.";
  using namespace api::condition;  // NOLINT(google-build-using-namespace): nine words of one list
  for (const std::string_view type : {kSuspended, kAdmitted, kPodsReady, kRunning, kRecovering, kDegraded}) {
    // A job that was admitted stays admitted; the other conditions say what it does now.
    if (type == kAdmitted && state.status.conditions.is_true(kAdmitted)) continue;
    state.set(type, api::ConditionStatus::kFalse, reason, message);
  }
  if (wants_gang(state.spec)) state.set(kGangScheduled, api::ConditionStatus::kFalse, reason, message);
}

void write_suspended(PlanState& state) {
  const bool is_suspended = state.suspend.step == SuspendStep::kSuspended;
  if (state.suspend.forbids_pods()) {
    state.set(api::condition::kSuspended, is_suspended ? api::ConditionStatus::kTrue : api::ConditionStatus::kFalse,
              state.suspend.reason, state.suspend.message);
    state.set(api::condition::kAdmitted, api::ConditionStatus::kFalse,
              state.queue_hold ? state.queue_hold->reason : "Suspended",
              state.queue_hold ? state.queue_hold->message : "A suspended job may not have pods.");
    return;
  }
  if (state.suspend.step == SuspendStep::kResuming) {
    state.set(api::condition::kSuspended, api::ConditionStatus::kFalse, "Resumed", state.suspend.message);
  } else if (state.status.conditions.reason_of(api::condition::kSuspended) != "Resumed") {
    state.set(api::condition::kSuspended, api::ConditionStatus::kFalse, "NotSuspended", state.suspend.message);
  }
  state.set(api::condition::kAdmitted, api::ConditionStatus::kTrue,
            state.queue.is_queued ? state.queue.reason : "NotQueued",
            state.queue.is_queued ? state.queue.message : "The job may have pods; no queue holds it back.");
}

void write_pods_ready(PlanState& state) {
  const std::string reason_before = state.status.conditions.reason_of(api::condition::kPodsReady);
  const ConditionState condition = pods_ready_condition(state);
  const api::Condition* const before = state.status.conditions.find(api::condition::kPodsReady);
  const bool is_same_answer =  // to another try
      reason_before == kTriedAgain && state.obstacle && before->message.ends_with(state.obstacle->message);
  state.set(api::condition::kPodsReady, condition);
  if (condition.reason != reason_before && !is_same_answer && is_problem(condition.reason) &&
      condition.reason != kPodsGivenBack) {
    state.event(condition.reason != kSchedulingGated, condition.reason, condition.message, "MakePods");
  }
  if (condition.status != api::ConditionStatus::kTrue || state.book.were_ready) return;
  state.book.were_ready = true;
  const api::UnixSeconds took = state.now - state.status.start_time.value_or(state.now);
  state.measure(metric::kTrainJobTimeToPodsReady, {}, static_cast<double>(took));
  state.event(false, "PodsReady", condition.message + " It took " + std::to_string(took) + " s.", "MakePods");
}

ConditionState condition_before(const PlanState& state, std::string_view type, const ConditionState& none = {}) {
  const api::Condition* const before = state.status.conditions.find(type);
  return before == nullptr ? none : ConditionState{before->status, before->reason, before->message};
}

void write_running(PlanState& state) {
  const ConditionState running = running_condition(state);
  state.set(api::condition::kRunning, running);
  state.set(api::condition::kRecovering,
            recovering_condition(state, condition_before(state, api::condition::kRecovering)));
  state.set(api::condition::kDegraded, degraded_condition(state, running));
  if (running.status != api::ConditionStatus::kTrue || state.book.has_stepped) return;
  state.book.has_stepped = true;
  const api::UnixSeconds took = state.now - state.status.start_time.value_or(state.now);
  state.measure(metric::kTrainJobTimeToFirstStep, {}, static_cast<double>(took));
  state.event(false, "Running", "The run trains, " + std::to_string(took) + " s after its start.", "Train");
}

void write_checkpoint_ready(PlanState& state) {
  const ConditionState none{api::ConditionStatus::kFalse, "NoCheckpointYet",
                            "No complete checkpoint of this run is known."};
  state.set(api::condition::kCheckpointReady,
            checkpoint_ready_condition(state.status, condition_before(state, api::condition::kCheckpointReady, none)));
}

}  // namespace

void write_conditions(PlanState& state) {
  if (state.is_over) {
    write_last_conditions(state);
  } else {
    write_suspended(state);
    write_gang_scheduled(state);
    write_pods_ready(state);
    write_running(state);
  }
  write_checkpoint_ready(state);
  for (const std::string_view type : {api::condition::kComplete, api::condition::kFailed}) {
    if (state.status.conditions.is_true(type)) continue;
    state.set(type, api::ConditionStatus::kFalse, state.is_over ? "OtherEnd" : "NotFinished",
              state.is_over ? "The job has ended otherwise." : "The job has not finished.");
  }
  state.status.nodes = count_pods(state);
  summarise(state, state.status);
}

}  // namespace lockstep::train
