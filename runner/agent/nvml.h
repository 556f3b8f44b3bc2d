// The few declarations of nvml.h that are needed, compatible with its ABI: the library is opened at run time.
#pragma once

namespace lockstep {

using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total;  // NOLINT(google-runtime-int): NVML's type
  unsigned long long free;   // NOLINT(google-runtime-int)
  unsigned long long used;   // NOLINT(google-runtime-int)
};
struct NvmlUtilization {
  unsigned int gpu;
  unsigned int memory;
};
inline constexpr unsigned int kNvmlTextBytes = 96;  // of its longest texts: a name, or NVML_DEVICE_UUID_V2_BUFFER_SIZE

}  // namespace lockstep
