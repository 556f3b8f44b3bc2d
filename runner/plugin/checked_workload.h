// CheckedWorkload: wraps a plugin's workload and checks that it keeps the contract of runner/models/workload.h.
//
// Role: stands between the loop and the plugin. When the plugin throws, the message names the plugin and the function.
// Losses, weights or parameters that break the contract (a loss that is no scalar or is a mean, a parameter that was
// replaced) end the run with a message.
// Threads: as Workload. Ownership: owns the plugin's workload.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/models/workload.h"

namespace lockstep {

// `path` and `sha256`: of the plugin's file. Throws RunFault (kUsage) when the workload cannot be trained: no
// parameters, no loss term, a parameter that is not a leaf, two parameters of one name.
std::unique_ptr<Workload> make_checked_workload(std::unique_ptr<Workload> workload, std::string path,
                                                std::string sha256);

}  // namespace lockstep
