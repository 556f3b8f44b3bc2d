#include "runner/cli/local_devices.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

LocalDevices gpus(int count) { return {.gpus = count, .build_has_cuda = true, .nproc_of_pod = std::nullopt}; }

TEST(LocalRanks, are_one_per_gpu_by_default) {
  const Result<LocalRanks> ranks = plan_local_ranks({}, gpus(4));
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->line, "4 GPUs detected, training on 4 ranks");
  EXPECT_FALSE(ranks->is_warning);
}

TEST(LocalRanks, use_the_cpu_with_a_warning_when_there_is_no_gpu) {
  LaunchOptions launch;
  launch.nproc = 2;
  const Result<LocalRanks> ranks = plan_local_ranks(launch, gpus(0));
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->line, "warning: no GPU found, training on the CPU with 2 ranks");
  EXPECT_TRUE(ranks->is_warning);
}

TEST(LocalRanks, are_one_without_gpu_and_flags) { EXPECT_EQ(plan_local_ranks({}, gpus(0))->nproc, 1); }

TEST(LocalRanks, are_one_when_multi_gpu_is_false) {
  LaunchOptions launch;
  launch.multi_gpu = false;
  EXPECT_EQ(plan_local_ranks(launch, gpus(4))->line, "4 GPUs detected, training on 1 rank");
  launch.nproc = 2;
  EXPECT_FALSE(plan_local_ranks(launch, gpus(4)).ok());
}

TEST(LocalRanks, come_from_the_pod_when_no_flag_says_otherwise) {
  LocalDevices devices = gpus(0);
  devices.nproc_of_pod = 3;
  EXPECT_EQ(plan_local_ranks({}, devices)->nproc, 3);
  LaunchOptions launch;
  launch.nproc = 2;
  EXPECT_EQ(plan_local_ranks(launch, devices)->nproc, 2);
}

// The pod has as many GPUs as ranks, so one of them is missing on this machine.
TEST(LocalRanks, of_a_pod_that_are_more_than_the_gpus_blame_the_machine) {
  LocalDevices devices = gpus(7);
  devices.nproc_of_pod = 8;
  const Result<LocalRanks> ranks = plan_local_ranks({}, devices);
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(ranks.error().message.find("8 ranks"), std::string::npos);
  EXPECT_NE(ranks.error().message.find("the driver shows 7 GPUs"), std::string::npos);
  LaunchOptions launch;
  launch.nproc = 8;
  EXPECT_EQ(plan_local_ranks(launch, devices).error().code, ErrorCode::kInvalid);
  launch = {};
  launch.backend = BackendChoice::kGloo;
  EXPECT_TRUE(plan_local_ranks(launch, devices).ok());
}

TEST(LocalRanks, above_the_gpus_are_refused_unless_these_are_shared_or_not_used) {
  LaunchOptions launch;
  launch.nproc = 3;
  const Result<LocalRanks> refused = plan_local_ranks(launch, gpus(2));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--nproc 3 is more than the 2 GPUs"), std::string::npos);
  launch.backend = BackendChoice::kGloo;
  EXPECT_TRUE(plan_local_ranks(launch, gpus(2))->uses_gpus);
  launch.backend = BackendChoice::kAuto;
  LocalDevices shared = gpus(2);
  shared.nccl_shares_gpus = true;
  EXPECT_TRUE(plan_local_ranks(launch, shared)->uses_gpus);
  launch.device = DeviceChoice::kCpu;
  EXPECT_FALSE(plan_local_ranks(launch, gpus(2))->uses_gpus);
}

TEST(LocalRanks, of_a_user_s_program_above_the_gpus_are_told) {
  EXPECT_EQ(describe_program_ranks(2, 0).line, "starting 2 ranks");
  const LocalRanks one_each = describe_program_ranks(2, 2);
  EXPECT_TRUE(one_each.uses_gpus);
  EXPECT_FALSE(one_each.is_warning);
  EXPECT_EQ(one_each.line, "starting 2 ranks on a machine with 2 GPUs");
  const LocalRanks too_many = describe_program_ranks(4, 2);
  EXPECT_EQ(too_many.nproc, 4);  // it may share them, or use the CPU
  EXPECT_TRUE(too_many.is_warning);
  EXPECT_EQ(
      too_many.line,
      "warning: starting 4 ranks on a machine with 2 GPUs: a rank whose LOCAL_RANK is 2 or more has none of its own, "
      "and a program that takes a GPU per rank ends there (\"invalid device ordinal\"): lower --nproc");
}

TEST(LocalRanks, refuse_cuda_without_gpu_or_without_a_cuda_build) {
  LaunchOptions launch;
  launch.device = DeviceChoice::kCuda;
  EXPECT_FALSE(plan_local_ranks(launch, gpus(0)).ok());
  LocalDevices devices = gpus(2);
  devices.build_has_cuda = false;
  EXPECT_FALSE(plan_local_ranks(launch, devices).ok());
  launch.device = DeviceChoice::kAuto;
  EXPECT_TRUE(plan_local_ranks(launch, devices)->is_warning);
}

}  // namespace
}  // namespace lockstep
