// disruption.budget: OneAtATime. Pure.
#pragma once

#include <string_view>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

inline constexpr std::string_view kDisruptionBudgetKind = "PodDisruptionBudget";
// Its name in Observed::kinds. Every cluster has the kind, but the right to it came with this field: an operator whose
// roles are older goes on without it.
inline constexpr std::string_view kDisruptionBudgets = "poddisruptionbudgets.policy";

// At most one of the job's pods may be unavailable by an eviction. Kubernetes counts against spec.trainer.numNodes,
// which it reads from the TrainJob's scale.
Json desired_disruption_budget(const api::TrainJob& job);

}  // namespace lockstep::train
