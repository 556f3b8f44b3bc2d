// Time limits of a job that waits or runs: deadline, start, placement. Pure; each policy has its own file.
#pragma once

#include "operator/train/capacity.h"
#include "operator/train/plan_state.h"

namespace lockstep::train {

Capacity count_capacity(const PlanState& state);
void keep_deadlines(PlanState& state, const Capacity& capacity);
// Gives all pods back when too few of them are scheduled.
void keep_placement(PlanState& state, const Capacity& capacity);

}  // namespace lockstep::train
