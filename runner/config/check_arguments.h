// Arguments of an agent that is to run elsewhere: a pod of a TrainJob. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runner/config/run_config.h"

namespace lockstep {

struct ArgumentProblem {
  std::optional<size_t> index;  // of the argument; nothing: all of them together
  std::string message;
};

// `arguments`: what stands after `lockstep`: run WORKLOAD [flags]. `ranks`: as many as there may be. Nothing: `lockstep
// run` would begin with them, or they name a file (--config, --plugin) that only the pod has.
std::optional<ArgumentProblem> check_arguments(const std::vector<std::string>& arguments, int ranks,
                                               const WorkloadList& workloads);

}  // namespace lockstep
