#include "operator/train/plan_capacity.h"

#include <algorithm>

#include "operator/train/elastic.h"
#include "operator/train/health.h"
#include "operator/train/object_names.h"
#include "operator/train/placement_timeout.h"
#include "operator/train/plan_gang.h"
#include "operator/train/plan_pods.h"
#include "operator/train/status.h"

namespace lockstep::train {
namespace {

// The scheduler has this long to place pod 0, before another pod is deleted for it, and then before a further one is.
constexpr api::UnixSeconds kMakeRoomSeconds = 5;
constexpr api::UnixSeconds kMakeMoreRoomSeconds = 60;

// The pod of the highest rank that the job can do without and whose node pod 0 may have; nullptr: there is none.
const PodView* pod_to_give_way(const PlanState& state, const PodView& pod0) {
  for (int node_rank = state.spec.trainer.num_nodes - 1; node_rank >= pods_needed(state.spec); --node_rank) {
    const PodView* const pod = state.current[static_cast<size_t>(node_rank)];
    if (pod != nullptr && pod->scheduled && state.book.done.count(node_rank) == 0 && pod0.avoids.count(pod->node) == 0)
      return pod;
  }
  return nullptr;
}

// Does an earlier pod of some rank still end, and keep its node?
bool is_room_being_made(const PlanState& state) {
  return std::any_of(state.observed.pods.begin(), state.observed.pods.end(), [&state](const PodView& pod) {
    return pod.attempt < state.attempt_of(pod.node_rank) && pod.scheduled && !has_ended(pod) &&
           !is_lost(pod, state.observed);
  });
}

bool are_enough_ready(const PlanState& state) {
  const api::NodeCounts counts = count_pods(state);
  return counts.ready + counts.succeeded >= pods_needed(state.spec);
}

}  // namespace

Capacity count_capacity(const PlanState& state) {
  Capacity capacity{.desired = state.spec.trainer.num_nodes, .needed = pods_needed(state.spec)};
  const CreateProblem* const refusal = refusal_of_all_pods(state);
  const bool is_refused = refusal != nullptr && refusal->reason == kQuotaExceeded;
  const bool is_given_back = state.book.placement.again_at > state.now;
  const int num_creatable = num_creatable_pods(state);
  const bool waits_for_earlier_pods = earlier_pods_ending(state).has_value();
  bool only_init_containers_run = true;  // in the pods that a node starts
  for (size_t i = 0; i < state.current.size(); ++i) {
    const int node_rank = static_cast<int>(i);
    if (state.book.done.count(node_rank) > 0) continue;
    const PodView* const pod = state.current[i];
    if (pod == nullptr) {
      const bool is_incomplete = !state.queue.no_new_pods.empty();  // the queue's admission
      if (is_refused || is_given_back || is_incomplete || node_rank >= num_creatable || waits_for_earlier_pods ||
          earlier_job_ending(state, node_rank)) {
        ++capacity.num_unscheduled;
      } else if (not_before(node_rank, state.book) <= state.now) {  // pods that fail at once are made to wait
        ++capacity.num_starting;
      }
      continue;
    }
    if (pod->scheduled || is_refused) ++capacity.num_occupying;
    pod->scheduled ? ++capacity.num_scheduled : ++capacity.num_unscheduled;
    if (pod->scheduled && !pod->started) ++capacity.num_starting;
    if (pod->scheduled && !pod->started && pod->waiting) capacity.is_at_fault = true;
    if (pod->scheduled && !pod->started && pod->init_container.empty()) only_init_containers_run = false;
    if (!pod->started && !pod->init_container.empty()) capacity.is_initializing = true;
  }
  if (capacity.is_at_fault || !only_init_containers_run) capacity.is_initializing = false;
  return capacity;
}

void give_reservation_back(PlanState& state) {
  const api::UnixSeconds since = state.book.waiting_since;
  const bool has_workload = workload_of(state.observed.job, state.observed.kueue) != nullptr;
  if (since == 0 || !has_workload || state.book.spec_hold || state.spec.suspend || !are_pods_refused(state)) return;
  if (state.now < since + state.spec.health.startup_timeout_seconds) return;
  const api::Condition* const ready = state.status.conditions.find(api::condition::kPodsReady);
  const std::string words = ready == nullptr ? "" : ": " + ready->message;
  const std::string message = "The job has given its reservation back after " + std::to_string(state.now - since) +
                              " s (health.startupTimeoutSeconds), because its pods are refused" + words +
                              "; it asks its queue again when its spec changes";
  state.event(true, std::string(kInvalidSpec), message, "Suspend");
  state.book.spec_hold = Hold{state.observed.job.meta.generation, std::string(kInvalidSpec), message + "."};
}

void enforce_deadlines(PlanState& state, const Capacity& capacity) {
  if (const std::optional<int64_t>& time = state.spec.active_deadline_seconds) {
    const api::UnixSeconds start = state.status.start_time.value_or(state.now);
    if (state.now >= start + *time) {
      return state.fail({"DeadlineExceeded", "The job has run for " + std::to_string(state.now - start) + " s, since " +
                                                 api::format_time(start) + ", and spec.activeDeadlineSeconds is " +
                                                 std::to_string(*time) + "."});
    }
    state.requeue(start + *time);
  }

  if (are_enough_ready(state) || state.book.were_ready) state.book.enough_were_ready = true;
  const api::NodeCounts counts = count_pods(state);
  // What the API server or an admission refuses ends no job. For the reservation of a queued one, the time runs.
  const bool are_refused = are_pods_refused(state);
  const bool has_only_refused = are_refused && state.node_ranks_with_pods.empty();
  const bool is_short = capacity.is_short() && !capacity.is_at_fault;
  const bool is_loading = state.report != nullptr && state.report->is_loading();
  const Startup startup = apply_startup_timeout(state.spec,
                                                {.ready = counts.ready + counts.succeeded,
                                                 .needed = capacity.needed,
                                                 .were_ready = state.book.enough_were_ready && !has_only_refused,
                                                 .waits_for_others = are_refused ? !state.queue.is_queued : is_short,
                                                 .is_loading = is_loading || capacity.is_initializing,
                                                 .now = state.now},
                                                state.book.waiting_since);
  state.book.waiting_since = startup.waiting_since;
  if (startup.requeue_at) state.requeue(*startup.requeue_at);
  if (!startup.timed_out || are_refused) return;
  // Why the pods are not ready: the present reason, or that of the previous status if the present one is no problem.
  ConditionState ready = pods_ready_condition(state, /*is_late=*/true);
  const api::Condition* const before = state.status.conditions.find(api::condition::kPodsReady);
  if (!is_problem(ready.reason) && before != nullptr && is_problem(before->reason)) ready.message = before->message;
  state.fail({"StartupTimeout", *startup.timed_out + ": " + ready.message});
}

void enforce_placement_timeout(PlanState& state, const Capacity& capacity) {
  const PlacementTimeout timeout = apply_placement_timeout(state.spec,
                                                           {.capacity = capacity,
                                                            .are_enough_ready = are_enough_ready(state),
                                                            .job_uid = state.observed.job.meta.uid,
                                                            .now = state.now},
                                                           state.book.placement);
  if (timeout.requeue_at) state.requeue(*timeout.requeue_at);
  if (!timeout.gives_back) return;
  state.event(true, std::string(kPodsGivenBack), *timeout.gives_back, "GiveBackPods");
  state.plan.why = *timeout.gives_back;
  const std::set<int> created = state.book.created;
  for (const int node_rank : created) state.raise_attempt(node_rank);
  next_pod_group(state);
}

void make_room_for_pod0(PlanState& state) {
  const PodView* const pod0 = state.pod0();
  if (pod0 == nullptr) return;
  // Kueue sends pod 0 to a node of its own choice, and without an admission the deleted pods could not come back.
  if (state.observed.queue_assigns_nodes || !state.queue.no_new_pods.empty()) return;
  if (pod0->scheduled) state.book.room_made_at = 0;
  if (pod0->scheduled || pod0->unschedulable.empty() || !pod0->gates.empty()) return;
  const PodView* const chosen = pod_to_give_way(state, *pod0);
  if (chosen == nullptr || is_room_being_made(state)) return;
  const api::UnixSeconds when =
      std::max(pod0->meta.created + kMakeRoomSeconds,
               state.book.room_made_at == 0 ? 0 : state.book.room_made_at + kMakeMoreRoomSeconds);
  if (when > state.now) return state.requeue(when);
  const std::string message = "Pod " + chosen->meta.name + " is deleted to free its node for pod " + pod0->meta.name +
                              ", which finds none and without which the run cannot go on; its successor is created "
                              "when pod 0 has a node.";
  state.event(false, "RoomMadeForPod0", message, "MakeRoom");
  state.plan.why = message;
  state.book.room_made_at = state.now;
  // Unscheduled pods are replaced as well, or the scheduler gives one of them the node that was freed for pod 0.
  const int chosen_rank = chosen->node_rank;
  for (int node_rank = pods_needed(state.spec); node_rank < state.spec.trainer.num_nodes; ++node_rank) {
    const PodView* const pod = state.current[static_cast<size_t>(node_rank)];
    if (node_rank == chosen_rank || (pod != nullptr && !pod->scheduled)) state.raise_attempt(node_rank);
  }
}

}  // namespace lockstep::train
