// What follows when a pod has ended badly, and when that is over. Pure; the policy is failure_policy.h.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Raises the attempts of the node ranks whose pods get successors, or fails the job, or holds it.
void react_to_ends(PlanState& state);
// A pod that waits for a node gets a successor when a node that it avoids may be used again, because the affinity
// of an existing pod cannot be changed.
void release_avoided_nodes(PlanState& state);
// Ends Bookkeeping::recovering when pod 0 reports that a newer group trains, or, without a report, when all pods are
// ready again.
void end_recovery(PlanState& state);

}  // namespace lockstep::train
