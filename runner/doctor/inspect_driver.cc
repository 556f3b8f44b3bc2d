#include <array>
#include <filesystem>
#include <utility>

#include "runner/agent/devices.h"
#include "runner/agent/nvml.h"
#include "runner/contract/env_names.h"
#include "runner/doctor/collect.h"

namespace lockstep::doctor {
namespace {

constexpr int kUncorrectedErrors = 1;        // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kSinceTheDriverWasLoaded = 0;  // NVML_VOLATILE_ECC
constexpr unsigned int kMigEnabled = 1;      // NVML_DEVICE_MIG_ENABLE

GpuFacts inspect_gpu(const DriverLibrary& nvml, int index, NvmlDevice device) {
  GpuFacts gpu{.index = index, .name = nvml_text(nvml, "nvmlDeviceGetName", device)};
  nvml.call("nvmlDeviceGetCudaComputeCapability", device, &gpu.capability.major, &gpu.capability.minor);
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
    gpu.memory_bytes = memory.total;
    gpu.memory_used_bytes = memory.used;
  }
  unsigned int mig = 0;
  unsigned int mig_pending = 0;
  gpu.is_split = nvml.call("nvmlDeviceGetMigMode", device, &mig, &mig_pending) == 0 && mig == kMigEnabled;
  unsigned long long errors = 0;  // NOLINT(google-runtime-int): NVML's type
  if (nvml.call("nvmlDeviceGetTotalEccErrors", device, kUncorrectedErrors, kSinceTheDriverWasLoaded, &errors) == 0) {
    gpu.uncorrected_errors = errors;
  }
  return gpu;
}

void inspect_nvml(DriverFacts& facts, const Environment& environment) {
  const DriverLibrary nvml("libnvidia-ml.so.1");
  if (!nvml.is_open()) return;
  if (const int error = nvml.call("nvmlInit_v2"); error != 0) {
    facts.problem = nvml.error_text(error);
    return;
  }
  facts.has_nvml = true;
  std::array<char, kNvmlTextBytes> version{};
  if (nvml.call("nvmlSystemGetDriverVersion", version.data(), kNvmlTextBytes) == 0) facts.version = version.data();
  unsigned int count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  std::vector<std::string> uuids;
  for (unsigned int i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    const bool known = nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device) == 0;
    facts.gpus.push_back(known ? inspect_gpu(nvml, static_cast<int>(i), device)
                               : GpuFacts{.index = static_cast<int>(i), .name = "unknown"});
    uuids.push_back(known ? nvml_text(nvml, "nvmlDeviceGetUUID", device) : "");
  }
  const auto restriction = environment.find(std::string(env::kCudaVisibleDevices));
  facts.is_restricted = restriction != environment.end();
  facts.visible =
      visible_gpus(facts.is_restricted ? std::optional<std::string>(restriction->second) : std::nullopt, uuids);
  nvml.call("nvmlShutdown");
}

}  // namespace

DriverFacts inspect_driver(const Environment& environment) {
  DriverFacts facts;
  std::error_code error;
  facts.has_kernel_module = std::filesystem::exists("/proc/driver/nvidia/version", error);
  facts.has_device_files = std::filesystem::exists("/dev/nvidiactl", error);
  facts.cuda_visible_devices = variable(environment, env::kCudaVisibleDevices);
  facts.nvidia_visible_devices = variable(environment, env::kNvidiaVisibleDevices);
  const DriverLibrary cuda("libcuda.so.1");
  facts.has_cuda = cuda.is_open();
  if (facts.has_cuda) cuda.call("cuDriverGetVersion", &facts.cuda_version);
  inspect_nvml(facts, environment);
  return facts;
}

}  // namespace lockstep::doctor
