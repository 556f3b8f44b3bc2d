#include "runner/agent/devices.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "runner/agent/nvml.h"
#include "runner/base/json.h"
#include "runner/base/trimmed.h"

namespace lockstep {
namespace {

std::optional<int> find_gpu(const std::string& entry, const std::vector<std::string>& uuids) {
  if (entry.starts_with("GPU-")) {
    const auto it = std::find_if(uuids.begin(), uuids.end(), [&](const auto& uuid) { return uuid.starts_with(entry); });
    if (it == uuids.end()) return std::nullopt;
    return static_cast<int>(it - uuids.begin());
  }
  const std::optional<int64_t> index = parse_number(entry);
  if (!index || *index < 0 || *index >= std::ssize(uuids)) return std::nullopt;
  return static_cast<int>(*index);
}

}  // namespace

std::vector<int> visible_gpus(const std::optional<std::string>& cuda_visible_devices,
                              const std::vector<std::string>& uuids) {
  std::vector<int> visible;
  if (!cuda_visible_devices) {
    for (int i = 0; i < std::ssize(uuids); ++i) visible.push_back(i);
    return visible;
  }
  std::istringstream entries(*cuda_visible_devices);
  std::string raw;
  while (std::getline(entries, raw, ',')) {
    const std::string entry(trimmed(raw));
    if (entry.starts_with("MIG-")) {
      visible.push_back(-1);
      continue;
    }
    const std::optional<int> index = find_gpu(entry, uuids);
    if (!index) break;
    // The driver treats a device that is named twice as an error and shows no device at all.
    if (std::find(visible.begin(), visible.end(), *index) != visible.end()) return {};
    visible.push_back(*index);
  }
  return visible;
}

GpuMonitor::GpuMonitor(std::unique_ptr<DriverLibrary> nvml) : nvml_(std::move(nvml)) {}
GpuMonitor::~GpuMonitor() { nvml_->call("nvmlShutdown"); }

std::unique_ptr<GpuMonitor> GpuMonitor::open(const std::optional<std::string>& cuda_visible_devices) {
  auto nvml = std::make_unique<DriverLibrary>("libnvidia-ml.so.1");
  if (!nvml->is_open() || nvml->call("nvmlInit_v2") != 0) return nullptr;
  std::unique_ptr<GpuMonitor> monitor(new GpuMonitor(std::move(nvml)));
  unsigned int count = 0;
  if (monitor->nvml_->call("nvmlDeviceGetCount_v2", &count) != 0) return nullptr;
  std::vector<std::string> uuids;
  for (unsigned int i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    const bool is_known = monitor->nvml_->call("nvmlDeviceGetHandleByIndex_v2", i, &device) == 0;
    uuids.push_back(is_known ? nvml_text(*monitor->nvml_, "nvmlDeviceGetUUID", device) : "");
  }
  monitor->visible_ = visible_gpus(cuda_visible_devices, uuids);
  return monitor->visible_.empty() ? nullptr : std::move(monitor);
}

int GpuMonitor::count() const { return static_cast<int>(visible_.size()); }

std::vector<GpuUse> GpuMonitor::use() const {
  std::vector<GpuUse> all;
  for (const int index : visible_) {
    if (index < 0) continue;
    NvmlDevice handle = nullptr;
    NvmlMemory memory{};
    NvmlUtilization utilization{};
    if (nvml_->call("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned int>(index), &handle) != 0) continue;
    if (nvml_->call("nvmlDeviceGetMemoryInfo", handle, &memory) != 0) continue;
    if (nvml_->call("nvmlDeviceGetUtilizationRates", handle, &utilization) != 0) utilization.gpu = 0;
    all.push_back(GpuUse{.index = index,
                         .memory_used_bytes = static_cast<int64_t>(memory.used),
                         .memory_total_bytes = static_cast<int64_t>(memory.total),
                         .utilisation_percent = static_cast<int>(utilization.gpu)});
  }
  return all;
}

}  // namespace lockstep
