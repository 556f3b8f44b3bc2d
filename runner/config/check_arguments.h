// Checks the arguments and the environment of an agent that will run elsewhere, in a pod of a TrainJob. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/config/run_config.h"

namespace lockstep {

struct ArgumentProblem {
  std::optional<size_t> index;  // of the wrong argument; nullopt: the problem is not with a single one
  std::string message;
  bool is_of_environment = false;  // the message names the variables
};

struct AgentCommand {
  std::vector<std::string> arguments;  // those after `lockstep`: run WORKLOAD [flags]
  int ranks = 1;                       // the most ranks that the job may have
  Environment environment = {};        // as far as it is known here
};

// nullopt: `lockstep run` would accept them. Arguments that name a file which only the pod has (--config, --plugin) are
// not checked, the environment is.
std::optional<ArgumentProblem> check_arguments(const AgentCommand& command, const WorkloadList& workloads);

}  // namespace lockstep
