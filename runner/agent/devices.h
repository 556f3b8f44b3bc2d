// The GPUs of this machine, read through NVML, which is opened at run time: the agent links no CUDA and runs on
// machines without it.
// Threads: a GpuMonitor belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class DriverLibrary;

struct GpuUse {
  int index = 0;  // as NVML numbers them (PCI order)
  int64_t memory_used_bytes = 0;
  int64_t memory_total_bytes = 0;
  int utilisation_percent = 0;
};

// The GPUs that CUDA_VISIBLE_DEVICES makes visible, by the CUDA driver's rules: indices or (prefixes of) UUIDs,
// separated by commas; unset = all, empty = none. An entry that names no GPU ends the list; a GPU that is named twice
// makes the list empty. An entry MIG-… is a device of its own and counts, with the index -1. Pure.
std::vector<int> visible_gpus(const std::optional<std::string>& cuda_visible_devices,
                              const std::vector<std::string>& uuids);

class GpuMonitor {
 public:
  // Null when the machine has no driver, or no GPU is visible.
  static std::unique_ptr<GpuMonitor> open(const std::optional<std::string>& cuda_visible_devices);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  [[nodiscard]] int count() const;                // visible GPUs
  [[nodiscard]] std::vector<GpuUse> use() const;  // of those for which NVML has figures; about a millisecond each

 private:
  explicit GpuMonitor(std::unique_ptr<DriverLibrary> nvml);

  std::unique_ptr<DriverLibrary> nvml_;
  std::vector<int> visible_;
};

}  // namespace lockstep
