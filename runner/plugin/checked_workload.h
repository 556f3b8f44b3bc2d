// CheckedWorkload: a plugin's workload, held to what the seam (runner/models/workload.h) says of it.
//
// Role: stands between the loop and the plugin. What the plugin throws is said with the plugin's and the function's
// name; losses, weights and parameters that are not what they must be end the run with a message instead of training
// something else.
// Threads and ownership: as Workload; owns the plugin's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/models/workload.h"

namespace lockstep {

// `path` and `sha256`: of the plugin's file. Throws RunFault (kUsage) where the workload cannot be trained as it is:
// no parameters, no loss term, parameters that are no leaves or have one name.
std::unique_ptr<Workload> make_checked_workload(std::unique_ptr<Workload> workload, std::string path,
                                                std::string sha256);

}  // namespace lockstep
