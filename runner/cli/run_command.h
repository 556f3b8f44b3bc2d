// `lockstep run WORKLOAD …`: checks the command line and the environment, then runs the agent.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// `arguments`: what stands after `lockstep run`. Returns an exit code (contract/exit_code), or does not return: when
// the agent has run, the process leaves here, without waiting for the status server's threads.
int run_command(const std::vector<std::string>& arguments);

}  // namespace lockstep
