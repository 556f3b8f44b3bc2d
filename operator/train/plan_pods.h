// The pods that are made and those that go, and what they need around them: claim, NetworkPolicy, Service. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/train/plan_state.h"

namespace lockstep::train {

// `replaces_nobody`: the job is about to end, and what is missing stays so.
void plan_pods(PlanState& state, bool replaces_nobody);
// A job that never had a pod was made wrong, and ends. One that had pods keeps those that run, and waits for another
// spec.
void refuse_spec(PlanState& state, const std::string& message);
// Takes pods of older attempts, and of ranks that are no more, out of the Service and away.
void retire_pods(PlanState& state);

// Ranks whose pod of the current attempt is still to be made.
std::vector<int> missing_nodes(const PlanState& state);
// A quota is all pods' of the job: of those that are to be made and that it has refused, the one whose time to try
// again comes last.
const CreateProblem* quota_refusal(const PlanState& state);

}  // namespace lockstep::train
