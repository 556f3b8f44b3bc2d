// `lockstep demo [WORKLOAD] [flags]`: runs a workload's demo with two ranks, and prints its result and what to try
// next.
// Threads: the process's only one.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/file_system.h"
#include "runner/cli/command_shape.h"
#include "runner/cli/run_figures.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// The first and the last evaluation side by side, with the loss at their steps; only the last loss when there was no
// evaluation. Pure.
std::string result_table(const RunFigures& figures);

// `arguments` with this value for the flag instead of any given ones. Pure.
std::vector<std::string> with_flag(const std::vector<std::string>& arguments, const std::string& flag,
                                   const std::string& value);

CommandShape demo_shape();

// `args`: those after `lockstep demo`; `program`: how the user calls this program. The run uses the terminal; returns
// the run's exit code.
int demo_command(FileSystem& fs, const std::vector<std::string>& args, const std::string& program,
                 const Environment& environment, std::ostream& out, std::ostream& err);

}  // namespace lockstep
