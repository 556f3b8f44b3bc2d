// The registry: turns a parsed command line into a workload with its data loaded, or runs the task that it names.
//
// Role: the one place that knows all workloads by name.
// Threads: call once, from the training thread.
// Errors: a Failure holds the worker's exit code: ExitCode::kUsage for a wrong flag (unknown workload, heads that do
// not divide the width), ExitCode::kData for the data set (missing, unreadable, nothing to train on).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "runner/config/run_config.h"
#include "runner/contract/exit_code.h"
#include "runner/models/task.h"
#include "runner/models/workload.h"

namespace lockstep {

using WorkloadOrFailure = std::variant<std::unique_ptr<Workload>, Failure>;

// Called again and again while data is read or prepared, because a worker that reports nothing for long is treated as
// hung. `prepared` of `to_prepare` pieces are ready; both are 0 where pieces are not counted.
using OnDataProgress = std::function<void(int64_t prepared, int64_t to_prepare)>;

// Reads the data set, and prepares it first where that is needed, which may take hours. The workload's parameters exist
// but are not initialised: Workload::initialize or a checkpoint does that.
WorkloadOrFailure make_workload(
    const RunConfig& config, at::Device device, const OnDataProgress& on_progress = [](int64_t, int64_t) {});

// Runs the task config.task.name, whose flags parse_task_config has checked. Blocks until the result is written. A
// Failure holds the process's exit code: ExitCode::kUsage and kData as above, kCheckpoint for weights that cannot be
// used or a result that cannot be written.
std::optional<Failure> run_task(const TaskInput& input);

}  // namespace lockstep
