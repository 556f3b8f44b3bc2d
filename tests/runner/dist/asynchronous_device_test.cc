// What moves between ranks, on a device whose collectives end before their data is there.
#include "tests/runner/support/asynchronous_device.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "runner/dist/state_transfer.h"

namespace lockstep {
namespace {

class OnAsynchronousDevice : public testing::TestWithParam<HostWaits> {};

constexpr int kMessages = 4;  // one for each change of dtype

NamedTensors state_of(bool is_source) {
  NamedTensors state;
  for (int i = 0; i < kMessages; ++i) {
    const auto dtype = i % 2 == 0 ? torch::kFloat32 : torch::kInt64;
    state.push_back({std::to_string(i), torch::full({3}, is_source ? 1 : 2, dtype)});
  }
  return state;
}

TEST_P(OnAsynchronousDevice, receivers_hold_the_sources_state_after_a_transfer) {
  on_device_ranks(3, GetParam(), [](ProcessGroup& group, AsynchronousDevice& device) {
    const bool is_source = group.rank() == 1;
    const NamedTensors state = state_of(is_source);
    transfer_state(group, device, state, /*source=*/1, {true, false, true});
    for (const NamedTensor& t : state) EXPECT_TRUE(t.tensor.eq(1).all().item<bool>()) << t.name;
  });
}

TEST_P(OnAsynchronousDevice, a_rank_that_has_the_state_keeps_it_in_a_transfer_to_others) {
  on_device_ranks(4, GetParam(), [](ProcessGroup& group, AsynchronousDevice& device) {
    const NamedTensors state = state_of(group.rank() == 1);
    transfer_state(group, device, state, /*source=*/1, {true, false, false, true});
    for (const NamedTensor& t : state) {
      EXPECT_TRUE(t.tensor.eq(group.rank() == 2 ? 2 : 1).all().item<bool>()) << t.name;
    }
  });
}

// Wherever it is cut, nothing throws by itself, and what has arrived is garbage.
void cut_in_a_transfer(int ranks, const std::vector<bool>& receives, HostWaits waits) {
  for (int last = 1; last <= kMessages; ++last) {
    on_device_ranks(ranks, waits, [&](ProcessGroup& group, AsynchronousDevice& device) {
      const bool is_source = group.rank() == 0;
      const NamedTensors state = state_of(is_source);
      device.before_launch([&](int64_t number) {
        if (number == last) group.options().abort->fire();
      });
      try {
        transfer_state(group, device, state, /*source=*/0, receives);
        ADD_FAILURE() << "a transfer that was cut at message " << last << " looks finished on rank " << group.rank();
      } catch (const c10::Error& e) {
        EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
      }
      for (const NamedTensor& t : state) EXPECT_TRUE(t.tensor.eq(is_source ? 1 : 2).all().item<bool>()) << last;
    });
  }
}

TEST_P(OnAsynchronousDevice, a_receiver_that_is_cut_in_a_transfer_keeps_what_it_held) {
  cut_in_a_transfer(2, {false, true}, GetParam());
  cut_in_a_transfer(3, {false, false, true}, GetParam());  // not to all
}

// Parameters of a cut group may be those of the step before on one rank, and not on another: that is no drift.
TEST_P(OnAsynchronousDevice, parameters_of_a_group_that_was_cut_are_not_compared) {
  on_device_ranks(1, GetParam(), [](ProcessGroup& group, AsynchronousDevice& device) {
    const NamedTensors parameters{{"w", torch::ones({5})}};
    EXPECT_TRUE(drifted_ranks(group, device, parameters).empty());
    group.options().abort->fire();
    EXPECT_THROW(drifted_ranks(group, device, parameters), c10::DistBackendError);
  });
}

TEST_P(OnAsynchronousDevice, nobody_leaves_before_all_devices_are_done) {
  std::atomic<bool> one_waits{false};
  std::atomic<bool> other_has_come{false};
  on_device_ranks(2, GetParam(), [&](ProcessGroup& group, AsynchronousDevice& device) {
    if (group.rank() == 1) {
      while (!one_waits) std::this_thread::yield();
      other_has_come = true;
    }
    one_waits = true;
    wait_for_all_devices(group, device);
    EXPECT_TRUE(other_has_come);
  });
}

TEST_P(OnAsynchronousDevice, a_group_that_was_cut_is_not_left_according_to_plan) {
  on_device_ranks(1, GetParam(), [](ProcessGroup& group, AsynchronousDevice& device) {
    group.options().abort->fire();
    EXPECT_THROW(wait_for_all_devices(group, device), c10::DistBackendError);
  });
}

INSTANTIATE_TEST_SUITE_P(Waits, OnAsynchronousDevice, testing::Values(HostWaits::kForNothing, HostWaits::kForData),
                         [](const auto& test) {
                           return std::string(test.param == HostWaits::kForData ? "blocking" : "asynchronous");
                         });

}  // namespace
}  // namespace lockstep
