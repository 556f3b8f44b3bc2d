// Parses the command line of a task: `lockstep WORKLOAD TASK …`.
//
// Role: text → RunConfig, like run_config.h for a run. The model's flags come from its checkpoint, so the command line
// is parsed twice: first alone, before anything is read, so that a bad one is refused at once; then with the
// checkpoint's flags as values of those that were not given. Implemented in run_config.cc, whose parser it shares.
// Threads: pure, except that it reads the file of --config.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/config/flag_table.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

// The flags with which the weights were trained.
struct TrainedFlags {
  std::map<std::string, std::string> values;      // by name
  std::map<std::string, std::string> identities;  // FlagValue::identity of those that change the maths
  std::string where;                              // "state.json of /runs/x/step-00001200", for errors
};

// The values of WorkloadTask::workload_flags in a checkpoint. `maths_flags`: as RunConfig::maths_flags() wrote them.
// `args_txt`: that of the run, the only place that has the data set's path; "" when there is none.
TrainedFlags flags_of_checkpoint(const WorkloadFlags& workload, const WorkloadTask& task, const Json& maths_flags,
                                 const std::string& args_txt, std::string where);

// True when the arguments begin with a workload and one of its tasks.
bool names_task(const std::vector<std::string>& arguments, const WorkloadList& workloads);

// The text of `lockstep WORKLOAD TASK --help`.
std::string task_help(const WorkloadFlags& workload, const WorkloadTask& task);

// `arguments`: WORKLOAD TASK [flags], for which names_task() is true. `trained`: null before the checkpoint is read;
// the workload's own check is skipped then. Errors: like those of parse_run_config.
Result<RunConfig> parse_task_config(const std::vector<std::string>& arguments, const WorkloadList& workloads,
                                    const TrainedFlags* trained = nullptr);

// A sentence for each flag that was given with another value than the weights were trained with.
std::vector<std::string> remarks_on_other_flags(const RunConfig& config, const TrainedFlags& trained);

}  // namespace lockstep
