// The workloads that a command line can name: Lockstep's own, and with --plugin that of the plugin, as described by
// lockstep-worker. Threads: one. With --plugin it starts lockstep-worker and waits for it.
#pragma once

#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// `arguments`: with is_run those of `lockstep run`, whose flags the worker then checks; else any. Errors (kInvalid):
// the worker's message about the plugin or the run's flags; no worker; a worker that cannot be started or dies.
Result<WorkloadList> known_workloads(const std::vector<std::string>& arguments, bool is_run,
                                     const Environment& environment);

}  // namespace lockstep
