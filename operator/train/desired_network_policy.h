// networkPolicy: IntraJob. Pure.
#pragma once

#include "operator/train/observed.h"
#include "runner/base/json.h"

namespace lockstep::train {

// Who may talk to the job's pods: its own pods; the operator and Prometheus, to the status port. To whom they may talk:
// its own pods, and DNS. Volumes are mounted by the kubelet and are not concerned.
Json desired_network_policy(const api::TrainJob& job, const Settings& settings);

// Does the NetworkPolicy differ from `desired`?
bool network_policy_differs(const Json& policy, const Json& desired);

}  // namespace lockstep::train
