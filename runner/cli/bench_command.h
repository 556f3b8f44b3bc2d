// `lockstep bench scaling WORKLOAD [flags]`: measures how much faster more ranks train on this machine.
// Threads: the process's only one.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/file_system.h"
#include "runner/cli/command_shape.h"

namespace lockstep {

CommandShape bench_shape();

// `args`: those after `lockstep bench`. Exit codes: 0; 2 usage; that of a run that failed, whose stderr is then copied
// to `err`; 1 when a run has nothing to measure.
int bench_command(FileSystem& fs, const std::vector<std::string>& args, const Environment& environment,
                  std::ostream& out, std::ostream& err);

}  // namespace lockstep
