// The gang: makes its PodGroup before its pods, holds back the pods that must wait, and writes the condition. Pure;
// what a group looks like is pod_group.h's. Without spec.scheduling.gang none of this does anything.
#pragma once

#include <vector>

#include "operator/train/plan_state.h"

namespace lockstep::train {

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
