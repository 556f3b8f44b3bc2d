// What a queue decides about a job, and what the operator writes into the job's Workload. Pure; kueue.h has the policy.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Asks the policy. To be called before keep_suspended, because a job that is not admitted is kept suspended
// (PlanState::active_hold).
void ask_queue(PlanState& state);
// Adds the writes to the Workload of a job that goes on. To be called when its conditions are known.
void write_workload(PlanState& state);
// The same for a job that has ended.
void finish_workload(PlanState& state);

// Does Kueue dispatch the job to another cluster (MultiKueue)?
bool is_dispatched(const Observed& observed);
// Such a job gets its Workload here and nothing else: the other cluster's operator makes the pods, and Kueue copies the
// status.
void plan_dispatched(PlanState& state);

}  // namespace lockstep::train
