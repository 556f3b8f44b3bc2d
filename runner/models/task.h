// What a task of a workload (WorkloadTask) is given: its flags, the trained weights, and where its result goes.
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
  const RunConfig& config;          // with the flags that the weights were trained with
  const NamedTensors& weights;      // on the CPU
  const std::string& weights_path;  // for messages: where they come from
  const Json& progress;  // of the checkpoint's state.json (check_frozen); an empty object for a file of weights
  at::Device device;
  ByteSink out;                                      // the result; takes whole lines
  std::function<void(const std::string& line)> log;  // a remark for people
};

}  // namespace lockstep
