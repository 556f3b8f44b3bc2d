// The training step on a device on which the host runs ahead, and aborted work looks finished.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/dist/grad_reducer.h"
#include "runner/kernels/commit_gate.h"
#include "runner/loop/train_step.h"
#include "runner/loop/upload.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/asynchronous_device.h"
#include "tests/runner/support/ranks_as_threads.h"

namespace lockstep {
namespace {

constexpr int64_t kSamples = 20;
constexpr int64_t kBatch = 4;
constexpr double kLossScale = 256.0;  // nothing overflows

RunConfig toy_config() {
  RunConfig config;
  config.training.batch_size = kBatch;
  config.training.lr = 0.05;
  return config;
}

// What a rank trains with. Each step sums one bucket: collective number n belongs to step n - 1.
struct Rank {
  Rank(ProcessGroup& group_in, DeviceStream& stream, Precision precision)
      : group(group_in),
        workload({.samples = kSamples, .phase_epochs = 0}),
        state(workload, config.training),
        sampler({.seed = config.training.seed, .num_samples = kSamples, .global_batch = kBatch}),
        reducer(state.reduced(), group_in),
        rank{.config = config,
             .workload = workload,
             .fs = fs,
             .clock = clock,
             .stream = stream,
             .precision = {.precision = precision}},
        step({.rank = rank,
              .training = config.training,
              .state = prepared(),
              .group = group_in,
              .reducer = reducer,
              .source = sampler,
              .queue = queue,
              .upload = upload,
              .gate = gate,
              .steps = {.end = 100, .total = 100}}) {}

  TrainingState& prepared() {
    state.counters.batch = *batch_shape(config.training, group.world_size());
    state.counters.loss_scale.scale = kLossScale;
    return state;
  }
  [[nodiscard]] at::Tensor weights() const { return state.parameters()[0].tensor.detach().clone(); }

  ProcessGroup& group;
  RunConfig config = toy_config();
  ToyWorkload workload;
  TrainingState state;
  Sampler sampler;
  BatchQueue queue{workload, 1, at::kCPU};
  PhaseClock clock{Phase::kStartup, TimePoint{}};
  Upload upload{workload, at::kCPU};
  CommitGate gate{at::kCPU};
  GradReducer reducer;
  PosixFileSystem fs;
  RankContext rank;
  TrainStep step;
};

void append(std::vector<StepReport>& all, const std::vector<StepReport>& some) {
  all.insert(all.end(), some.begin(), some.end());
}

// How a group is cut: by the agent's message, which also records the cut; or by the first half of that alone, as the
// training thread may see it before the second half.
struct Cut {
  std::string name;
  std::function<void(Rank&, AsynchronousDevice&)> make;
};
const std::vector<Cut> kCuts{
    {"cut", [](Rank& rank, AsynchronousDevice&) { rank.group.options().abort->fire(); }},
    {"half_a_cut",
     [](Rank& rank, AsynchronousDevice& device) {
       rank.gate.shut();
       device.abort();
     }},
};

struct Case {
  HostWaits waits = HostWaits::kForNothing;
  Cut cut;
};

class CutOnADevice : public testing::TestWithParam<Case> {
 protected:
  // One rank, whose group is cut while it sums the gradients of step `aborted`, counted from 0.
  static void on_a_rank_cut_in(int64_t aborted, const std::function<void(Rank&)>& body) {
    on_device_ranks(1, GetParam().waits, [&](ProcessGroup& group, AsynchronousDevice& device) {
      Rank rank(group, device, Precision::kFp16);
      group.options().abort->add_action([&] { rank.gate.shut(); });
      device.before_launch([&](int64_t number) {
        if (number == aborted + 1) GetParam().cut.make(rank, device);
      });
      body(rank);
    });
  }
  static void expect_whole(const Rank& rank, const std::vector<StepReport>& reports, int64_t steps,
                           const at::Tensor& weights) {
    ASSERT_EQ(reports.size(), static_cast<size_t>(steps));
    for (size_t i = 0; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].step, static_cast<int64_t>(i));
      EXPECT_TRUE(std::isfinite(reports[i].loss)) << "step " << i;
      EXPECT_FALSE(reports[i].skipped) << "step " << i;
    }
    const Counters& counters = rank.state.counters;
    EXPECT_EQ(counters.step, steps);
    EXPECT_EQ(counters.skipped_in_row, 0);
    EXPECT_EQ(counters.skipped_total, 0);
    EXPECT_EQ(counters.loss_scale.scale, kLossScale);
    EXPECT_EQ(counters.loss_scale.good_steps, steps);
    EXPECT_TRUE(rank.weights().equal(weights));
  }
};

