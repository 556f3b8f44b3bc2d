// `lockstep demo [WORKLOAD] [flags]`: a workload's own short run with two ranks, its result, and what to try next.
// Threads: the process's only one.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "runner/cli/command_shape.h"
#include "runner/cli/run_figures.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/world.h"

namespace lockstep {

// The first and the last evaluation beside each other, with the loss of the steps before them; the loss alone where
// there is none. Pure.
std::string result_table(const RunFigures& figures);

// `arguments` with this value in the place of those given for the flag. Pure.
std::vector<std::string> with_flag(const std::vector<std::string>& arguments, const std::string& flag,
                                   const std::string& value);

CommandShape demo_shape();

// `args`: what stands after `lockstep demo`; `program`: how the user reaches this program. The run has the terminal;
// the exit code is the run's.
int demo_command(const std::vector<std::string>& args, const std::string& program, const Environment& environment,
                 std::ostream& out, std::ostream& err);

}  // namespace lockstep
