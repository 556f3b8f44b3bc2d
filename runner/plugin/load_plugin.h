// The workloads that a worker knows: Lockstep's own, and that of the file of --plugin.
//
// Threads: made and used on the main thread. Ownership: a plugin stays loaded until the process ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/plugin/plugin.h"

namespace lockstep {

struct LoadedPlugin {
  std::string path;
  std::string sha256;  // of the file, hex
  PluginWorkload workload;
};

// Errors (kInvalid, kNotFound): no such file, not a shared object, an undefined symbol, no lockstep_plugin(), compiled
// for another version of Lockstep or torch, a workload without a required part, an exception.
Result<LoadedPlugin> load_plugin(FileSystem& fs, const std::string& path);

class Workloads {
 public:
  // `arguments`: those of a run or a task. Errors: those of plugin_of and load_plugin; a plugin's workload with the
  // name of one of Lockstep's own. Lockstep's own workloads open their files through `fs`, which outlives them.
  static Result<Workloads> load(FileSystem& fs, const std::vector<std::string>& arguments);

  [[nodiscard]] const WorkloadList& flags() const { return flags_; }
  [[nodiscard]] const std::optional<LoadedPlugin>& plugin() const { return plugin_; }
  // PluginWorkload::make and run_task of the workload that the config names. A plugin's workload is wrapped in one that
  // checks it (checked_workload.h).
  [[nodiscard]] WorkloadOrFailure make(const RunConfig& config, at::Device device,
                                       const OnDataProgress& on_progress) const;
  [[nodiscard]] std::optional<Failure> run_task(const TaskInput& input) const;

 private:
  [[nodiscard]] bool is_of_plugin(const RunConfig& config) const;
  // The parser has refused names of no workload.
  [[nodiscard]] const PluginWorkload& own_workload(const RunConfig& config) const;

  std::vector<PluginWorkload> own_;
  WorkloadList flags_;
  std::optional<LoadedPlugin> plugin_;
};

}  // namespace lockstep
