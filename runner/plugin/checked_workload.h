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

// `name`: the WorkloadFlags' name, which the checkpoints get, whatever the name of the plugin's info(): a task finds
// them by it. `path` and `sha256`: of the plugin's file. Throws RunFault (kUsage) when the workload cannot be trained:
// no parameters, no loss term, a parameter that is not a leaf, two parameters of one name, a phase that freezes a group
// that there is not, or all of them.
std::unique_ptr<Workload> make_checked_workload(std::unique_ptr<Workload> workload, const std::string& name,
                                                std::string path, std::string sha256);

}  // namespace lockstep
