// What c10d and NCCL read in a worker, however it was started.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runner/contract/world.h"
#include "runner/worker/worker.h"

namespace lockstep {
namespace {

Environment of_nccl() {
  Environment found;
  for (const auto& [name, value] : read_environment()) {
    for (const char* prefix : {"NCCL_", "TORCH_NCCL_", "TORCH_FR_"}) {
      if (name.starts_with(prefix)) found.emplace(name, value);
    }
  }
  return found;
}

TEST(WorkerEnvironment, starts_no_thread_of_c10d_s_for_nccl_and_bounds_its_connects) {
  for (const auto& [name, value] : of_nccl()) unsetenv(name.c_str());
  testing::internal::CaptureStdout();
  ASSERT_EQ(run_worker({.arguments = {"sasrec", "--help"}, .environment = {}, .host_name = "here"}), 0);
  testing::internal::GetCapturedStdout();
  const Environment expected{{"NCCL_NVLS_ENABLE", "0"},
                             {"NCCL_SOCKET_RETRY_CNT", "10"},
                             {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "100"},
                             {"TORCH_FR_BUFFER_SIZE", "0"},
                             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
                             {"TORCH_NCCL_BLOCKING_WAIT", "1"},
                             {"TORCH_NCCL_DESYNC_DEBUG", "0"},
                             {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
                             {"TORCH_NCCL_ENABLE_MONITORING", "0"},
                             {"TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "0"},
                             {"TORCH_NCCL_NONBLOCKING_TIMEOUT", "10"},
                             {"TORCH_NCCL_PROPAGATE_ERROR", "0"},
                             {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"}};
  EXPECT_EQ(of_nccl(), expected);
}

}  // namespace
}  // namespace lockstep
