// Worker: the whole life of one rank, from its command line to its exit code.
//
// States: await assignment → form group → sync state → train → (peer lost →) … → done. Without an
// agent the World comes from the environment, and a lost peer ends the worker with exit code 10.
// Threads: the main thread is the training thread.
#pragma once

#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/file_system.h"

namespace lockstep {

struct WorkerInput {
  std::vector<std::string> arguments;  // WORKLOAD [flags]
  Environment environment;
  std::string host_name;
};

// Returns the exit code. Errors have been reported by then: to the agent, or on stderr.
int run_worker(FileSystem& fs, const WorkerInput& input);

}  // namespace lockstep
