// The registry: Lockstep's own workloads, each with the parts that a plugin brings (runner/plugin/plugin.h).
//
// Role: the one place that knows all workloads by name, and what a workload consists of.
// Threads: call from the training thread.
// Errors: a Failure holds the worker's exit code: ExitCode::kUsage for a wrong flag, ExitCode::kData for the data set
// (missing, unreadable, nothing to train on).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/exit_code.h"
#include "runner/models/task.h"
#include "runner/models/workload.h"

namespace lockstep {

using WorkloadOrFailure = std::variant<std::unique_ptr<Workload>, Failure>;

template <typename Made>
WorkloadOrFailure workload_or_failure(Result<std::unique_ptr<Made>> workload) {
  if (!workload.ok()) return data_failure(workload.error().message);
  return std::unique_ptr<Workload>(std::move(workload).value());
}

// Called again and again while data is read or prepared, because a worker that reports nothing for long is treated as
// hung. `prepared` of `to_prepare` pieces are ready; both are 0 where pieces are not counted.
using OnDataProgress = std::function<void(int64_t prepared, int64_t to_prepare)>;

// A workload, Lockstep's own or a plugin's.
struct PluginWorkload {
  // Required: name, in a plugin not that of a workload of Lockstep's own. Texts that a plugin leaves empty are not
  // shown, and functions that it leaves empty do nothing.
  WorkloadFlags flags;
  // Called once on each rank: reads the data set, and prepares it first where that is needed, which may take hours, and
  // makes the model. It must call `on_progress` several times a second meanwhile. The parameters exist but are not
  // initialised: Workload::initialize or a checkpoint does that.
  std::function<WorkloadOrFailure(const RunConfig& config, at::Device device, const OnDataProgress& on_progress)> make;
  // Runs the task config.task.name, one of flags.tasks, and blocks until its result is written. A Failure holds the
  // process's exit code: ExitCode::kUsage and kData as above, kCheckpoint for weights that cannot be used or a result
  // that cannot be written. May be empty if flags.tasks is empty.
  std::function<std::optional<Failure>(const TaskInput& input)> run_task = {};
};

// In the order of all_workload_flags, which holds the same flags and links no torch. They open their files through
// `fs`, which outlives them.
std::vector<PluginWorkload> own_workloads(FileSystem& fs);

}  // namespace lockstep
