#include "runner/worker/own_build.h"

#include <dlfcn.h>
#include <torch/version.h>

#include "runner/base/build_info.h"

namespace lockstep {
namespace {

#if defined(LOCKSTEP_CUDA)
constexpr bool kCudaBuild = true;
constexpr const char* kArchitectures = LOCKSTEP_CUDA_ARCHITECTURE_LIST;
#else
constexpr bool kCudaBuild = false;
constexpr const char* kArchitectures = "";
#endif

// The version of a loaded library, from its function `int function(int* version)`; 0 when the library is not loaded.
int loaded_version(const char* function) {
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, function));
  int version = 0;
  return get != nullptr && get(&version) == 0 ? version : 0;
}

}  // namespace

WorkerBuild own_build() {
  WorkerBuild build{.version = build_version(), .torch = TORCH_VERSION, .cuda_architectures = kArchitectures};
  // A CPU build loads libcudart, too, but does not use it.
  if (!kCudaBuild) return build;
  build.cuda = cuda_version_text(loaded_version("cudaRuntimeGetVersion"));
  if (const int nccl = loaded_version("ncclGetVersion"); nccl != 0) build.nccl = nccl_version_text(nccl);
  return build;
}

}  // namespace lockstep
