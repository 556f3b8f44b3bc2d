#include "operator/train/plan_gang.h"

#include <algorithm>
#include <utility>

#include "operator/train/elastic.h"
#include "operator/train/pod_group.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

// Seconds from the creation of the gang's newest pod. A scheduler that knows PodGroups has written its condition into
// the group by then.
constexpr api::UnixSeconds kGroupConditionSeconds = 30;

std::string name_of(const Json& object) { return text_field(object, {"metadata", "name"}); }

bool is_ours(const PlanState& state, const Json& group) {
  return is_controlled_by(api::meta_of(group), state.observed.job.meta) &&
         pod_group_number(state.observed.job.meta, name_of(group)).has_value();
}

const OptionalKind* groups(const PlanState& state) {
  const kube::Versions& versions = pod_group_versions(state.spec);
  return versions.empty() ? nullptr : state.find_kind(versions.front().crd_name());
}

std::string current_name(const PlanState& state) {
  return pod_group_name(state.observed.job.meta, state.book.pod_group);
}

const Json* current_group(const PlanState& state) { return state.find_own(groups(state), current_name(state)); }

int gang_size(const PlanState& state) { return std::min(pods_needed(state.spec), state.spec.trainer.num_nodes); }

// Pods of the gang that are done need not be scheduled any more.
int members_needed(const PlanState& state) {
  const int size = gang_size(state);
  const auto done = std::count_if(state.book.done.begin(), state.book.done.end(), [size](int n) { return n < size; });
  return std::max(1, size - static_cast<int>(done));
}

// Is there a pod, of any rank, that still has to be scheduled?
bool is_any_unscheduled(const PlanState& state) {
  for (size_t i = 0; i < state.current.size(); ++i) {
    const PodView* const pod = state.current[i];
    if (state.book.done.count(static_cast<int>(i)) == 0 && (pod == nullptr || !pod->scheduled)) return true;
  }
  return false;
}

// A group keeps its size while its members get done one by one, as long as no further pod has to be scheduled in it:
// schedulers do not count members that have ended, and would wait for them.
bool is_size_right(const PlanState& state, const Json& group) {
  const int size = pod_group_size(group);
  const int needed = members_needed(state);
  return size == needed || (size > needed && size <= gang_size(state) && !is_any_unscheduled(state));
}

// Of the gang's pods, those that are scheduled or done.
int count_bound(const PlanState& state) {
  int bound = 0;
  for (int node_rank = 0; node_rank < gang_size(state); ++node_rank) {
    const PodView* const pod = state.current[static_cast<size_t>(node_rank)];
    if (state.book.done.count(node_rank) > 0 || (pod != nullptr && pod->scheduled)) ++bound;
  }
  return bound;
}

// Why PodGroups cannot be used (yet); nullopt: they can.
std::optional<Obstacle> why_no_groups(const PlanState& state) {
  const std::string gang = std::string("spec.scheduling.gang is ") + api::to_string(state.spec.scheduling.gang);
  const OptionalKind* const kind = groups(state);
  if (kind == nullptr || (!kind->is_known && kind->trouble.empty())) {
    return Obstacle{"GangStarting", gang + ", and the API server has not said yet whether it has PodGroups"};
  }
  if (!kind->trouble.empty()) {
    return Obstacle{"PodGroupUnavailable", gang + ", and PodGroups cannot be looked at: " + kind->trouble};
  }
  if (kind->api_version.empty()) {
    return Obstacle{"PodGroupUnavailable",
                    gang + ", and the cluster has no PodGroup of " +
                        joined(pod_group_versions(state.spec), " or ", &kube::Resource::api_version) +
                        ", and this operator knows no other version; install or enable it "
                        "(docs/gangs.md), or suspend the job and choose another gang"};
  }
  if (!kind->is_complete) return Obstacle{"GangStarting", "the PodGroups of the cluster are being read"};
  return std::nullopt;
}

bool block_pods(PlanState& state, Obstacle why) {
  state.gang_obstacle = why;
  state.block_pods(std::move(why));
  return false;
}

// A pod of the gang whose object names no PodGroup, though it was created with one: an API server whose feature gate is
// off drops the field.
const PodView* pod_without_group(const PlanState& state) {
  for (int node_rank = 0; node_rank < gang_size(state); ++node_rank) {
    const PodView* const pod = state.current[static_cast<size_t>(node_rank)];
    if (pod != nullptr && pod->pod_group.empty()) return pod;
  }
  return nullptr;
}

