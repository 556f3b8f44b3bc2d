// `lockstep WORKLOAD TASK …`: checks the command line, then becomes lockstep-worker, which does the task.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/contract/world.h"

namespace lockstep {

// `arguments`: WORKLOAD and what follows it; the workload is Lockstep's own, or --plugin is given. Returns an exit
// code: of help, or of a line that is refused (kUsage); otherwise the process goes on as lockstep-worker and this does
// not return.
int task_command(const std::vector<std::string>& arguments, const Environment& environment, std::ostream& out,
                 std::ostream& err);

}  // namespace lockstep
