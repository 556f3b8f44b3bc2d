// `lockstep-worker WORKLOAD TASK …`: one process, without agent and group, that uses trained weights (a task: sample,
// recommend, …).
//
// Role: reads the checkpoint, determines the values of the flags, chooses the device, and calls Workloads::run_task for
// the rest. The result goes to standard output, or to the file of --out, which is written only when it is complete;
// remarks and errors go to standard error.
// Threads: call once, from the main thread.
#pragma once

#include <string>
#include <vector>

#include "runner/plugin/load_plugin.h"

namespace lockstep {

// `arguments` name a task (config/task_config.h). Returns an exit code (contract/exit_code.h).
int run_task_process(FileSystem& fs, const std::vector<std::string>& arguments, const Workloads& workloads);

}  // namespace lockstep
