#include "runner/loop/device.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep {
namespace {

TEST(Precision, use_amp_does_nothing_on_the_cpu_and_says_so) {
  TrainingOptions options;
  options.use_amp = true;
  const Result<PrecisionChoice> choice = choose_precision(options, at::kCPU);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->precision, Precision::kFp32);
  ASSERT_EQ(choice->notes.size(), 1U);
  EXPECT_NE(choice->notes[0].find("--use_amp"), std::string::npos);
}

TEST(Precision, given_explicitly_wins_over_use_amp) {
  TrainingOptions options;
  options.use_amp = true;
  options.precision_given = true;
  options.precision = Precision::kBf16;
  EXPECT_EQ(choose_precision(options, at::kCPU)->precision, Precision::kBf16);
}

TEST(Precision, that_needs_a_gpu_is_refused_on_the_cpu) {
  for (const Precision precision : {Precision::kFp16, Precision::kTf32}) {
    TrainingOptions options;
    options.precision_given = true;
    options.precision = precision;
    EXPECT_FALSE(choose_precision(options, at::kCPU).ok());
  }
}

TEST(Backend, nccl_is_refused_on_the_cpu) {
  LaunchOptions launch;
  launch.backend = BackendChoice::kNccl;
  EXPECT_FALSE(choose_backend(launch, at::kCPU).ok());
  launch.backend = BackendChoice::kAuto;
  EXPECT_EQ(*choose_backend(launch, at::kCPU), GroupBackend::kGloo);
}

TEST(Threads, share_the_cores_among_local_ranks) {
  LaunchOptions launch;
  World world;
  world.local_world_size = 8;
  launch.threads = 3;
  EXPECT_EQ(choose_threads(launch, world, 64), 3);
  launch.threads = 0;
  EXPECT_EQ(choose_threads(launch, world, 64), 8);
  EXPECT_EQ(choose_threads(launch, world, 4), 1);
  EXPECT_GE(choose_threads(launch, world, 0), 1);
}

TEST(Threads, are_a_share_of_what_affinity_and_quota_leave) {
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 32}, 4, false), 8);
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 8}, 4, false), 2);
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 32, .quota = 6.5}, 4, false), 1);
  EXPECT_EQ(threads_of_rank({.machine = 2, .by_affinity = 1}, 4, false), 1);
}

TEST(Threads, of_a_rank_that_its_launcher_has_bound_are_all_its_cores) {
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 8}, 4, true), 8);
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 32}, 4, true), 8) << "it was not bound";
  EXPECT_EQ(threads_of_rank({.machine = 32, .by_affinity = 8, .quota = 4.0}, 4, true), 1);
}

TEST(Autocast, holds_for_its_scope_alone) {
  const at::Tensor a = torch::ones({4, 4});
  {
    const AutocastScope scope(Precision::kBf16, at::kCPU);
    EXPECT_EQ(a.matmul(a).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(a.matmul(a).scalar_type(), torch::kFloat32);
}

}  // namespace
}  // namespace lockstep
