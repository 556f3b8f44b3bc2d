// The command of an agent that will run elsewhere, in a pod of a TrainJob, and what may be wrong with it. Values.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/environment.h"

namespace lockstep {

struct AgentCommand {
  std::vector<std::string> arguments;  // those after `lockstep`: run WORKLOAD [flags]
  int ranks = 1;                       // the most ranks that the job may have
  Environment environment = {};        // of pod 0, as far as it is known here
};

struct ArgumentProblem {
  std::optional<size_t> index;  // of the wrong argument; nullopt: the problem is not with a single one
  std::string message;
  bool is_of_environment = false;  // the message names the variables
};

}  // namespace lockstep
