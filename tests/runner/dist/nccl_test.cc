// NCCL, as far as one process can show it on one GPU: a group of one rank, one that is cut, and a forming that is
// aborted because a peer never comes. Two ranks that share a GPU: tests/python/test_gpu.py.
#include <gtest/gtest.h>

#if defined(LOCKSTEP_CUDA)

#include <c10/core/AutogradState.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <chrono>
#include <future>
#include <thread>

#include "runner/dist/collectives.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/nccl_environment.h"
#include "runner/link/group_abort.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{60};

class NcclOnOneGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU on this machine";
    set_nccl_environment({});
  }
  GroupOptions options(int rank, int world_size, GroupBackend backend) const {
    return {.assignment = assigned(rank, world_size),
            .backend = backend,
            .device = at::Device(at::kCUDA, 0),
            .timeout = kPatience,
            .network_interface = ""};
  }
  const StoreHandle store_{c10::make_intrusive<c10d::HashStore>()};
};

TEST_F(NcclOnOneGpu, a_group_of_one_rank_reduces_and_can_be_made_again) {
  for (int generation = 0; generation < 2; ++generation) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    const auto group = ProcessGroup::form(store, options(0, 1, GroupBackend::kNccl));
    ASSERT_TRUE(group.ok()) << group.error().message;
    const at::Tensor w = torch::ones({1000}, torch::TensorOptions().device(at::kCUDA).requires_grad(true));
    GradReducer reducer({{"w", w}}, **group);
    const at::Tensor loss = (w * 3.0).sum();
    reducer.prepare(loss);
    loss.backward();
    EXPECT_TRUE(w.grad().eq(3.0).all().item<bool>());
    at::Tensor state = torch::full({4}, 7.0, torch::TensorOptions().device(at::kCUDA));
    broadcast(**group, state, 0);
    EXPECT_TRUE(state.eq(7.0).all().item<bool>());
    EXPECT_EQ(sum_over_ranks(**group, std::vector<double>{2.5}), std::vector<double>{2.5});
  }
}

TEST_F(NcclOnOneGpu, a_group_that_was_cut_starts_no_collective_and_leaves_room_for_the_next) {
  for (int generation = 0; generation < 2; ++generation) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    GroupOptions mine = options(0, 1, GroupBackend::kNccl);
    mine.abort = std::make_shared<GroupAbort>();
    const auto group = ProcessGroup::form(store, mine);
    ASSERT_TRUE(group.ok()) << group.error().message;
    at::Tensor state = torch::full({4}, 7.0, torch::TensorOptions().device(at::kCUDA));
    broadcast(**group, state, 0);
    mine.abort->fire();
    EXPECT_THROW(broadcast(**group, state, 0), std::exception);
    torch::cuda::synchronize();
  }
}

TEST_F(NcclOnOneGpu, a_forming_that_waits_for_a_peer_is_left_when_it_is_aborted) {
  const auto abort = std::make_shared<GroupAbort>();
  // The other rank comes as far as Gloo and no further; it keeps its connections until the test is over.
  std::promise<void> over;
  std::thread other([&] {
    const auto group = ProcessGroup::form(store_, options(1, 2, GroupBackend::kGloo));
    EXPECT_TRUE(group.ok()) << group.error().message;
    over.get_future().wait();
  });
  std::promise<Status> formed;
  std::future<Status> answer = formed.get_future();
  std::thread first([&] {
    GroupOptions mine = options(0, 2, GroupBackend::kNccl);
    mine.abort = abort;
    const auto group = ProcessGroup::form(store_, mine);
    formed.set_value(group.ok() ? Status() : Status(group.error()));
  });
  // NCCL's id is the last key that it sets before it waits.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const int64_t of_gloo = 2;
  while (store_.get()->getNumKeys() <= of_gloo && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  const bool nccl_waits = store_.get()->getNumKeys() > of_gloo;
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "it did not wait";
  abort->fire();
  const bool has_left = answer.wait_for(kPatience) == std::future_status::ready;
  over.set_value();
  other.join();
  if (!has_left) {
    first.detach();
    FAIL() << "it still waits";
  }
  first.join();
  EXPECT_TRUE(nccl_waits);
  EXPECT_FALSE(answer.get().ok());
  // The device can be used and a group can be formed as if nothing had happened.
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  EXPECT_TRUE(ProcessGroup::form(store, options(0, 1, GroupBackend::kNccl)).ok());
}

TEST_F(NcclOnOneGpu, gloo_reduces_what_several_ranks_hold_on_it) {
  on_ranks(
      3,
      [](ProcessGroup& group) {
        // One thread serves the backward passes of a device: it would wait for the peers of the first rank before it
        // comes to theirs.
        c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
        const at::Tensor w = torch::ones({1000}, torch::TensorOptions().device(at::kCUDA).requires_grad(true));
        GradReducer reducer({{"w", w}}, group);
        const at::Tensor loss = (w * static_cast<double>(group.rank() + 1)).sum();
        reducer.prepare(loss);
        loss.backward();
        EXPECT_TRUE(w.grad().eq(2.0).all().item<bool>());
      },
      at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace lockstep

#else

TEST(NcclOnOneGpu, needs_a_build_with_cuda) {
  GTEST_SKIP() << "this build has no CUDA (preset cuda): NCCL is compiled, and not run";
}

#endif
