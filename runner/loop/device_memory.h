// Memory in use by this process, on the host and on its device, and the device's peak FLOP/s.
// Threads: any. Units: bytes, FLOP/s.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "runner/config/run_config.h"
#include "runner/telemetry/metrics.h"

namespace lockstep {

MemoryFigures memory_figures(at::Device device);

// Peak of one device for dense matrix products; nullopt on the CPU and for a GPU that is not in the table.
std::optional<double> device_peak_flops(at::Device device, Precision precision);

}  // namespace lockstep
