// `lockstep workloads [--plugin FILE]`: what can be trained. With --plugin it asks lockstep-worker (known_workloads.h).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/cli/command_shape.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/world.h"

namespace lockstep {

// A block for each, in 80 columns.
std::string workloads_text(const WorkloadList& workloads);

CommandShape workloads_shape();

// `args`: what stands after `lockstep workloads`. Exit codes: 0, 2.
int workloads_command(const std::vector<std::string>& args, const Environment& environment, std::ostream& out,
                      std::ostream& err);

}  // namespace lockstep
