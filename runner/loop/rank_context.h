// RankContext: what a rank works with as long as its process lives. Whatever trains, evaluates or syncs takes it whole.
// Threads: the training thread.
#pragma once

#include <c10/core/Device.h>

#include "runner/base/file_system.h"
#include "runner/config/run_config.h"
#include "runner/loop/device.h"
#include "runner/models/workload.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

class DeviceStream;

// Everything referred to outlives it.
struct RankContext {
  const RunConfig& config;
  Workload& workload;
  FileSystem& fs;
  PhaseClock& clock;
  DeviceStream& stream;
  at::Device device = at::Device(at::kCPU);
  PrecisionChoice precision = {};
};

}  // namespace lockstep
