// What c10d and NCCL read in a worker, however it was started.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "runner/base/environment.h"
#include "runner/contract/exit_code.h"
#include "runner/worker/worker.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

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
  ASSERT_EQ(run_worker(disk(), {.arguments = {"sasrec", "--help"}, .environment = {}, .host_name = "here"}), 0);
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

// The data are prepared before the ranks meet.
TEST(WorkerEnvironment, the_ranks_of_a_node_share_its_cores_and_memory_while_they_load_the_data) {
  const TemporaryFolder folder;
  const std::string path = folder.write("gaps.txt", "1 1\n1 2\n1 3\n2 1\n2 40000000\n");
  at::set_num_threads(7);
  testing::internal::CaptureStderr();
  const int code =
      run_worker(disk(), {.arguments = {"sasrec", "--dataset", path, "--hidden_units", "512", "--device", "cpu"},
                          .environment = {{"RANK", "0"},
                                          {"WORLD_SIZE", "4096"},
                                          {"LOCAL_RANK", "0"},
                                          {"LOCAL_WORLD_SIZE", "4096"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"MASTER_PORT", "1"}},
                          .host_name = "here"});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, static_cast<int>(ExitCode::kData)) << said;
  EXPECT_NE(said.find("(4096 ranks: embedding"), std::string::npos) << said;
  EXPECT_NE(said.find("they go up to 40000000: number them 1, 2, 3"), std::string::npos) << said;
  EXPECT_EQ(at::get_num_threads(), 1) << "of a machine with fewer than 8192 cores";
}

}  // namespace
}  // namespace lockstep
