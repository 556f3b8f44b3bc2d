#include "runner/telemetry/time_split.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

TEST(TimeSplit, rows_are_longest_first_and_leave_out_what_took_no_time) {
  PhaseSeconds seconds;
  seconds[Phase::kForward] = 3.0;
  seconds[Phase::kBackward] = 6.0;
  seconds[Phase::kStartup] = 1.0;
  const auto rows = time_split(seconds);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].phase, Phase::kBackward);
  EXPECT_EQ(rows[0].seconds, 6.0);
  EXPECT_EQ(rows[0].percent, 60.0);
  EXPECT_EQ(rows[2].phase, Phase::kStartup);
}

TEST(TimeSplit, percents_add_up_to_a_hundred_where_rounding_would_not) {
  PhaseSeconds seconds;
  seconds[Phase::kForward] = seconds[Phase::kBackward] = seconds[Phase::kOther] = 1.0;  // 33.3 three times
  int64_t tenths = 0;
  double total = 0.0;
  for (const TimeSplitRow& row : time_split(seconds)) {
    tenths += std::llround(row.percent * 10.0);
    total += row.seconds;
  }
  EXPECT_EQ(tenths, 1000);
  EXPECT_EQ(total, seconds.total());
}

TEST(TimeSplit, an_empty_clock_has_no_rows) {
  EXPECT_TRUE(time_split(PhaseSeconds{}).empty());
  EXPECT_EQ(what_bounded(PhaseSeconds{}, {}), "no time was measured");
}

struct BoundCase {
  const char* name;
  Phase phase;
  RunShape shape;
  const char* names;  // what the sentence must name
};

class WhatBounded : public testing::TestWithParam<BoundCase> {};

TEST_P(WhatBounded, names_the_largest_phase_and_the_flag) {
  PhaseSeconds seconds;
  seconds.seconds.fill(1.0);
  seconds[GetParam().phase] += 20.0;
  const std::string sentence = what_bounded(seconds, GetParam().shape);
  EXPECT_NE(sentence.find(GetParam().names), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("% of the time"), std::string::npos) << sentence;
}

constexpr RunShape kCpu{.world_size = 2, .on_gpu = false, .precision = Precision::kFp32};

INSTANTIATE_TEST_SUITE_P(
    Phases, WhatBounded,
    testing::Values(BoundCase{"startup", Phase::kStartup, kCpu, "--num_epochs"},
                    BoundCase{"data", Phase::kDataWait, kCpu, "--threads"},
                    BoundCase{"cpu", Phase::kForward, kCpu, "--nproc"},
                    BoundCase{"gpu_fp32", Phase::kBackward, {1, true, Precision::kFp32}, "--precision tf32"},
                    BoundCase{"gpu_tf32", Phase::kBackward, {1, true, Precision::kTf32}, "--precision bf16"},
                    BoundCase{"gpu_bf16", Phase::kForward, {1, true, Precision::kBf16}, "--batch_size"},
                    BoundCase{"grad_sync", Phase::kGradSync, kCpu,
                              "2 ranks; fewer exchanges per sample (a larger --batch_size or --grad_accum"},
                    BoundCase{"optimizer", Phase::kOptimizer, kCpu, "--batch_size"},
                    BoundCase{"validation", Phase::kValidation, kCpu, "--eval_every"},
                    BoundCase{"checkpoint", Phase::kCheckpointStall, kCpu, "--checkpoint_every"},
                    BoundCase{"waiting", Phase::kWaiting, kCpu, "other ranks"},
                    BoundCase{"other", Phase::kOther, kCpu, "--log_every"}),
    [](const testing::TestParamInfo<BoundCase>& test) { return std::string(test.param.name); });

TEST(TimeSplit, forward_and_backward_together_are_computing) {
  PhaseSeconds seconds;
  seconds[Phase::kForward] = 3.0;
  seconds[Phase::kBackward] = 3.0;
  seconds[Phase::kValidation] = 4.0;
  const std::string sentence = what_bounded(seconds, kCpu);
  EXPECT_EQ(sentence.rfind("60% of the time went into computing", 0), 0U) << sentence;
}

}  // namespace
}  // namespace lockstep
