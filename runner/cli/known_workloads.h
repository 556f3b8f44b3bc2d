// The workloads of a command line: Lockstep's own, and that of the file of --plugin, as lockstep-worker describes it.
// Threads: one. Starts a program where --plugin is given, and waits for it.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/world.h"

namespace lockstep {

// `arguments`: of `lockstep run` with `is_run`, whose flags the worker then checks; else any. Errors (kInvalid): what
// the worker says of the plugin or of the run's flags, no worker, a worker that cannot be started or dies.
Result<WorkloadList> known_workloads(const std::vector<std::string>& arguments, bool is_run,
                                     const Environment& environment);

}  // namespace lockstep
