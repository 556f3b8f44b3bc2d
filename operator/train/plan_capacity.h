// Time limits of a job that waits or runs: deadline, start, placement. Pure; each policy has its own file.
#pragma once

#include "operator/train/capacity.h"
#include "operator/train/plan_state.h"

namespace lockstep::train {

Capacity count_capacity(const PlanState& state);
// Fails a job that has run for too long, or whose pods are not ready in time.
void enforce_deadlines(PlanState& state, const Capacity& capacity);
// Deletes all pods, to free their nodes, when too few of them are scheduled for too long.
void enforce_placement_timeout(PlanState& state, const Capacity& capacity);

}  // namespace lockstep::train
