// `lockstep-worker --describe FILE.so [run WORKLOAD [flags]]`: what `lockstep` needs to know of a plugin that it cannot
// load itself. One line of JSON on standard output (describe_workload of runner/config/plugin_line.h).
// Threads: call once, from the main thread.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// `arguments`: what stands after --describe. A run's flags are checked as the run's own worker does. Returns an exit
// code; an error is one line on standard error, without a word before it.
int describe_plugin(const std::vector<std::string>& arguments);

}  // namespace lockstep
