// disruption.budget: OneAtATime. Pure.
#pragma once

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// At most one of the job's pods may be unavailable by an eviction. Kubernetes counts against spec.trainer.numNodes,
// which it reads from the TrainJob's scale.
Json desired_disruption_budget(const api::TrainJob& job);

}  // namespace lockstep::train
