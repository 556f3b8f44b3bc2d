// `lockstep WORKLOAD TASK …`: checks the command line, then executes lockstep-worker, which does the task.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/environment.h"

namespace lockstep {

// `arguments`: WORKLOAD and what follows; the workload is Lockstep's own, or --plugin is given. Returns an exit code
// after printing help or refusing the command line (kUsage); otherwise it replaces this process by lockstep-worker
// (exec) and does not return.
int task_command(const std::vector<std::string>& arguments, const Environment& environment, std::ostream& out,
                 std::ostream& err);

}  // namespace lockstep
