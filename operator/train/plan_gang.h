// The gang: its PodGroup, before any pod of it; who waits for whom; what is said of it. Pure; what a group looks like
// is pod_group.h's. Without spec.scheduling.gang none of this does anything.
#pragma once

#include <vector>

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Is there a PodGroup of the current number?
bool is_pod_group_made(const PlanState& state);
// All pods of the gang get successors, which are a group of their own.
void next_pod_group(PlanState& state);
// Is there a PodGroup that pods can join, or one that is made in this pass? Otherwise says why not.
bool has_pod_group(PlanState& state);
// Of the ranks whose pods are missing, those that may be made now: the others of the job come when the gang has its
// nodes.
std::vector<int> ranks_that_may_be_made(const PlanState& state, std::vector<int> missing);
// Deletes groups that are no more, once their pods have ended.
void retire_pod_groups(PlanState& state);
// The condition GangScheduled.
void write_gang_scheduled(PlanState& state);

}  // namespace lockstep::train
