// The data set of a workload's demo: the real one if it is on this machine, else a generated one.
// Threads: any. Looks at the disk; downloads nothing.
#pragma once

#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// Folders in which data sets are looked for, in this order: ./data, /data (in the image), and the cache into which the
// repository's scripts download them. Pure.
std::vector<std::string> data_folders(const Environment& environment);

struct DemoData {
  std::string value;   // for the workload's data flag (WorkloadDemo::data_flag)
  std::string title;   // "MovieLens-100K (data/ml-100k.inter)", "a generated data set"
  std::string remark;  // lines: what was not found where, and how to get it; empty: it was found
};
DemoData find_demo_data(const WorkloadDemo& demo, const std::vector<std::string>& folders);

// A command line with a value for the data flag.
struct RunWithData {
  std::vector<std::string> arguments;  // WORKLOAD, flags
  RunConfig config;
  std::string data_title;
  std::string remark;  // DemoData::remark; empty when the user has named data
};
// If the user's `flags` (or the file of --config that they name) do not name data, adds the demo's before them. Errors:
// those of parse_run_config.
Result<RunWithData> with_demo_data(const WorkloadFlags& workload, const std::vector<std::string>& flags,
                                   const std::vector<std::string>& folders, const WorkloadList& workloads);

// The workload of that name. kInvalid: there is none; the message lists all.
Result<const WorkloadFlags*> named_workload(const std::string& name, const WorkloadList& workloads);

}  // namespace lockstep
