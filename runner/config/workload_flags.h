// WorkloadFlags: what the command line knows of one workload. Declared beside the workload's model in a file without
// torch (runner/models/*/*_flags.cc), so that the agent refuses a bad command line before it starts a worker. Parsing,
// --help, completion, `lockstep validate`, args.txt, the start table, the hash and the ranks' comparison come from it.
// Threads: plain values. The functions are pure, except the two that open files, through the FileSystem that they get.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"

namespace lockstep {

class FlagTableBuilder;

// `lockstep demo`: a short run that learns something on real data, in minutes with two ranks on two cores. The programs
// contain no data: the demo trains on a file that the user has already, else on a generated data set, and prints which.
struct WorkloadDemo {
  std::vector<std::string> arguments;  // flags of the run and their values, without those that choose the data
  std::string data_title;              // "MovieLens-100K"
  std::string data_file;               // its file or folder, relative to a folder of data sets
  std::string data_flag;               // the flag that takes its path: "dataset"
  std::string generated;               // the value of that flag for a data set that is generated in memory
  std::string how_to_get_data;         // lines to print; the last one may be a command
  // A task and its flags that the demo runs with the trained model at the end, on the same data. FOLDER in them stands
  // for the run's folder. Empty: none.
  std::vector<std::string> task = {};
  // More to try: what it shows, and the flags to append to `lockstep demo NAME`.
  std::vector<std::pair<std::string, std::string>> more;
};

// Values of flags that belong together, chosen by one name (WorkloadFlags::preset_flag).
struct Preset {
  std::string name;
  std::string summary;  // in half a line
  std::vector<std::pair<std::string, std::string>>
      values;  // flag, its text; as if given, unless the user gives the flag
};

// Something to do with a trained model, for example sample or recommend: `lockstep WORKLOAD TASK --checkpoint …`. One
// process does it; its result goes to standard output or to --out. PluginWorkload::run_task implements it.
struct WorkloadTask {
  std::string name;                   // the word after the workload: a verb
  std::string summary;                // what it makes, in half a line
  std::vector<std::string> examples;  // complete command lines

  // Puts the task's own options into config.task.options, with their defaults.
  std::function<void(RunConfig& config)> set_defaults;
  std::function<void(FlagTableBuilder& table)> add_flags;
  // Flags of the workload that the task uses, too; those that are not given get their values from the checkpoint.
  std::vector<std::string> workload_flags;
  // Checks combinations of flags, before the checkpoint is read. Error: kInvalid.
  std::function<Status(const RunConfig& config)> check;
  // The decay of the EMA to use; "0": the trained weights. "" or no function: the first EMA, which evaluations use,
  // too.
  std::function<std::string(const RunConfig& config)> average = {};
};

struct WorkloadFlags {
  std::string name;     // the word after `lockstep run`
  std::string summary;  // what it trains, in half a line
  std::string data;     // what it is trained on, in half a line
  std::string example;  // a complete command line
  WorkloadDemo demo;
  std::vector<std::string> bench_arguments;  // flags for `lockstep bench`: a run of training steps and little else

  // Puts the workload's options into config.options, with their defaults, and changes the defaults of other flags.
  std::function<void(RunConfig& config)> set_defaults;
  std::function<void(FlagTableBuilder& table)> add_flags;
  // The first preset is the default and sets no flags. Empty: the workload has no presets.
  std::vector<Preset> presets = {};
  // The flag that chooses a preset. If it is not "preset", it must be one of the workload's own flags whose values are
  // the presets' names.
  std::string preset_flag = "preset";
  // Flags that choose a preset when preset_flag is not given: {"depth", "deep"} means --depth chooses "deep".
  std::vector<std::pair<std::string, std::string>> presets_by_flag = {};
  // Checks combinations of flags. Error: kInvalid.
  std::function<Status(const RunConfig& config)> check;
  // The name of the data set, for the run's folder <data_name>_<train_dir>: "ml-100k".
  std::function<std::string(const RunConfig& config)> data_name;
  // The epochs that weights were trained for, from the name of their file (--state_dict_path); 0 when the name does not
  // say it. Error (kInvalid): a number is expected in the name and missing. No function: names never say it.
  std::function<Result<int64_t>(const std::string& path)> epochs_of_weights = {};

  std::vector<WorkloadTask> tasks;
  // For a task whose --checkpoint is a file of weights, which has no flags in it: the flags that follow from the file's
  // name, by name. Error (kInvalid): a needed flag was not given and does not follow from the name. No function: tasks
  // need a checkpoint folder.
  std::function<Result<std::map<std::string, std::string>>(FileSystem& fs, const RunConfig& given)>
      flags_of_weight_file;

  // The values that flags such as `--dataset auto` stand for. Determined once per run, by the agent, or by the worker
  // when there is no agent.
  struct Settled {
    std::vector<std::string> arguments;  // to be appended to those that were given: {"--dataset=ml-100k"}
    std::string remark;                  // a warning to print; may be empty
  };
  // No function, or nullopt: nothing to settle. Errors: those of reading the data set.
  std::function<Result<std::optional<Settled>>(FileSystem& fs, const RunConfig& config)> settle;
};

// All workloads of a program, in the order of `lockstep run --help`.
using WorkloadList = std::vector<WorkloadFlags>;

// Null when there is none of that name.
const WorkloadFlags* find_workload(const WorkloadList& workloads, std::string_view name);

// Null when `workload` is null or has no task of that name.
const WorkloadTask* find_task(const WorkloadFlags* workload, std::string_view name);

// A run whose values are all settled (WorkloadFlags::settle).
struct SettledRun {
  RunConfig config;
  std::vector<std::string> arguments;  // those that were given, and those that settle added
  std::string remark;
};
// Errors: those of settle.
Result<SettledRun> settled_run(FileSystem& fs, const RunConfig& config, std::vector<std::string> arguments,
                               const WorkloadList& workloads);

// Their names with commas between them.
std::string workload_names(const WorkloadList& workloads);

}  // namespace lockstep
