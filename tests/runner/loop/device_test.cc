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

struct GpuCase {
  const char* what;
  GpusHere gpus;
  int local_rank = 0;
  int local_ranks = 1;
  DeviceChoice device = DeviceChoice::kAuto;
  BackendChoice backend = BackendChoice::kAuto;
  std::optional<int> index;  // nullopt: the CPU
  std::optional<ErrorCode> error;
};

TEST(Device, is_the_gpu_that_was_counted_for_the_rank_or_the_machine_is_at_fault) {
  constexpr DeviceChoice kCuda = DeviceChoice::kCuda;
  const auto here = [](int started, std::optional<int> counted) {
    return GpusHere{.build_has_cuda = true, .started = started, .counted = counted};
  };
  const GpusHere no_build{.build_has_cuda = false, .started = 0, .counted = 2};
  const std::vector<GpuCase> cases{
      {.what = "no agent, no GPU", .gpus = here(0, std::nullopt)},
      {.what = "no agent, --device cuda", .gpus = here(0, std::nullopt), .device = kCuda, .error = ErrorCode::kInvalid},
      {.what = "no agent, a rank too many",
       .gpus = here(1, std::nullopt),
       .local_rank = 1,
       .local_ranks = 2,
       .error = ErrorCode::kInvalid},
      {.what = "no agent", .gpus = here(8, std::nullopt), .local_rank = 3, .local_ranks = 8, .index = 3},
      {.what = "the agent chose the CPU", .gpus = here(0, 0)},
      {.what = "all there", .gpus = here(8, 8), .local_rank = 7, .local_ranks = 8, .index = 7},
      {.what = "none starts", .gpus = here(0, 8), .local_ranks = 8, .error = ErrorCode::kUnavailable},
      {.what = "none starts for a rank alone", .gpus = here(0, 1), .error = ErrorCode::kUnavailable},
      {.what = "none starts, --device cuda", .gpus = here(0, 1), .device = kCuda, .error = ErrorCode::kUnavailable},
      {.what = "one is gone, the last rank",
       .gpus = here(7, 8),
       .local_rank = 7,
       .local_ranks = 8,
       .error = ErrorCode::kUnavailable},
      {.what = "one is gone, a rank that would share one now",
       .gpus = here(7, 8),
       .local_rank = 3,
       .local_ranks = 8,
       .error = ErrorCode::kUnavailable},
      {.what = "one is gone, over Gloo",
       .gpus = here(7, 8),
       .local_rank = 3,
       .local_ranks = 8,
       .backend = BackendChoice::kGloo,
       .error = ErrorCode::kUnavailable},
      {.what = "more ranks than GPUs over Gloo",
       .gpus = here(2, 2),
       .local_rank = 3,
       .local_ranks = 4,
       .backend = BackendChoice::kGloo,
       .index = 1},
      {.what = "more ranks than GPUs",
       .gpus = here(2, 2),
       .local_rank = 3,
       .local_ranks = 4,
       .error = ErrorCode::kUnavailable},
      {.what = "MIG: one of two starts, for a rank alone", .gpus = here(1, 2), .index = 0},
      {.what = "--device cpu", .gpus = here(0, 8), .local_ranks = 8, .device = DeviceChoice::kCpu},
      {.what = "a build for CPUs", .gpus = no_build, .local_ranks = 2},
      {.what = "a build for CPUs, --device cuda", .gpus = no_build, .device = kCuda, .error = ErrorCode::kInvalid},
  };
  for (const GpuCase& c : cases) {
    LaunchOptions launch;
    launch.device = c.device;
    launch.backend = c.backend;
    World world;
    world.assignment.local_rank = c.local_rank;
    world.assignment.local_world_size = c.local_ranks;
    const Result<std::optional<int>> chosen = choose_gpu(launch, world, c.gpus);
    ASSERT_EQ(chosen.ok(), !c.error) << c.what;
    if (chosen.ok()) {
      EXPECT_EQ(*chosen, c.index) << c.what;
    } else {
      EXPECT_EQ(chosen.error().code, *c.error) << c.what;
    }
  }
}

TEST(Device, names_the_gpus_that_are_missing) {
  World world;
  world.assignment.local_world_size = 8;
  const GpusHere gpus{.build_has_cuda = true, .started = 7, .counted = 8};
  const std::string message = choose_gpu({}, world, gpus).error().message;
  EXPECT_NE(message.find("the driver shows 8 GPUs, but CUDA starts 7: "), std::string::npos) << message;
  EXPECT_NE(message.find("lockstep doctor"), std::string::npos) << message;
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
  world.assignment.local_world_size = 8;
  launch.threads = 3;
  world.assignment.node_cores = 64;
  EXPECT_EQ(choose_threads(launch, world), 3);
  launch.threads = 0;
  EXPECT_EQ(choose_threads(launch, world), 8);
  world.assignment.node_cores = 4;
  EXPECT_EQ(choose_threads(launch, world), 1);
  world.assignment.node_cores = 0;
  EXPECT_GE(choose_threads(launch, world), 1);
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
