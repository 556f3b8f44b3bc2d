// NVML, opened at run time: the few declarations of nvml.h that are needed, compatible with its ABI.
#pragma once

#include <dlfcn.h>

#include <array>
#include <string>

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

// A library of the driver, opened at run time and closed when it is no longer needed.
class DriverLibrary {
 public:
  explicit DriverLibrary(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~DriverLibrary() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

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
inline std::string nvml_text(const DriverLibrary& nvml, const char* function, NvmlDevice device) {
  std::array<char, kNvmlTextBytes> text{};
  if (nvml.call(function, device, text.data(), kNvmlTextBytes) != 0) return "";
  text.back() = '\0';
  return text.data();
}

}  // namespace lockstep
