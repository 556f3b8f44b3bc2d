// The job's PodDisruptionBudget: when there is one, and what the condition DisruptionBudget says. Pure.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Creates, restores or deletes it. To be called last, when it is known which pods the job wants. No pod waits for it.
void keep_disruption_budget(PlanState& state);

}  // namespace lockstep::train
