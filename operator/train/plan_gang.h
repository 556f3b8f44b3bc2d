// The gang: which earlier pods must have ended before new ones are made, the PodGroup, which is made before the pods of
// spec.scheduling.gang, and the condition. Pure; what a group looks like is pod_group.h's.
#pragma once

#include <optional>

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Must this pod have ended before any pod is made? With launcher Torchrun or None that holds for all pods of earlier
// attempts: they may still save while the new ones load, and our agents, which keep two writers apart
// (docs/checkpoints.md), are not there. With spec.scheduling.gang it holds for the pods of an earlier PodGroup, which
// count as members until they have ended. A pod on a lost node is not waited for.
bool is_waited_for(const PlanState& state, const PodView& pod);
// Why no pod can be made yet: some pods are waited for. nullopt: there are none.
std::optional<Obstacle> earlier_pods_ending(const PlanState& state);

// Is there a PodGroup of the current number?
bool is_pod_group_made(const PlanState& state);
// Increments the PodGroup's number when all pods of the gang get successors, because these need a new group.
void next_pod_group(PlanState& state);
// Is there a PodGroup that pods can join, or one that is made in this pass? If not, PlanState::gang_obstacle says why.
bool has_pod_group(PlanState& state);
// Pods of the ranks below this one may be created now. The ranks beyond those that the job needs wait until all pods of
// the gang are scheduled, and, after make_room_for_pod0, until pod 0 is.
int num_creatable_pods(const PlanState& state);
// Deletes the PodGroups of earlier numbers, once their pods have ended.
void retire_pod_groups(PlanState& state);
// The condition GangScheduled.
void write_gang_scheduled(PlanState& state);

}  // namespace lockstep::train
