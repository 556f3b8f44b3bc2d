// The registry: from a parsed command line to a workload with its data loaded, or to the result of a task.
//
// Role: the one place that knows all workloads by name.
// Threads: call once, from the training thread.
// Errors: a Failure says how the worker ends: ExitCode::kUsage for what a flag can mend (unknown workload, heads that
// do not divide the width), ExitCode::kData for the data set (missing, unreadable, nothing to train on).
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

// Called again and again while data is read or prepared: whoever is silent for long is taken for one that hangs. So
// many pieces are ready, of so many; 0 of 0 where nobody counts.
using OnDataProgress = std::function<void(int64_t prepared, int64_t to_prepare)>;

// Reads the data set, after it was prepared where that is needed: it may take hours. The parameters exist but are not
// initialised (Workload::initialize, or a checkpoint).
WorkloadOrFailure make_workload(
    const RunConfig& config, at::Device device, const OnDataProgress& on_progress = [](int64_t, int64_t) {});

// Does the task of config.task.name, as parse_task_config checked it. Blocks until the result is written. A Failure
// says how the process ends: ExitCode::kUsage and kData as above, kCheckpoint for weights that cannot be used or a
// result that cannot be written.
std::optional<Failure> run_task(const TaskInput& input);

}  // namespace lockstep
