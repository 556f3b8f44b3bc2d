// GPUs of this machine, seen through the driver's own libraries, opened at run time: the agent links no CUDA and runs
// on machines without it.
// Threads: a GpuMonitor belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct GpuUse {
  int index = 0;  // as NVML numbers them (PCI order)
  int64_t memory_used_bytes = 0;
  int64_t memory_total_bytes = 0;
  int utilisation_percent = 0;
};

// Which of the machine's GPUs CUDA_VISIBLE_DEVICES leaves, as the CUDA driver reads it: indices or (beginnings of)
// UUIDs, comma-separated; unset = all, empty = none; the first entry that names no GPU, or one twice, ends the list.
// An entry MIG-… is a device of its own and counts, with the index -1. Pure.
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
  [[nodiscard]] std::vector<GpuUse> use() const;  // of those that NVML can tell about; takes about a millisecond each

 private:
  struct Nvml;
  GpuMonitor(std::unique_ptr<Nvml> nvml, std::vector<int> visible);

  std::unique_ptr<Nvml> nvml_;
  std::vector<int> visible_;
};

}  // namespace lockstep
