// The objects that the operator would make of a TrainJob, made by the operator's own functions. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::manifest {

// They stand for values that only a cluster has.
inline constexpr std::string_view kUidPlaceholder = "<the TrainJob's UID>";
inline constexpr std::string_view kRunPlaceholder = "<from its creation time and UID>";
inline constexpr std::string_view kTokenPlaceholder = "<from the operator's key>";
inline constexpr std::string_view kWorkloadNamePlaceholder = "<from the TrainJob's name and UID>";
inline constexpr std::string_view kDefaultNamespace = "default";

struct RenderOptions {
  std::optional<int> nodes;  // instead of numNodes; with elastic bounds, between them
  int attempt = 0;           // of every pod
  std::string ns;            // instead of the job's; empty: the job's, else kDefaultNamespace
};

// Kueue's Workload where the job has a queue, Service, NetworkPolicy and PodDisruptionBudget where there is one, pods
// by node rank. kInvalid names the field or the option.
Result<std::vector<Json>> rendered_objects(const api::TrainJob& job, const RenderOptions& options);

}  // namespace lockstep::manifest