// Has a scheduler written its condition into the group, whichever status the condition has?
bool is_seen_by_scheduler(const Json& group) {
  const Json& conditions = list_field(group, {"status", "conditions"});
  return std::any_of(conditions.begin(), conditions.end(), [](const Json& condition) {
    const std::string type = text_field(condition, {"type"});
    return type == "PodGroupInitiallyScheduled" || type == "PodGroupScheduled";  // the second in Kubernetes 1.36
  });
}

// Call once all pods of the gang are scheduled. The scheduler has until then to write that condition; later we report
// kNoGang. nullopt: it has written the condition, or the gang is not Native.
std::optional<api::UnixSeconds> scheduler_grace_ends_at(const PlanState& state) {
  const Json* const group = current_group(state);
  if (state.spec.scheduling.gang != api::Gang::kNative || group == nullptr || is_seen_by_scheduler(*group))
    return std::nullopt;
  api::UnixSeconds newest = 0;
  for (const PodView* const pod : state.current) {
    if (pod != nullptr) newest = std::max(newest, pod->meta.created);
  }
  return newest + kGroupConditionSeconds;
}

std::string without_full_stop(std::string text) {
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

// What may be off where Kubernetes schedules no gangs.
std::string gates_of(const PlanState& state) {
  const OptionalKind* const kind = groups(state);
  const bool needs_another = kind != nullptr && is_native_alpha(kind->api_version);
  return needs_another ? "feature gate GenericWorkload or GangScheduling" : "feature gate GenericWorkload";
}

ConditionState gang_scheduled(const PlanState& state) {
  const int size = gang_size(state);
  const std::string of_group = " (PodGroup " + current_name(state) + ")";
  if (const PodView* const pod = pod_without_group(state)) {
    return {api::ConditionStatus::kFalse, std::string(kNoGang),
            "There is no gang: pod " + pod->meta.name +
                " has lost the name of its PodGroup, so its pods are scheduled one by one. Switch the feature gate "
                "GenericWorkload on in the API server, the scheduler and the controller manager, then suspend and "
                "resume the job."};
  }
  const int bound = count_bound(state);
  // A group that was once found to be ignored stays so: nobody looks at it when one of its pods is replaced.
  const api::Condition* const before = state.status.conditions.find(api::condition::kGangScheduled);
  const bool was_ignored =
      before != nullptr && before->reason == kNoGang && before->message.find(of_group) != std::string::npos;
  if (bound == size || was_ignored) {
    const std::optional<api::UnixSeconds> from = scheduler_grace_ends_at(state);
    if (from && (was_ignored || *from <= state.now)) {
      return {api::ConditionStatus::kFalse, std::string(kNoGang),
              "There is no gang: the scheduler has bound the pods and says nothing of their group" + of_group +
                  ", as one does whose " + gates_of(state) + " is off. The pods were scheduled one by one."};
    }
  }
  // A job in a queue asks Kueue for the topology, and its PodGroup has none.
  if (const Json* const group = current_group(state);
      bound == size && !state.queue.is_queued && group != nullptr && has_lost_topology(state.observed.job, *group)) {
    return {api::ConditionStatus::kFalse, std::string(kTopologyIgnored),
            "There is no topology: the API server has dropped \"" + state.spec.scheduling.topology +
                "\" (spec.scheduling.topology) from PodGroup " + current_name(state) +
                ", as one does whose feature gate TopologyAwareWorkloadScheduling is off, so its pods may be anywhere. "
                "Switch that gate on in the API server and the scheduler, then suspend and resume the job; or suspend "
                "it and remove the topology.",
            scheduler_grace_ends_at(state)};
  }
  if (bound == size) {
    return {
        api::ConditionStatus::kTrue, "GangScheduled",
        (size == 1 ? "The pod of the gang is scheduled" : "All " + plural(size, "pod") + " of the gang are scheduled") +
            of_group + ".",
        scheduler_grace_ends_at(state)};
  }
  if (state.gang_obstacle) {
    return {api::ConditionStatus::kFalse, state.gang_obstacle->reason,
            "The gang waits: " + state.gang_obstacle->message + "."};
  }
  const auto waiting = std::find_if(state.current.begin(), state.current.end(), [](const PodView* pod) {
    return pod != nullptr && !pod->scheduled && !pod->unschedulable.empty();
  });
  std::string text = size == 1
                         ? "The pod of the gang is not scheduled yet"
                         : std::to_string(bound) + " of the " + plural(size, "pod") + " of the gang are scheduled";
  text += of_group;
  if (waiting != state.current.end()) text += "; the scheduler: " + without_full_stop((*waiting)->unschedulable);
  return {api::ConditionStatus::kFalse, waiting != state.current.end() ? "Unschedulable" : "GangStarting", text + "."};
}

}  // namespace

