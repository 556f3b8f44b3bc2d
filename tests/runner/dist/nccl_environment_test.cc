#include "runner/dist/nccl_environment.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(NcclEnvironment, leaves_the_user_what_is_a_default_and_nothing_else) {
  const Environment given{{"NCCL_NVLS_ENABLE", "1"},
                          {"NCCL_SOCKET_RETRY_CNT", "34"},
                          {"TORCH_NCCL_BLOCKING_WAIT", "0"},
                          {"TORCH_NCCL_NONBLOCKING_TIMEOUT", "60"},
                          {"NCCL_DEBUG", "INFO"},
                          {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "50"}};
  const Environment set = nccl_environment(given);
  for (const char* name : {"NCCL_NVLS_ENABLE", "NCCL_SOCKET_RETRY_CNT", "NCCL_SOCKET_RETRY_SLEEP_MSEC",
                           "TORCH_NCCL_NONBLOCKING_TIMEOUT", "NCCL_DEBUG"}) {
    EXPECT_FALSE(set.contains(name)) << name;
  }
  EXPECT_EQ(set.at("TORCH_NCCL_BLOCKING_WAIT"), "1");
  EXPECT_EQ(nccl_environment({}).at("NCCL_NVLS_ENABLE"), "0");
}

}  // namespace
}  // namespace lockstep
