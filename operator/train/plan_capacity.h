// Time limits of a job that waits or runs: deadline, start, placement. Pure; each policy has its own file.
#pragma once

#include "operator/train/capacity.h"
#include "operator/train/plan_state.h"

namespace lockstep::train {

Capacity count_capacity(const PlanState& state);
// Suspends a queued job whose pods have been refused for health.startupTimeoutSeconds, until its spec changes: others
// may need the quota. To be called before ask_queue.
void give_reservation_back(PlanState& state);
// Fails a job that has run for too long, or whose pods are not ready in time. Pods that are refused end no job.
void enforce_deadlines(PlanState& state, const Capacity& capacity);
// Deletes all pods, to free their nodes, when too few of them are scheduled for too long.
void enforce_placement_timeout(PlanState& state, const Capacity& capacity);
// Pod 0 finds no node, perhaps because a pod that the elastic job can do without has got the one that pod 0 left:
// deletes that pod. This is no failure and no restart.
void make_room_for_pod0(PlanState& state);

}  // namespace lockstep::train
