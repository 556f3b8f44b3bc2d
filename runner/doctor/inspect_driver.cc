#include <dlfcn.h>

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

// A library that is closed when it is no longer needed.
class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] bool is_open() const { return handle_ != nullptr; }

  // Calls a function that returns 0 on success, and returns its result; -1 when the library has no such function.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(::dlsym(handle_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

  [[nodiscard]] std::string error_text(int code) const {
    using Function = const char* (*)(int);
    const auto function = reinterpret_cast<Function>(::dlsym(handle_, "nvmlErrorString"));
    return function == nullptr ? "error " + std::to_string(code) : function(code);
  }

 private:
  void* handle_;
};

// Calls an NVML function that writes a text about a device (name, UUID); empty when it fails.
std::string text_of(const Library& nvml, const char* function, NvmlDevice device) {
  std::array<char, kNvmlTextBytes> text{};
  if (nvml.call(function, device, text.data(), kNvmlTextBytes) != 0) return "";
  text.back() = '\0';
  return text.data();
}

GpuFacts inspect_gpu(const Library& nvml, int index, NvmlDevice device) {
  GpuFacts gpu{.index = index, .name = text_of(nvml, "nvmlDeviceGetName", device)};
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
  const Library nvml("libnvidia-ml.so.1");
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
    uuids.push_back(known ? text_of(nvml, "nvmlDeviceGetUUID", device) : "");
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
  const Library cuda("libcuda.so.1");
  facts.has_cuda = cuda.is_open();
  if (facts.has_cuda) cuda.call("cuDriverGetVersion", &facts.cuda_version);
  inspect_nvml(facts, environment);
  return facts;
}

}  // namespace lockstep::doctor
