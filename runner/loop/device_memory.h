// Memory in use by this process, on the host and on its device, and what the device could compute at best.
// Threads: any. Units: bytes, FLOP/s.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "runner/config/run_config.h"
#include "runner/telemetry/metrics.h"

namespace lockstep {

MemoryFigures memory_figures(at::Device device);

// Peak of one device for dense matrices; none on the CPU, or for a device that the table lacks.
std::optional<double> device_peak_flops(at::Device device, Precision precision);

}  // namespace lockstep
