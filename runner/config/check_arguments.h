// Checks the arguments and the environment of an agent that will run elsewhere, in a pod of a TrainJob. Pure.
#pragma once

#include <optional>

#include "runner/config/run_config.h"
#include "runner/contract/agent_command.h"

namespace lockstep {

// nullopt: `lockstep run` would accept them. Arguments that name a file which only the pod has (--config, --plugin) are
// not checked, the environment is.
std::optional<ArgumentProblem> check_arguments(const AgentCommand& command, const WorkloadList& workloads);

}  // namespace lockstep
