#include "runner/kernels/commit_gate.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#if defined(LOCKSTEP_CUDA)
#include <ATen/cuda/CUDAEvent.h>
#endif

#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

class CommitGateOnEachDevice : public testing::TestWithParam<at::DeviceType> {
 protected:
  static at::Tensor flag(float value) { return torch::full({1}, value).to(GetParam()); }
};

TEST_P(CommitGateOnEachDevice, counts_the_steps_that_it_lets_through_and_hands_on_found_inf) {
  CommitGate gate{at::Device(GetParam())};
  EXPECT_EQ(gate.committed(), 0);
  EXPECT_EQ(gate.pass(flag(0.0F)).skip.item<float>(), 0.0F);
  EXPECT_EQ(gate.pass(flag(1.0F)).skip.item<float>(), 1.0F);  // a skipped step is a step
  EXPECT_EQ(gate.committed(), 2);
}

TEST_P(CommitGateOnEachDevice, shut_it_lets_nothing_through_and_opened_again_it_does) {
  CommitGate gate{at::Device(GetParam())};
  gate.shut();
  const CommitGate::Passed held_back = gate.pass(flag(0.0F));
  EXPECT_EQ(held_back.skip.item<float>(), 1.0F);
  EXPECT_EQ(held_back.committed.item<double>(), 0.0);
  EXPECT_EQ(gate.committed(), 0);
  gate.open();
  EXPECT_EQ(gate.pass(flag(0.0F)).skip.item<float>(), 0.0F);
  EXPECT_EQ(gate.committed(), 1);
}

// What was read of one step does not change with the next.
TEST_P(CommitGateOnEachDevice, says_with_each_step_how_many_were_let_through_by_then) {
  CommitGate gate{at::Device(GetParam())};
  const CommitGate::Passed first = gate.pass(flag(0.0F));
  const CommitGate::Passed second = gate.pass(flag(0.0F));
  EXPECT_EQ(first.committed.item<double>(), 1.0);
  EXPECT_EQ(second.committed.item<double>(), 2.0);
  gate.shut();  // after the reads: it holds back what is still queued
  const CommitGate::Passed third = gate.pass(flag(0.0F));
  EXPECT_EQ(third.committed.item<double>(), 2.0);
}

INSTANTIATE_TEST_SUITE_P(Devices, CommitGateOnEachDevice, testing::ValuesIn(devices()), device_name);

#if defined(LOCKSTEP_CUDA)

class CommitGateOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU on this machine";
  }
  static at::Tensor flag() { return torch::zeros({1}, torch::TensorOptions().device(at::kCUDA)); }
};

// What an abort relies on: the kernel reads the flag when its turn comes, not when it was queued.
TEST_F(CommitGateOnCuda, shut_while_the_step_still_waits_in_the_stream_it_holds_that_step_back) {
  CommitGate gate{at::Device(at::kCUDA)};
  const at::Tensor found_inf = flag();
  const at::Tensor parameter = torch::ones({1000}, torch::TensorOptions().device(at::kCUDA));
  const auto step = [&](const at::Tensor& skip) { return torch::where(skip.eq(0), parameter + 1, parameter); };
  at::Tensor busy = torch::rand({4096, 4096}, torch::TensorOptions().device(at::kCUDA));
  // Once before it counts: CUDA loads a kernel when it is first launched, and the host may wait for the device then.
  busy = torch::matmul(busy, busy) / 4096;
  EXPECT_TRUE(torch::equal(step(gate.pass(found_inf).skip), parameter + 1));
  for (int i = 0; i < 400; ++i) busy = torch::matmul(busy, busy) / 4096;  // a second
  at::cuda::CUDAEvent is_idle;
  is_idle.record();
  const at::Tensor skip = gate.pass(found_inf).skip;
  const at::Tensor updated = step(skip);
  gate.shut();
  ASSERT_FALSE(is_idle.query()) << "the device was done before the gate was shut: it has more to do in a longer test";
  EXPECT_EQ(gate.committed(), 1);
  EXPECT_EQ(skip.item<float>(), 1.0F);
  EXPECT_TRUE(torch::equal(updated, parameter));
}

#else

TEST(CommitGateOnCuda, needs_a_build_with_cuda) {
  GTEST_SKIP() << "this build has no CUDA (preset cuda): what runs on a device is tested on the CPU alone";
}

#endif

}  // namespace
}  // namespace lockstep
