#include "runner/agent/devices.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "runner/agent/nvml.h"
#include "runner/base/json.h"

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

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
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
    const std::string entry = trimmed(raw);
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

struct GpuMonitor::Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_count)(unsigned int*) = nullptr;
  int (*device)(unsigned int, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  bool running = false;

  ~Nvml() {
    if (running) shutdown();
    if (library != nullptr) ::dlclose(library);
  }

  template <typename F>
  bool load(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library, name));  // NOLINT: how dlsym is used
    return function != nullptr;
  }

  bool open() {
    library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const bool complete = load(init, "nvmlInit_v2") && load(shutdown, "nvmlShutdown") &&
                          load(device_count, "nvmlDeviceGetCount_v2") &&
                          load(device, "nvmlDeviceGetHandleByIndex_v2") && load(uuid, "nvmlDeviceGetUUID") &&
                          load(memory, "nvmlDeviceGetMemoryInfo") && load(utilization, "nvmlDeviceGetUtilizationRates");
    running = complete && init() == 0;
    return running;
  }

  [[nodiscard]] std::vector<std::string> uuids() const {
    unsigned int count = 0;
    if (device_count(&count) != 0) return {};
    std::vector<std::string> all;
    for (unsigned int i = 0; i < count; ++i) {
      NvmlDevice handle = nullptr;
      std::array<char, kNvmlTextBytes> text{};
      const bool known = device(i, &handle) == 0 && uuid(handle, text.data(), kNvmlTextBytes) == 0;
      all.emplace_back(known ? text.data() : "");
    }
    return all;
  }
};

GpuMonitor::GpuMonitor(std::unique_ptr<Nvml> nvml, std::vector<int> visible)
    : nvml_(std::move(nvml)), visible_(std::move(visible)) {}
GpuMonitor::~GpuMonitor() = default;

std::unique_ptr<GpuMonitor> GpuMonitor::open(const std::optional<std::string>& cuda_visible_devices) {
  auto nvml = std::make_unique<Nvml>();
  if (!nvml->open()) return nullptr;
  std::vector<int> visible = visible_gpus(cuda_visible_devices, nvml->uuids());
  if (visible.empty()) return nullptr;
  return std::unique_ptr<GpuMonitor>(new GpuMonitor(std::move(nvml), std::move(visible)));
}

int GpuMonitor::count() const { return static_cast<int>(visible_.size()); }

std::vector<GpuUse> GpuMonitor::use() const {
  std::vector<GpuUse> all;
  for (const int index : visible_) {
    if (index < 0) continue;
    NvmlDevice handle = nullptr;
    NvmlMemory memory{};
    NvmlUtilization utilization{};
    if (nvml_->device(static_cast<unsigned int>(index), &handle) != 0) continue;
    if (nvml_->memory(handle, &memory) != 0) continue;
    if (nvml_->utilization(handle, &utilization) != 0) utilization.gpu = 0;
    all.push_back(GpuUse{.index = index,
                         .memory_used_bytes = static_cast<int64_t>(memory.used),
                         .memory_total_bytes = static_cast<int64_t>(memory.total),
                         .utilisation_percent = static_cast<int>(utilization.gpu)});
  }
  return all;
}

}  // namespace lockstep