bool is_waited_for(const PlanState& state, const PodView& pod) {
  if (has_ended(pod)) return false;
  const bool may_save = any_pod_may_save(state.spec) && state.is_old(pod) && !pod.end;
  const std::optional<int> group =
      wants_gang(state.spec) ? pod_group_number(state.observed.job.meta, pod.pod_group) : std::nullopt;
  const bool is_member = group && *group < state.book.pod_group;
  return (may_save || is_member) && !is_lost(pod, state.observed);
}

std::optional<Obstacle> earlier_pods_ending(const PlanState& state) {
  int pods = 0;
  const PodView* first = nullptr;
  for (const PodView& pod : state.observed.pods) {
    if (!is_waited_for(state, pod)) continue;
    if (first == nullptr) first = &pod;
    ++pods;
  }
  if (first == nullptr) return std::nullopt;
  const std::string which =
      pods == 1
          ? "pod " + first->meta.name + " of an earlier attempt has not ended"
          : std::to_string(pods) + " pods of earlier attempts have not ended (the first is " + first->meta.name + ")";
  return Obstacle{std::string(kEarlierGangEnding),
                  which + "; no pod is created before (if a node is lost for good, delete its pods with --force)"};
}

bool is_pod_group_made(const PlanState& state) { return current_group(state) != nullptr; }

void next_pod_group(PlanState& state) {
  if (wants_gang(state.spec)) ++state.book.pod_group;
}

bool has_pod_group(PlanState& state) {
  if (!wants_gang(state.spec)) return true;
  if (std::optional<Obstacle> why = why_no_groups(state)) {
    state.requeue(state.now + kTryAgainSeconds);
    return block_pods(state, *std::move(why));
  }
  if (std::optional<Obstacle> why = earlier_pods_ending(state)) return block_pods(state, *std::move(why));
  Json desired =
      desired_pod_group(state.observed.job, groups(state)->api_version, state.book.pod_group, members_needed(state));
  const std::string name = pod_group_versions(state.spec).front().kind + " " + current_name(state);
  // One that is being deleted goes when its pods have gone, and is then made again.
  if (const Json* const group = current_group(state); group != nullptr) {
    const bool was_already_deleting = api::meta_of(*group).deletion_time.has_value();
    const bool is_fixed = is_native_alpha(groups(state)->api_version);  // Kubernetes 1.36 refuses another size
    if (!was_already_deleting && !is_fixed && !is_size_right(state, *group)) {
      state.act(ApplyObject{std::move(desired)}, "its size is not the gang's");
    }
    return true;
  }
  const CreateProblem* const refusal = state.problem_of(name);
  if (refusal != nullptr && state.is_blocked(*refusal)) {
    state.gang_obstacle = state.obstacle_of(*refusal);
    return false;
  }
  state.act(CreateObject{std::move(desired)}, "the gang's pods are its members");
  return refusal == nullptr;
}

int num_creatable_pods(const PlanState& state) {
  const int size = gang_size(state);
  const bool waits_for_gang = wants_gang(state.spec) && count_bound(state) != size;
  return waits_for_gang || state.book.room_made_at != 0 ? size : state.spec.trainer.num_nodes;
}

void retire_pod_groups(PlanState& state) {
  const OptionalKind* const kind = groups(state);
  if (kind == nullptr) return;
  for (const Json& group : kind->objects) {
    const api::ObjectMeta meta = api::meta_of(group);
    if (!is_ours(state, group) || meta.deletion_time || meta.name == current_name(state)) continue;
    if (state.living_by_group.count(meta.name) > 0) continue;
    state.act(DeleteObject{kind->api_version, text_field(group, {"kind"}), meta.name, meta.uid},
              "no pod of its gang is left");
  }
}

void write_gang_scheduled(PlanState& state) {
  if (!wants_gang(state.spec)) return;
  const std::string reason_before = state.status.conditions.reason_of(api::condition::kGangScheduled);
  ConditionState now{api::ConditionStatus::kFalse, "Suspended", "A suspended job has no gang."};
  if (!state.suspend.forbids_pods()) now = gang_scheduled(state);
  state.set(api::condition::kGangScheduled, now);
  const bool is_trouble = now.reason == kNoGang || now.reason == kTopologyIgnored;
  if (is_trouble && reason_before != now.reason) state.event(true, now.reason, now.message, "MakePods");
}

}  // namespace lockstep::train
