// WorkloadFlags: what the command line knows of one workload. Declared beside the workload's model in a file without
// torch (runner/models/*/*_flags.cc), so that the agent refuses a bad command line before it starts a worker. Parsing,
// --help, completion, `lockstep validate`, args.txt, the start table, the hash and the ranks' comparison come from it.
// Threads: plain values; the functions are pure, but for settle, which looks at the disk.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"

namespace lockstep {

class FlagTableBuilder;

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
};

struct WorkloadFlags {
  std::string name;     // the word after `lockstep run`
  std::string summary;  // what it trains, in half a line
  std::string example;  // a command line that works as it stands

  // Puts the workload's options into config.options, with their defaults, and changes the defaults of other flags.
  std::function<void(RunConfig& config)> set_defaults;
  std::function<void(FlagTableBuilder& table)> add_flags;
  // What no single flag can know. Error: kInvalid.
  std::function<Status(const RunConfig& config)> check;
  // The name of what is trained on, for the run's folder <data_name>_<train_dir>: "ml-100k".
  std::function<std::string(const RunConfig& config)> data_name;

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
