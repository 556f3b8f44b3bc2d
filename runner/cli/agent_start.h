// Starts what `lockstep run` and `lockstep launch` have in common: the agent of this node, or with --local_nodes one
// agent for each node. Threads: the calling thread's; it ends the process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/agent/program_command.h"
#include "runner/base/environment.h"
#include "runner/base/file_system.h"
#include "runner/config/run_config.h"

namespace lockstep {

// A command line with what was derived from it.
struct AgentRequest {
  std::vector<std::string> arguments;  // after the command's name; for the workers and the agents of --local_nodes
  RunConfig config;                    // `lockstep launch`: its launch options alone
  Environment environment;
  std::string remark;                     // lines about the file and the data set; empty for none
  std::optional<ProgramCommand> program;  // `lockstep launch`: what the ranks run
};

// The GPUs that processes of this environment may use; 0 without a driver.
int count_visible_gpus(const Environment& environment);

// Returns an exit code (contract/exit_code) if the agent could not begin. After the agent has run it ends the process
// here, without waiting for threads that may hang.
int start_agent_of(FileSystem& fs, AgentRequest request);

}  // namespace lockstep
