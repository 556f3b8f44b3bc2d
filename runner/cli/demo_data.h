// The data of a workload's demo: the real one where it lies on this machine, else a generated one.
// Threads: any. Looks at the disk; nothing is fetched.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/world.h"

namespace lockstep {

// Where data sets are looked for, the nearest first: ./data, /data (of the image), and the cache into which the
// repository's scripts fetch them. Pure.
std::vector<std::string> data_folders(const Environment& environment);

struct DemoData {
  std::string value;   // of the workload's flag for data
  std::string title;   // "MovieLens-100K (data/ml-100k.inter)", "a generated data set"
  std::string remark;  // lines: what was looked for where, and how to get it; empty: it was found
};
DemoData find_demo_data(const WorkloadDemo& demo, const std::vector<std::string>& folders);

// A command line whose data are settled.
struct RunWithData {
  std::vector<std::string> arguments;  // WORKLOAD, flags
  RunConfig config;
  std::string data_title;
  std::string remark;  // DemoData::remark; empty where the user's own data are taken
};
// Where `flags` (of the user, who may name data in them or in a file of --config) name no data, those of the demo are
// put before them. Errors: those of parse_run_config.
Result<RunWithData> with_demo_data(const WorkloadFlags& workload, const std::vector<std::string>& flags,
                                   const std::vector<std::string>& folders, const WorkloadList& workloads);

// The workload of that name. kInvalid: there is none; the message lists what there is.
Result<const WorkloadFlags*> named_workload(const std::string& name, const WorkloadList& workloads);

}  // namespace lockstep
