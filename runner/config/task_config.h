// `lockstep WORKLOAD TASK …`: what it was asked to do, and with which model.
//
// Role: text → RunConfig, as run_config.h has it for a run. The model's flags come from its checkpoint, so a line is
// parsed twice: as it was given, before anything is read (a bad line is refused at once), and with the checkpoint's
// flags below those that were given. Written in run_config.cc, whose parser it shares.
// Threads: pure, but for the file of --config.
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

// With which flags the weights were trained.
struct TrainedFlags {
  std::map<std::string, std::string> values;      // by name
  std::map<std::string, std::string> identities;  // of those that changed the maths, as in FlagValue::identity
  std::string where;                              // "state.json of /runs/x/step-00001200", for errors
};

// From a checkpoint: `maths_flags` as RunConfig::maths_flags() wrote them, and the args.txt of its run, or "" without
// one: it alone says where the data set lies. Those of WorkloadTask::workload_flags; others do not act on the task.
TrainedFlags flags_of_checkpoint(const WorkloadFlags& workload, const WorkloadTask& task, const Json& maths_flags,
                                 const std::string& args_txt, std::string where);

// Do they begin with a workload and one of its tasks?
bool names_task(const std::vector<std::string>& arguments, const WorkloadList& workloads);

// The text of `lockstep WORKLOAD TASK --help`.
std::string task_help(const WorkloadFlags& workload, const WorkloadTask& task);

// `arguments`: WORKLOAD TASK [flags], for which names_task() holds. `trained`: null before the checkpoint is read; the
// workload's own check is left out then. Errors: as those of parse_run_config.
Result<RunConfig> parse_task_config(const std::vector<std::string>& arguments, const WorkloadList& workloads,
                                    const TrainedFlags* trained = nullptr);

// A sentence for each flag that was given with another value than the weights were trained with.
std::vector<std::string> remarks_on_other_flags(const RunConfig& config, const TrainedFlags& trained);

}  // namespace lockstep
