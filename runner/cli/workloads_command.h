// `lockstep workloads [--plugin FILE]`: lists what can be trained. With --plugin, lockstep-worker describes the
// plugin's workload (known_workloads.h).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/cli/command_shape.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// A block of lines for each workload, in 80 columns.
std::string workloads_text(const WorkloadList& workloads);

CommandShape workloads_shape();

// `args`: those after `lockstep workloads`. Exit codes: 0, 2.
int workloads_command(const std::vector<std::string>& args, const Environment& environment, std::ostream& out,
                      std::ostream& err);

}  // namespace lockstep
