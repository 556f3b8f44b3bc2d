#include "operator/train/status.h"

#include <algorithm>
#include <array>

#include "operator/train/elastic.h"
#include "operator/train/object_names.h"
#include "operator/train/plan_state.h"
#include "operator/train/slow_start.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/base/utf8.h"

namespace lockstep::train {
namespace {

using api::ConditionStatus;

// Events and conditions are read in a terminal.
constexpr size_t kFailureMessageBytesMax = 1024;
// When pod 0's container has not started for so long, while an earlier pod 0 exists, it waits for the volume.
constexpr api::UnixSeconds kVolumeWaitSeconds = 30;
// A claim that was applied together with its job is bound a moment later; until then the scheduler finds no node.
constexpr api::UnixSeconds kSchedulingWaitSeconds = 5;
// A busy scheduler looks at a new pod within seconds.
constexpr api::UnixSeconds kSchedulerWaitSeconds = 60;
// An agent answers within a second or two of its start.
constexpr api::UnixSeconds kAgentWaitSeconds = 60;

constexpr std::array<std::string_view, 7> kOrdinaryReasons = {
    "AllPodsReady", "PodsStarting", "PodsNotReady", "Suspended", "GangStarting", kEarlierGangEnding, kTriedAgain};

std::string x_of_y(int count, int all) { return std::to_string(count) + " of " + std::to_string(all); }

// nullptr: there is none, or the node rank, which an agent has reported, is not one of this job.
const PodView* pod_at(const std::vector<const PodView*>& current, int node_rank) {
  return node_rank < 0 || node_rank >= static_cast<int>(current.size()) ? nullptr
                                                                        : current[static_cast<size_t>(node_rank)];
}

// "sasrec-1-0"; the node rank alone where the pod is gone.
std::string name_of(const PodView* pod, int node_rank) {
  return pod != nullptr ? pod->meta.name : std::to_string(node_rank);
}

bool is_done(const PlanState& state, int node_rank) { return state.book.done.count(node_rank) > 0; }

bool is_ready(const PlanState& state, int node_rank) {
  const PodView* const pod = state.current[static_cast<size_t>(node_rank)];
  return pod != nullptr && pod->ready && !pod->deleting;
}

// The first obstacle that `why` returns, in the order of the pods' node ranks.
template <typename Why>
std::optional<Obstacle> first_obstacle(const PlanState& state, Why why) {
  for (const PodView* pod : state.current) {
    if (pod == nullptr || pod->ready) continue;
    if (std::optional<Obstacle> obstacle = why(*pod)) return obstacle;
  }
  return std::nullopt;
}

// Pod 0 does not start, and its volume may still be attached to the node of an earlier one.
struct VolumeWait {
  const PodView& pod;
  const PodView& old;
  [[nodiscard]] api::UnixSeconds waiting_is_normal_until() const { return pod.started_at + kVolumeWaitSeconds; }
};

std::optional<VolumeWait> volume_wait(const PlanState& state) {
  const PodView* const pod = state.pod0();
  if (!state.spec.checkpoint || state.spec.checkpoint->claim_name().empty()) return std::nullopt;
  if (pod == nullptr || pod->started || !pod->scheduled || pod->started_at == 0) return std::nullopt;
  for (const PodView& old : state.observed.pods) {
    if (old.node_rank != 0 || old.attempt >= pod->attempt || old.node.empty() || old.node == pod->node) continue;
    return VolumeWait{*pod, old};
  }
  return std::nullopt;
}

std::optional<Obstacle> volume_obstacle(const PlanState& state) {
  const std::optional<VolumeWait> wait = volume_wait(state);
  if (!wait || wait->waiting_is_normal_until() > state.now) return std::nullopt;
  return Obstacle{"VolumeStillAttached",
                  "pod " + wait->pod.meta.name + " waits for its volume: claim " + state.spec.checkpoint->claim_name() +
                      " is probably still attached to " + wait->old.node + ", where pod " + wait->old.meta.name +
                      " was lost; Kubernetes detaches it when that node is back, is deleted, or has the taint "
                      "node.kubernetes.io/out-of-service"};
}

api::UnixSeconds scheduling_wait_is_normal_until(const PodView& pod) {
  return pod.meta.created + (pod.unschedulable.empty() ? kSchedulerWaitSeconds : kSchedulingWaitSeconds);
}

// Names the nodes that the job avoids, because the scheduler says only that an affinity does not match.
std::string avoided_text(const PlanState& state) {
  const int window = state.spec.restart_policy.window_seconds;
  const std::string nodes = joined(avoided_nodes(state.book, window, state.now));
  return nodes.empty() ? "" : " (it avoids " + nodes + ", where pods failed because of the node)";
}

std::optional<Obstacle> pod_obstacle(const PlanState& state, bool is_late) {
  const auto who = [](const PodView& pod) { return "pod " + pod.meta.name; };
  // Faults of the job itself come first, because only the user can correct them.
  auto obstacle = first_obstacle(state, [&](const PodView& pod) -> std::optional<Obstacle> {
    if (!pod.waiting) return std::nullopt;
    return Obstacle{pod.waiting->reason,
                    who(pod) + ", container " + pod.waiting->container + ": " +
                        (pod.waiting->message.empty() ? pod.waiting->reason : pod.waiting->message)};
  });
  if (obstacle) return obstacle;
  obstacle = first_obstacle(state, [&](const PodView& pod) -> std::optional<Obstacle> {
    if (pod.scheduled) return std::nullopt;
    if (!pod.gates.empty()) {
      return Obstacle{std::string(kSchedulingGated), who(pod) + " is held back by its scheduling gates (" + pod.gates +
                                                         "); the controller that set them removes them"};
    }
    const bool is_age_known = pod.meta.created != 0;
    if (!is_age_known || scheduling_wait_is_normal_until(pod) > state.now) return std::nullopt;
    if (pod.unschedulable.empty()) {
      return Obstacle{"NotScheduled", who(pod) + " waits for a scheduler: none has looked at it"};
    }
    return Obstacle{"Unschedulable", who(pod) + " cannot be scheduled: " + pod.unschedulable + avoided_text(state)};
  });
  if (!obstacle) obstacle = volume_obstacle(state);
  if (obstacle) return obstacle;
  const std::optional<SlowStart> slow = find_slow_start(state.current, state.observed, is_late);
  if (slow && slow->is_unprepared) obstacle = Obstacle{std::string(kContainerCreating), slow->message};
  return obstacle;
}

// Pod 0 runs a program that is not ready and that no agent has answered for. From the returned time on it is probably
// no agent at all. nullopt: an agent has answered, or the launcher has none.
std::optional<api::UnixSeconds> agent_missing_from(const PlanState& state) {
  const Observed& o = state.observed;
  const PodView* const pod = state.pod0();
  if (o.job.spec.trainer.launcher != api::Launcher::kLockstep || state.book.were_ready || pod == nullptr ||
      pod->ready || pod->running_since == 0 || (o.report && o.report->pod_uid == pod->meta.uid)) {
    return std::nullopt;
  }
  return pod->running_since + kAgentWaitSeconds;
}

// When a wait that still counts as normal (for the scheduler, for a volume, for an agent) no longer does.
std::optional<api::UnixSeconds> waiting_is_normal_until(const PlanState& state) {
  std::optional<api::UnixSeconds> until;
  const auto end_by = [&until](api::UnixSeconds when) { until = std::min(until.value_or(when), when); };
  if (const std::optional<VolumeWait> wait = volume_wait(state)) end_by(wait->waiting_is_normal_until());
  if (const auto from = agent_missing_from(state); from && *from > state.now) end_by(*from);
  for (const PodView* pod : state.current) {
    if (pod != nullptr && !pod->scheduled) end_by(scheduling_wait_is_normal_until(*pod));
  }
  if (const auto next = next_slow_start(state.current, state.observed)) end_by(*next);
  return until;
}

std::string ready_of(const PlanState& state, const api::NodeCounts& counts) {
  std::string text = x_of_y(counts.ready, counts.desired) + (counts.desired == 1 ? " pod" : " pods") +
                     (counts.ready == 1 || counts.desired == 1 ? " is ready" : " are ready");
  if (!state.book.done.empty()) text += ", " + std::to_string(counts.succeeded) + " done";
  return text;
}

// What comes after "0 of 2 pods are ready".
std::string starting_text(const PlanState& state, const api::NodeCounts& counts, bool is_late) {
  if (const auto from = agent_missing_from(state); from && *from <= state.now) {
    return "; pod " + state.current.front()->meta.name + " runs, but no Lockstep agent answers in it (port " +
           std::to_string(state.spec.trainer.status_port) +
           "): for a program of your own write it into trainer.command; for Lockstep's, let the operator reach that "
           "port "
           "through the network policies.";
  }
  if (const auto slow = find_slow_start(state.current, state.observed, is_late)) return "; " + slow->message + ".";
  if (state.report == nullptr || !state.report->is_loading()) {
    if (counts.ready + counts.succeeded > 0) return "; the others start.";
    return counts.desired == 1 ? "; it starts." : "; they start.";
  }
  const ReportedLoading& loading = *state.report->loading;
  if (loading.to_prepare <= 0) return "; the workers load their data.";
  // In percent: a status that changed with each piece would be written every two seconds.
  const int64_t percent = std::clamp<int64_t>(loading.prepared, 0, loading.to_prepare) * 100 / loading.to_prepare;
  return "; the workers prepare their data, pod 0 has " + std::to_string(percent) + " %.";
}

}  // namespace

api::NodeCounts count_pods(const PlanState& state) {
  api::NodeCounts counts;
  counts.desired = state.spec.trainer.num_nodes;
  counts.active = static_cast<int>(state.node_ranks_with_pods.size());
  for (int node_rank = 0; node_rank < static_cast<int>(state.current.size()); ++node_rank) {
    if (is_done(state, node_rank)) {
      ++counts.succeeded;
    } else if (is_ready(state, node_rank)) {
      ++counts.ready;
    }
    if (state.failed[static_cast<size_t>(node_rank)]) ++counts.failed;
  }
  return counts;
}

ConditionState pods_ready_condition(const PlanState& state, bool is_late) {
  const api::NodeCounts counts = count_pods(state);
  if (state.suspend.forbids_pods()) {
    return {ConditionStatus::kFalse, "Suspended", state.suspend.message};
  }
  const std::string ready = ready_of(state, counts);
  if (counts.ready + counts.succeeded == counts.desired) {
    return {ConditionStatus::kTrue, "AllPodsReady", ready + "."};
  }
  std::optional<Obstacle> obstacle = state.obstacle;
  if (!obstacle) obstacle = pod_obstacle(state, is_late);
  const bool may_be_edited = obstacle && obstacle->reason == kInvalidSpec && state.node_ranks_with_pods.empty();
  if (may_be_edited) obstacle->message += "; the spec may be changed now";
  if (obstacle) return {ConditionStatus::kFalse, obstacle->reason, ready + "; " + obstacle->message};
  ConditionState condition{ConditionStatus::kFalse, "PodsStarting", ready + starting_text(state, counts, is_late)};
  if (state.book.were_ready) {
    const auto slow = find_slow_start(state.current, state.observed, is_late);
    condition = {ConditionStatus::kFalse, "PodsNotReady", ready + (slow ? "; " + slow->message : "") + "."};
  }
  condition.requeue_at = waiting_is_normal_until(state);
  return condition;
}

ConditionState running_condition(const PlanState& state) {
  const api::TrainJobSpec& spec = state.spec;
  const api::NodeCounts counts = count_pods(state);
  const bool all_ready = counts.ready + counts.succeeded == counts.desired && counts.ready > 0;
  if (state.suspend.step == SuspendStep::kSuspended) {
    return {ConditionStatus::kFalse, "Suspended", "The job is suspended."};
  }
  if (state.book.recovering) return {ConditionStatus::kFalse, "Recovering", "The run is interrupted."};
  if (spec.trainer.launcher != api::Launcher::kLockstep) {
    if (all_ready) return {ConditionStatus::kTrue, "PodsReady", "All pods are ready; this launcher reports no steps."};
    return {ConditionStatus::kFalse, "PodsNotReady", "Not all pods are ready."};
  }
  // A program of the user's may have no optimizer of PyTorch's, from which its steps would be known.
  const bool has_report_of_steps =
      state.report != nullptr && state.report->progress && state.report->progress->step > 0;
  if (runs_user_program(spec) && all_ready && !has_report_of_steps) {
    return {ConditionStatus::kTrue, "PodsReady", "All pods are ready; the program has not reported a step."};
  }
  if (state.report != nullptr) {
    const bool has_step = state.report->progress && state.report->progress->step > 0;
    const bool is_at_work = state.report->is_running() || state.report->is_ending();
    if (is_at_work && has_step) {
      return {ConditionStatus::kTrue, "StepCommitted",
              "Pod 0 reports steps; " + x_of_y(state.report->num_nodes, counts.desired) +
                  (counts.desired == 1 ? " pod trains" : " pods train") +
                  (state.book.origin.empty() ? "." : "; the state: " + state.book.origin + ".")};
    }
    return {ConditionStatus::kFalse, "NoStepYet", "No step was committed since the group last formed."};
  }
  // An agent is ready while its workers train.
  if (all_ready) return {ConditionStatus::kTrue, "PodsReady", "All agents say that their workers train."};
  return {ConditionStatus::kFalse, "NoStepYet", "No step was reported yet."};
}

ConditionState recovering_condition(const PlanState& state, const ConditionState& before) {
  if (state.book.recovering) {
    return {ConditionStatus::kTrue, state.book.recovering->reason, state.book.recovering->message};
  }
  if (state.report != nullptr && state.report->phase == "Recovering") {
    return {ConditionStatus::kTrue, "GroupReforms",
            state.report->reason.empty() ? "The group re-forms." : state.report->reason};
  }
  if (!state.recovered.empty()) return {ConditionStatus::kFalse, "Recovered", state.recovered};
  if (before.reason == "Recovered") return before;
  if (before.reason == "GroupReforms") return {ConditionStatus::kFalse, "Recovered", "The group has re-formed."};
  return {ConditionStatus::kFalse, "NothingToRecover", "Nothing is being recovered."};
}

ConditionState degraded_condition(const PlanState& state, const ConditionState& running) {
  const int desired = state.spec.trainer.num_nodes;
  const RunReport* const report = state.report;
  if (running.status != ConditionStatus::kTrue || report == nullptr) {
    return {ConditionStatus::kFalse, "NotDegraded", "Nothing is known to slow the run down."};
  }
  if (report->num_nodes > 0 && report->num_nodes < desired) {
    return {ConditionStatus::kTrue, "FewerNodes",
            "The run goes on with " + x_of_y(report->num_nodes, desired) +
                " pods; each step takes longer, and the result is the same."};
  }
  if (report->slowest) {
    std::string who = "Rank " + std::to_string(report->slowest->rank);
    if (const int node_rank = report->slowest->node_rank; node_rank >= 0) {
      const PodView* const pod = pod_at(state.current, node_rank);
      who += " in pod " + name_of(pod, node_rank);
      if (pod != nullptr && !pod->node.empty()) who += " on " + pod->node;
    }
    return {ConditionStatus::kTrue, "Straggler", who + " is slower than the others, which wait for it in every step."};
  }
  return {ConditionStatus::kFalse, "NotDegraded", "Nothing is known to slow the run down."};
}

ConditionState checkpoint_ready_condition(const api::TrainJobStatus& status, const ConditionState& before) {
  const std::optional<int64_t> step = status.progress ? status.progress->last_checkpoint_step : std::nullopt;
  if (!step) return before;
  return {ConditionStatus::kTrue, "CheckpointWritten",
          "A complete checkpoint of step " + std::to_string(*step) + " exists."};
}

bool is_problem(std::string_view reason) {
  return std::find(kOrdinaryReasons.begin(), kOrdinaryReasons.end(), reason) == kOrdinaryReasons.end();
}

void summarise(const PlanState& state, api::TrainJobStatus& status) {
  const auto show = [&](api::JobPhase phase, std::string_view type) {
    const api::Condition* const condition = status.conditions.find(type);
    status.phase = phase;
    status.reason = condition->reason;
    status.message = condition->message;
  };
  using api::JobPhase;
  const api::Conditions& conditions = status.conditions;
  if (conditions.is_true(api::condition::kComplete)) return show(JobPhase::kComplete, api::condition::kComplete);
  if (conditions.is_true(api::condition::kFailed)) return show(JobPhase::kFailed, api::condition::kFailed);
  if (conditions.is_true(api::condition::kSuspended)) return show(JobPhase::kSuspended, api::condition::kSuspended);
  if (state.suspend.step == SuspendStep::kStopping) {
    // It still trains, or writes its checkpoint: the phase stays, and the reason says what is under way.
    return show(status.phase.value_or(JobPhase::kStarting), api::condition::kSuspended);
  }
  // The spec may be edited in this phase, with the reason InvalidSpec (manifests/base/crd.yaml): only without pods.
  const bool is_refused =
      state.obstacle && (state.obstacle->reason == kInvalidSpec || state.obstacle->reason == kTriedAgain);
  if (is_refused && state.node_ranks_with_pods.empty()) return show(JobPhase::kPending, api::condition::kPodsReady);
  if (conditions.is_true(api::condition::kRecovering)) return show(JobPhase::kRecovering, api::condition::kRecovering);
  if (conditions.is_true(api::condition::kRunning)) {
    const bool is_degraded = conditions.is_true(api::condition::kDegraded);
    return show(JobPhase::kRunning, is_degraded ? api::condition::kDegraded : api::condition::kRunning);
  }
  // A status that is written before its pods are created says Starting already, so that no second write has to.
  const bool has_pods = std::any_of(state.current.begin(), state.current.end(), [](const PodView* p) { return p; });
  const bool starts = has_pods || is_refused || (state.creates_pods() && !state.obstacle);
  show(starts ? JobPhase::kStarting : JobPhase::kPending, api::condition::kPodsReady);
}

Result<std::optional<api::TrainJobStatus>> status_of_unreadable(const Json& object, const Error& why,
                                                                api::UnixSeconds now) {
  Json without_spec = {{"spec", {{"trainer", {{"image", "unknown"}}}}}};
  for (const char* part : {"metadata", "status"}) {
    if (object.contains(part)) without_spec[part] = object[part];
  }
  TRY_ASSIGN(const api::TrainJob job, api::trainjob_from_json(without_spec));
  const std::string managed_by = text_field(object, {"spec", "managedBy"});
  api::TrainJobStatus status = job.status;
  if ((!managed_by.empty() && managed_by != api::kControllerName) || job.meta.deletion_time ||
      status.conditions.is_true(api::condition::kComplete) || status.conditions.is_true(api::condition::kFailed)) {
    return std::optional<api::TrainJobStatus>();
  }
  status.observed_generation = job.meta.generation;
  status.conditions.set({.type = std::string(api::condition::kPodsReady),
                         .status = ConditionStatus::kFalse,
                         .reason = std::string(kInvalidSpec),
                         .message = why.message,
                         .observed_generation = job.meta.generation},
                        now);
  if (!status.phase) status.phase = api::JobPhase::kPending;
  status.reason = std::string(kInvalidSpec);
  status.message = why.message;
  return status == job.status ? std::nullopt : std::optional(std::move(status));
}

void copy_progress(const RunReport& report, api::TrainJobStatus& status) {
  if (!report.progress && !report.checkpoint_step) return;
  const api::JobProgress before = status.progress.value_or(api::JobProgress{});
  api::JobProgress progress = report.progress.value_or(before);
  progress.metrics = report.metrics.empty() ? before.metrics : report.metrics;
  // A new pod 0 has written no checkpoint yet; those of its predecessor still exist.
  progress.last_checkpoint_step = report.checkpoint_step ? report.checkpoint_step : before.last_checkpoint_step;
  progress.last_updated_time = before.last_updated_time;
  if (status.progress == progress) return;
  progress.last_updated_time = report.read_at;
  status.progress = std::move(progress);
}

void add_failure(api::RecentFailure failure, api::TrainJobStatus& status) {
  failure.message = shortened(failure.message, kFailureMessageBytesMax);
  status.recent_failures.push_back(std::move(failure));
  const size_t count = status.recent_failures.size();
  if (count > api::kRecentFailuresInStatusMax) {
    status.recent_failures.erase(status.recent_failures.begin(),
                                 status.recent_failures.end() - api::kRecentFailuresInStatusMax);
  }
}

void count_process_failures(const RunReport& report, const std::vector<const PodView*>& current,
                            api::TrainJobStatus& status) {
  // Failures older than the newest known one were added before, or have dropped out of the list since.
  api::UnixSeconds newest = 0;
  for (const api::RecentFailure& known : status.recent_failures) newest = std::max(newest, known.time);
  for (api::RecentFailure f : report.failures) {
    if (f.time < newest) continue;
    const bool is_known =
        std::any_of(status.recent_failures.begin(), status.recent_failures.end(), [&](const api::RecentFailure& known) {
          return known.time == f.time && known.rank == f.rank && known.exit_code == f.exit_code;
        });
    if (is_known) continue;
    const PodView* const pod = pod_at(current, f.node);
    if (pod == nullptr) continue;
    f.attempt = pod->attempt;
    f.host = pod->node;
    add_failure(std::move(f), status);
  }
}

std::string worker_restarted_text(const api::TrainJobStatus& status, const std::vector<const PodView*>& current,
                                  int64_t restarts) {
  const auto& failures = status.recent_failures;
  const auto of_worker = std::find_if(failures.rbegin(), failures.rend(), [](const auto& f) { return f.rank; });
  std::string text = "A worker ended";
  if (of_worker != failures.rend()) {
    const api::RecentFailure& f = *of_worker;
    text = "Pod " + name_of(pod_at(current, f.node), f.node) + ": the worker of rank " + std::to_string(*f.rank) +
           " ended";
    if (f.exit_code) text += " with " + std::to_string(*f.exit_code);
    text += " (" + f.reason + (f.message.empty() ? "" : ": " + f.message) + ")";
  }
  if (restarts > 1) text += ", and " + std::to_string(restarts - 1) + " more";
  return text + (restarts > 1 ? ". Their agents started them again" : ". Its agent started it again") +
         "; no pod was replaced.";
}

}  // namespace lockstep::train
