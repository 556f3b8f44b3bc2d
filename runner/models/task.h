// The input of a workload's task (WorkloadTask): its flags, the trained weights, and the sink for its result.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/config/run_config.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct TaskInput {
  const RunConfig& config;          // includes the flags that the weights were trained with
  const NamedTensors& weights;      // on the CPU
  const std::string& weights_path;  // the file or folder of the weights, for messages
  FileSystem& fs;                   // through which the task opens its files
  const Json& progress;  // from the checkpoint's state.json (see check_frozen); empty object for a weights file
  at::Device device;
  ByteSink out;                                      // receives the result, in whole lines
  std::function<void(const std::string& line)> log;  // prints a note to the user; not part of the result
};

}  // namespace lockstep
