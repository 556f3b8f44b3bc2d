// libcuda.so.1 and libnvidia-ml.so.1 for tests: the functions that lockstep calls, with the answers of a machine that
// the file named by FAKE_DRIVER describes, in lines "WORD VALUE":
//
//   version 580.65.06     of the driver
//   cuda 13000            the newest CUDA it runs
//   init 18               what nvmlInit answers (0)
//   gpu 9.0 0 0 H200      capability, uncorrected errors, MIG, name; once per GPU
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr unsigned long long kMemory = 141ULL << 30U;  // NOLINT(google-runtime-int): NVML's type
constexpr int kInvalidArgument = 2;

struct Gpu {
  int major = 0;
  int minor = 0;
  unsigned long long errors = 0;  // NOLINT(google-runtime-int)
  unsigned int mig = 0;
  std::string name;
};

struct Driver {
  std::string version;
  int cuda = 0;
  int init = 0;
  std::vector<Gpu> gpus;

  Driver() {
    const char* const path = std::getenv("FAKE_DRIVER");
    std::ifstream file(path == nullptr ? "" : path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string word;
      words >> word;
      if (word == "version") words >> version;
      if (word == "cuda") words >> cuda;
      if (word == "init") words >> init;
      if (word != "gpu") continue;
      Gpu gpu;
      char dot = 0;
      words >> gpu.major >> dot >> gpu.minor >> gpu.errors >> gpu.mig >> std::ws;
      std::getline(words, gpu.name);
      gpus.push_back(gpu);
    }
  }
};

Driver& driver() {
  static Driver one;
  return one;
}

int copy(const std::string& text, char* to, unsigned int size) {
  if (text.size() >= size) return kInvalidArgument;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return 0;
}

const Gpu& gpu_of(void* device) { return *static_cast<Gpu*>(device); }

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names
extern "C" {

int cuDriverGetVersion(int* version) {
  *version = driver().cuda;
  return 0;
}

int nvmlInit_v2() { return driver().init; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char* text, unsigned int size) { return copy(driver().version, text, size); }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(driver().gpus.size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= driver().gpus.size()) return kInvalidArgument;
  *device = &driver().gpus[index];
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned int size) { return copy(gpu_of(device).name, text, size); }
int nvmlDeviceGetUUID(void* device, char* text, unsigned int size) {
  return copy("GPU-" + std::to_string(&gpu_of(device) - driver().gpus.data()), text, size);
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = gpu_of(device).major;
  *minor = gpu_of(device).minor;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* /*device*/, unsigned long long* memory) {  // NOLINT(google-runtime-int)
  memory[0] = kMemory;
  memory[1] = kMemory;
  memory[2] = 0;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* /*device*/, unsigned int* rates) {
  rates[0] = rates[1] = 0;
  return 0;
}
int nvmlDeviceGetMigMode(void* device, unsigned int* current, unsigned int* pending) {
  *current = *pending = gpu_of(device).mig;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int /*type*/, int /*counter*/,
                                unsigned long long* errors) {  // NOLINT(google-runtime-int)
  *errors = gpu_of(device).errors;
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
