// `lockstep run WORKLOAD …`: checks the command line and the environment, then runs the agent.
#pragma once

#include <string>
#include <vector>

#include "runner/base/file_system.h"

namespace lockstep {

// `arguments`: those after `lockstep run`. Returns an exit code (contract/exit_code) if the agent could not begin.
// After the agent has run it ends the process here, without waiting for threads that may hang.
int run_command(FileSystem& fs, const std::vector<std::string>& arguments);

}  // namespace lockstep
