// Which pods are made and which are deleted, and what pods need first: claim, NetworkPolicy, Service. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operator/train/plan_state.h"

namespace lockstep::train {

// `stops_replacing_pods`: the job is about to end, and missing pods are not made.
void plan_pods(PlanState& state, bool stops_replacing_pods);
// Call when no pod can be made of the spec; `message` says why. The job keeps the pods that run, and waits for a change
// of the spec, or of what the cluster allows.
void refuse_spec(PlanState& state, const std::string& message);
// Does the operator, the API server or an admission refuse pods that the job lacks? Not for a quota, which waits for
// other jobs.
bool are_pods_refused(PlanState& state);
// Pods of older attempts, and of ranks from numNodes on: takes them out of the Service, and deletes them.
void retire_pods(PlanState& state);

// Ranks whose pod of the current attempt is still to be made.
std::vector<int> missing_node_ranks(const PlanState& state);
// A quota holds for all pods of the job together, and so does a priority class that does not exist. Of the pods that
// are still to be made and were refused for one of these, returns the refusal whose time to try again comes last;
// nullptr: there is none.
const CreateProblem* refusal_of_all_pods(const PlanState& state);
// Why the pod of this rank waits for pods of an earlier TrainJob of this name; nullopt: it does not.
std::optional<Obstacle> earlier_job_ending(const PlanState& state, int node_rank);

}  // namespace lockstep::train