TEST_P(CutOnADevice, a_step_that_was_cut_is_neither_published_nor_counted) {
  constexpr int64_t kAborted = 3;
  on_a_rank_cut_in(kAborted, [](Rank& rank) {
    std::vector<StepReport> reports;
    at::Tensor weights;
    bool threw = false;
    for (int64_t i = 0; i < 10 && !threw; ++i) {
      if (i == kAborted) weights = rank.weights();
      try {
        append(reports, rank.step.run({}).reports);
      } catch (const std::exception& e) {
        threw = true;
        EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
      }
    }
    ASSERT_TRUE(threw) << "training goes on in a group that was cut";
    append(reports, rank.step.abandon());
    expect_whole(rank, reports, kAborted, weights);
  });
}

// A leave, a checkpoint and the end of a run take the state after a flush.
TEST_P(CutOnADevice, a_flush_does_not_take_the_step_before_for_the_one_that_was_cut) {
  constexpr int64_t kAborted = 2;
  on_a_rank_cut_in(kAborted, [](Rank& rank) {
    std::vector<StepReport> reports;
    at::Tensor weights;
    bool threw = false;
    try {
      for (int64_t i = 0; i <= kAborted; ++i) {
        if (i == kAborted) weights = rank.weights();
        append(reports, rank.step.run({}).reports);
      }
      append(reports, rank.step.flush());
    } catch (const std::exception& e) {
      threw = true;
      EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
    }
    EXPECT_TRUE(threw);
    append(reports, rank.step.abandon());
    expect_whole(rank, reports, kAborted, weights);
  });
}

INSTANTIATE_TEST_SUITE_P(Cuts, CutOnADevice,
                         testing::Values(Case{HostWaits::kForNothing, kCuts[0]}, Case{HostWaits::kForNothing, kCuts[1]},
                                         Case{HostWaits::kForData, kCuts[0]}, Case{HostWaits::kForData, kCuts[1]}),
                         [](const auto& test) {
                           const bool blocks = test.param.waits == HostWaits::kForData;
                           return test.param.cut.name + (blocks ? "_blocking" : "_asynchronous");
                         });

TEST(DevicePath, has_the_cpus_figures_two_steps_later) {
  constexpr int64_t kSteps = 6;
  std::vector<StepReport> expected;
  on_ranks(2, [&](ProcessGroup& group) {
    const auto host = make_device_stream(at::kCPU);
    Rank rank(group, *host, Precision::kFp32);
    for (int64_t i = 0; i < kSteps; ++i) {
      const StepOutcome outcome = rank.step.run({});
      if (group.rank() == 0) append(expected, outcome.reports);
    }
  });
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
  on_device_ranks(2, HostWaits::kForNothing, [&](ProcessGroup& group, AsynchronousDevice& device) {
    Rank rank(group, device, Precision::kFp32);
    std::vector<StepReport> reports;
    for (int64_t i = 0; i < kSteps; ++i) {
      append(reports, rank.step.run({}).reports);
      EXPECT_EQ(static_cast<int64_t>(reports.size()), std::max<int64_t>(0, i + 1 - device.lag()));
    }
    append(reports, rank.step.flush());
    ASSERT_EQ(reports.size(), expected.size());
    for (size_t i = 0; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].step, expected[i].step);
      EXPECT_NEAR(reports[i].loss, expected[i].loss, 1e-5 * expected[i].loss) << i;
    }
  });
}

// A checkpoint's copy may still read what a step is about to change.
TEST(DevicePath, says_before_each_step_changes_the_state) {
  on_device_ranks(1, HostWaits::kForNothing, [](ProcessGroup& group, AsynchronousDevice& device) {
    Rank rank(group, device, Precision::kFp32);
    std::vector<at::Tensor> seen;
    TrainStep watched({.rank = rank.rank,
                       .training = rank.config.training,
                       .state = rank.state,
                       .group = group,
                       .reducer = rank.reducer,
                       .source = rank.sampler,
                       .queue = rank.queue,
                       .upload = rank.upload,
                       .gate = rank.gate,
                       .steps = {.end = 100, .total = 100},
                       .before_change = [&] { seen.push_back(rank.weights()); }});
    for (size_t step = 1; step <= 2; ++step) {
      const at::Tensor before = rank.weights();
      static_cast<void>(watched.run({}));
      ASSERT_EQ(seen.size(), step);
      EXPECT_TRUE(seen.back().equal(before));
      EXPECT_FALSE(rank.weights().equal(before));
    }
  });
}

}  // namespace
}  // namespace lockstep
