// A plugin: a shared object with a user's own model, for `lockstep run NAME --plugin FILE.so`.
//
// Role: the header that every plugin includes, beside <torch/types.h> or <torch/torch.h> and those of runner/data/ and
// runner/layers/ that its model uses. It is compiled against an installed Lockstep (find_package(Lockstep),
// docs/your-own-model.md), links nothing, and finds Lockstep's functions and torch's in the worker that loads it.
//
//   void byte_lm(lockstep::PluginWorkload& workload) {
//     workload.flags.name = "byte_lm";
//     …
//   }
//   LOCKSTEP_PLUGIN(byte_lm)
//
// Threads: the plugin is loaded and asked for its workload from the main thread, once in a process, and stays loaded.
// Errors: what its functions throw ends the rank; the message names the plugin and the function.
#pragma once

#include <torch/version.h>

#include <cstddef>
#include <cstdint>

#include "runner/config/flag_table_builder.h"
#include "runner/config/workload_flags.h"
#include "runner/models/registry.h"
#include "runner/models/task.h"
#include "runner/models/workload.h"

namespace lockstep {

// What a plugin was compiled with. The worker compares it before it calls any function of the plugin. So it is plain C,
// and `size` and `lockstep` stay the first two fields in all future versions.
struct PluginRecord {
  uint64_t size;         // of this struct
  const char* lockstep;  // version of Lockstep
  const char* headers;   // a digest of its installed headers
  const char* torch;     // version of torch
  const char* abi;       // C++ library and its ABI (kPluginAbi)
  void (*fill)(PluginWorkload& workload);
};

// The ABI of the program that includes this header: the worker or a plugin.
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
inline constexpr const char* kPluginAbi = "libstdc++ with _GLIBCXX_USE_CXX11_ABI=1";
#elif defined(_GLIBCXX_USE_CXX11_ABI)
inline constexpr const char* kPluginAbi = "libstdc++ with _GLIBCXX_USE_CXX11_ABI=0";
#else
inline constexpr const char* kPluginAbi = "another library than libstdc++";
#endif

}  // namespace lockstep

// Both are set by the CMake target Lockstep::plugin.
#if defined(LOCKSTEP_PLUGIN_VERSION) && defined(LOCKSTEP_PLUGIN_HEADERS)
// The one function that a plugin exports. `fill_workload`: void(lockstep::PluginWorkload&).
#define LOCKSTEP_PLUGIN(fill_workload)                                                                     \
  extern "C" __attribute__((visibility("default"))) const lockstep::PluginRecord* lockstep_plugin() {      \
    static const lockstep::PluginRecord record = {sizeof(lockstep::PluginRecord), LOCKSTEP_PLUGIN_VERSION, \
                                                  LOCKSTEP_PLUGIN_HEADERS,        TORCH_VERSION,           \
                                                  lockstep::kPluginAbi,           fill_workload};          \
    return &record;                                                                                        \
  }
#else
#define LOCKSTEP_PLUGIN(fill_workload) \
  static_assert(false,                 \
                "link the CMake target Lockstep::plugin: target_link_libraries(my_model PRIVATE Lockstep::plugin)");
#endif
