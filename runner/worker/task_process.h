// `lockstep-worker WORKLOAD TASK …`: one process, without agent and group, that does something with trained weights.
//
// Role: reads the checkpoint, settles the flags, chooses the device, and leaves the rest to Workloads::run_task.
// The result goes to standard output or, whole, to --out; remarks and errors go to standard error.
// Threads: call once, from the main thread.
#pragma once

#include <string>
#include <vector>

#include "runner/plugin/load_plugin.h"

namespace lockstep {

// `arguments` name a task (config/task_config.h). Returns an exit code (contract/exit_code.h).
int run_task_process(const std::vector<std::string>& arguments, const Workloads& workloads);

}  // namespace lockstep
