// --plugin on a command line, and what `lockstep`, which links no torch and loads no plugin, knows of a plugin's
// workload: lockstep-worker loads it and describes it in one line of JSON (`lockstep-worker --describe`).
// Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// Of the arguments that this program reads before its flags, and that no file of --config may have.
bool is_line_argument(std::string_view name);  // "config", "plugin"

// The file of --plugin, the last one where several are given; empty: there is none. Error (kInvalid): no value.
Result<std::string> plugin_of(const std::vector<std::string>& arguments);

// `data_name`: of the run that was asked for; empty for none. The description has no functions: flags are there with
// their defaults, but not what they accept.
Json describe_workload(const WorkloadFlags& workload, const std::string& data_name);
// Its flags take any text, and its checks accept all: who describes it has checked the line. Error (kCorrupt): a part
// is missing or of another type.
Result<WorkloadFlags> described_workload(const Json& description);

}  // namespace lockstep
