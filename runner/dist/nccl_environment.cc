#include "runner/dist/nccl_environment.h"

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

struct Variable {
  std::string_view name;
  std::string_view value;
  bool is_default = false;  // true: a value that the user has set is kept
};

constexpr std::array kVariables{
    // wait() blocks the host, and c10d starts neither its watchdog nor the thread that watches the watchdog.
    Variable{"TORCH_NCCL_BLOCKING_WAIT", "1"},
    // In case c10d starts a watchdog all the same: it must abort neither a communicator nor the process, and must not
    // end the process when the device has failed, because then the worker exits with code 12.
    Variable{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
    Variable{"TORCH_NCCL_ENABLE_MONITORING", "0"},
    Variable{"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},
    Variable{"TORCH_NCCL_PROPAGATE_ERROR", "0"},
    Variable{"TORCH_NCCL_DESYNC_DEBUG", "0"},
    // The flight recorder keeps pointers to the events of collectives until the watchdog says that they have ended.
    Variable{"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
    Variable{"TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "0"},
    Variable{"TORCH_FR_BUFFER_SIZE", "0"},
    // Seconds that the launch of one collective may take in a non-blocking communicator, its first connections
    // included (c10d's own default: 1,800). A launch that hangs is left with its group before the agent kills at 12 s.
    Variable{"TORCH_NCCL_NONBLOCKING_TIMEOUT", "10", true},
    // A connect to a peer that is gone is tried again with pauses of 100 ms, 200 ms, …: 5.5 s with 10 of them, 60 s
    // with NCCL's own 34. An abort is noticed between two of them.
    Variable{"NCCL_SOCKET_RETRY_CNT", "10", true},
    Variable{"NCCL_SOCKET_RETRY_SLEEP_MSEC", "100", true},
    // Sums computed in the switches (NVLink SHARP) may differ in their bits from one time to the next, which is why
    // torch turns them off in its deterministic mode. A step that is redone after a lost peer must give the same
    // result.
    Variable{"NCCL_NVLS_ENABLE", "0", true},
};

}  // namespace

Environment nccl_environment(const Environment& given) {
  Environment set;
  for (const Variable& variable : kVariables) {
    const std::string name(variable.name);
    if (!variable.is_default || !given.contains(name)) set.emplace(name, variable.value);
  }
  return set;
}

void set_nccl_environment(const Environment& given) {
  for (const auto& [name, value] : nccl_environment(given)) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  }
}

}  // namespace lockstep
