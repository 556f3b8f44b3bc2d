// What a Trainer works with: made by the worker, alive for the whole process.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "runner/base/file_system.h"
#include "runner/config/run_config.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/exit_code.h"
#include "runner/loop/agent_link.h"
#include "runner/loop/device.h"
#include "runner/loop/injected_faults.h"
#include "runner/loop/reporter.h"
#include "runner/models/workload.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

class DeviceStream;

// Everything referred to outlives the trainer.
struct TrainerParts {
  const RunConfig& config;
  Workload& workload;
  FileSystem& fs;
  PhaseClock& clock;
  Reporter& reporter;
  InjectedFaults& faults;
  BeatPage& page;
  // What this process was asked to end with: 130, 143, or 0.
  std::function<int()> stop_code;
  // Called when there is something to lose: from then on a signal does not end the process, it sets stop_code.
  std::function<void()> defer_stops = [] {};
  AgentLink* agent = nullptr;  // null: a lost peer ends this rank, there will be no other group
  at::Device device;
  DeviceStream& stream;
  PrecisionChoice precision;
  int threads = 1;
  std::string folder;        // of the run
  bool locks_folder = true;  // false where an old rank 0 may live on behind a partition: generations fence it
  std::string host_name;
  JobIdentity job;
  std::string resume_command;
  std::string nccl_variables;  // for the start table
  // The device is broken: called before anything that holds its memory or a communicator is destroyed. Says why, and
  // ends the process.
  std::function<void(const Failure&)> on_device_fault = [](const Failure&) {};
};

}  // namespace lockstep
