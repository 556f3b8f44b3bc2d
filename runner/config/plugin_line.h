// --plugin on a command line, and the description of a plugin's workload. `lockstep` links no torch and cannot load a
// plugin; lockstep-worker loads it and prints its description as one line of JSON (`lockstep-worker --describe`).
// Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// True for "config" and "plugin": arguments that are read before the flags and are not allowed in a --config file.
bool is_line_argument(std::string_view name);

// The file of --plugin, the last one if several are given; "" without --plugin. Error (kInvalid): --plugin has no
// value.
Result<std::string> plugin_of(const std::vector<std::string>& arguments);

// `data_name`: the data set's name in the run that was asked for; "" for none. The description holds no functions: it
// has the flags and their defaults, but not the code that parses and checks values.
Json describe_workload(const WorkloadFlags& workload, const std::string& data_name);
// Makes a WorkloadFlags from a description. Its flags take any text and its checks accept everything, because the
// worker that printed the description has checked the command line. Error (kCorrupt): a part is missing or has the
// wrong type.
Result<WorkloadFlags> described_workload(const Json& description);

}  // namespace lockstep
