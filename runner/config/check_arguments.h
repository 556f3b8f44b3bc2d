// Checks the arguments of an agent that will run elsewhere, in a pod of a TrainJob. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runner/config/run_config.h"

namespace lockstep {

struct ArgumentProblem {
  std::optional<size_t> index;  // of the wrong argument; nullopt: the problem is not with a single one
  std::string message;
};

// `arguments`: those after `lockstep`: run WORKLOAD [flags]. `ranks`: the most ranks that the job may have. nullopt:
// `lockstep run` would accept them, or cannot check them here because they name a file (--config, --plugin) that only
// the pod has.
std::optional<ArgumentProblem> check_arguments(const std::vector<std::string>& arguments, int ranks,
                                               const WorkloadList& workloads);

}  // namespace lockstep
