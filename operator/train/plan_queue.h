// What a queue says of a job, and what is written into its Workload. Pure; the policy is kueue.h.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

// Asks the policy, before the job is suspended or goes on: what is not admitted is kept suspended
// (PlanState::hold_now).
void ask_queue(PlanState& state);
// Adds the writes to the Workload; once the conditions of a job that goes on are known.
void write_workload(PlanState& state);
// The same for a job that has ended.
void finish_workload(PlanState& state);

// Is the job Kueue's to dispatch to another cluster?
bool is_dispatched(const Observed& observed);
// Its Workload, and nothing else: the other cluster's operator makes its pods, and Kueue copies its status.
void plan_dispatched(PlanState& state);

}  // namespace lockstep::train
