// WorkloadFlags: what the command line knows of one workload. Declared beside the workload's model in a file without
// torch (runner/models/*/*_flags.cc), so that the agent refuses a bad command line before it starts a worker. Parsing,
// --help, completion, `lockstep validate`, args.txt, the start table, the hash and the ranks' comparison come from it.
// Threads: plain values; the functions are pure, but for settle, which looks at the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"

namespace lockstep {

class FlagTableBuilder;

// `lockstep demo`: a run that learns something on real data, in minutes with two ranks on two cores. The programs carry
// no data: the demo trains on a file that is already there, else on a generated data set, and says which.
struct WorkloadDemo {
  std::vector<std::string> arguments;  // flags of the run, each with its value behind it; none of the data
  std::string data_title;              // "MovieLens-100K"
  std::string data_file;               // its file or folder below a folder of data sets
  std::string data_flag;               // the flag that takes its path: "dataset"
  std::string generated;               // the value of that flag for a data set that is made in memory
  std::string how_to_get_data;         // lines for a person; the last one may be a command
  // What is done with the trained model at the end: a task and its flags, on the same data. FOLDER in them stands for
  // the run's folder. Empty: nothing.
  std::vector<std::string> task = {};
  // More to try: what it shows, and the flags to be put behind `lockstep demo NAME`.
  std::vector<std::pair<std::string, std::string>> more;
};

// Values of flags that belong together, chosen by one name (WorkloadFlags::preset_flag).
struct Preset {
  std::string name;
  std::string summary;  // in half a line
  std::vector<std::pair<std::string, std::string>>
      values;  // flag, its text; as if given, unless the user gives the flag
};

// Something to do with a trained model: `lockstep WORKLOAD TASK --checkpoint …`. One process does it; its result goes
// to standard output or to --out. The torch side is run_task of runner/models/registry.h.
struct WorkloadTask {
  std::string name;     // the word after the workload: a verb
  std::string summary;  // what it makes, in half a line
  std::string example;  // a command line that works as it stands

  // Puts the task's own options into config.task.options, with their defaults.
  std::function<void(RunConfig& config)> set_defaults;
  std::function<void(FlagTableBuilder& table)> add_flags;
  // Flags of the workload that act on the task, too; their values come from the checkpoint where they are not given.
  std::vector<std::string> workload_flags;
  // What no single flag can know of what was given, before the checkpoint is read. Error: kInvalid.
  std::function<Status(const RunConfig& config)> check;
  // Which moving average of the weights it takes, by its decay; "0": the trained weights; empty, or without this
  // function: the first one, as evaluations do.
  std::function<std::string(const RunConfig& config)> average = {};
};

struct WorkloadFlags {
  std::string name;     // the word after `lockstep run`
  std::string summary;  // what it trains, in half a line
  std::string data;     // what it is trained on, in half a line
  std::string example;  // a command line that works as it stands
  WorkloadDemo demo;
  std::vector<std::string> bench_arguments;  // flags that leave a run its training steps and little else

  // Puts the workload's options into config.options, with their defaults, and changes the defaults of other flags.
  std::function<void(RunConfig& config)> set_defaults;
  std::function<void(FlagTableBuilder& table)> add_flags;
  // The first one is the default and sets nothing. Empty: there are none.
  std::vector<Preset> presets = {};
  // The flag that chooses among them. Any other than "preset" is one of the workload's own, a choice of their names.
  std::string preset_flag = "preset";
  // Flags that choose a preset where preset_flag is not given: {"mask_ratio", "mdm"}.
  std::vector<std::pair<std::string, std::string>> presets_by_flag = {};
  // What no single flag can know. Error: kInvalid.
  std::function<Status(const RunConfig& config)> check;
  // The name of what is trained on, for the run's folder <data_name>_<train_dir>: "ml-100k".
  std::function<std::string(const RunConfig& config)> data_name;
  // Epochs that weights were trained for, from the path of their file (--state_dict_path); 0: its name says nothing.
  // Error: kInvalid, a name that should say it and does not. Empty: no name says it.
  std::function<Result<int64_t>(const std::string& path)> epochs_of_weights = {};

  std::vector<WorkloadTask> tasks;
  // For a task whose --checkpoint is a file of weights, which has no flags in it: those that follow from the file's
  // name, by name. Error (kInvalid): a flag that is needed follows from nothing and was not given. Empty: a task needs
  // a checkpoint folder.
  std::function<Result<std::map<std::string, std::string>>(const RunConfig& given)> flags_of_weight_file;

  // What a value such as `--dataset auto` stands for, found out once, by the agent, or by a worker without one.
  struct Settled {
    std::vector<std::string> arguments;  // to be put behind those that were given: {"--dataset=ml-100k"}
    std::string remark;                  // for people; empty for none
  };
  // Empty, or a nullopt: nothing to settle. Errors: those of the data set.
  std::function<Result<std::optional<Settled>>(const RunConfig& config)> settle;
};

// All that a program knows, in the order of `lockstep run --help`.
using WorkloadList = std::vector<WorkloadFlags>;

// Null when there is none of that name.
const WorkloadFlags* find_workload(const WorkloadList& workloads, std::string_view name);

// Null when there is none of that name, or no workload.
const WorkloadTask* find_task(const WorkloadFlags* workload, std::string_view name);

// A run whose values are all settled (WorkloadFlags::settle).
struct SettledRun {
  RunConfig config;
  std::vector<std::string> arguments;  // those that were given, and what settle added
  std::string remark;
};
// Errors: those of settle.
Result<SettledRun> settled_run(const RunConfig& config, std::vector<std::string> arguments,
                               const WorkloadList& workloads);

// Their names with commas between them.
std::string workload_names(const WorkloadList& workloads);

}  // namespace lockstep
