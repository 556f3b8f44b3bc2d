// `lockstep-worker --describe FILE.so [run WORKLOAD [flags]]`: prints what `lockstep` needs to know about a plugin,
// because it links no torch and cannot load the plugin itself. One line of JSON on standard output (describe_workload
// of runner/config/plugin_line.h).
// Threads: call once, from the main thread.
#pragma once

#include <string>
#include <vector>

#include "runner/base/file_system.h"

namespace lockstep {

// `arguments`: those after --describe. The flags of a run are checked in the same way as by a worker of that run.
// Returns an exit code; an error is printed as one line on standard error, without a prefix like "error: ".
int describe_plugin(FileSystem& fs, const std::vector<std::string>& arguments);

}  // namespace lockstep
