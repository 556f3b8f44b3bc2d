// What follows when a pod has ended badly, and when that is over. Pure; the policy is failure_policy.h.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Raises the attempts of the pods that get successors, or ends or holds the job.
void react_to_ends(PlanState& state);
// A pod's affinity cannot be taken back. One that still waits when the machine that it avoids may be used again gets
// a successor that may go there.
void release_avoided_hosts(PlanState& state);
// It is over when a newer group trains; where nobody says that, when all pods are ready again.
void end_recovery(PlanState& state);

}  // namespace lockstep::train
