#include "runner/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

struct GoldenSchedule {
  LrScheduleKind kind;
  int64_t warmup;
  std::vector<double> rates;
};

const std::vector<GoldenSchedule> kGoldenSchedules{
#define LR_GOLDEN_SCHEDULES
#include "tests/runner/optim/lr_golden.inc"
#undef LR_GOLDEN_SCHEDULES
};

struct GoldenPlateau {
  double figure;
  double rate;
};

const std::vector<GoldenPlateau> kGoldenPlateau{
#define LR_GOLDEN_PLATEAU
#include "tests/runner/optim/lr_golden.inc"
#undef LR_GOLDEN_PLATEAU
};

TEST(LrSchedule, follows_torch_schedulers) {
  ASSERT_EQ(kGoldenSchedules.size(), 11U);
  for (const GoldenSchedule& golden : kGoldenSchedules) {
    ASSERT_EQ(golden.rates.size(), 40U);
    const LrScheduleOptions options{.kind = golden.kind,
                                    .lr = 1e-3,
                                    .warmup_steps = golden.warmup,
                                    .total_steps = 39,
                                    .decay_steps = 7,
                                    .decay_rate = 0.95,
                                    .min_lr = 1e-5};
    for (size_t step = 0; step < golden.rates.size(); ++step)
      EXPECT_NEAR(lr_value(static_cast<int64_t>(step), options), golden.rates[step], 1e-12)
          << "kind " << static_cast<int>(golden.kind) << " warmup " << golden.warmup << " step " << step;
  }
}

TEST(LrSchedule, plateau_follows_torch) {
  const LrScheduleOptions options{.kind = LrScheduleKind::kPlateau, .lr = 1e-3, .min_lr = 1e-4};
  PlateauState state;
  for (size_t i = 0; i < kGoldenPlateau.size(); ++i) {
    state = plateau_after(state, kGoldenPlateau[i].figure, {.factor = 0.5, .patience = 2});
    EXPECT_NEAR(lr_value(1000, options, state), kGoldenPlateau[i].rate, 1e-12) << "evaluation " << i;
  }
}

TEST(LrSchedule, a_plateau_raises_no_rate_that_is_below_the_least) {
  const LrScheduleOptions options{.kind = LrScheduleKind::kPlateau, .lr = 1e-5, .min_lr = 1e-4};
  EXPECT_EQ(lr_value(1000, options, {.factor = 0.5}), 1e-5);
}

TEST(LrSchedule, plateau_takes_nan_for_no_improvement) {
  PlateauState state = plateau_after({}, 0.5, {});
  state = plateau_after(state, std::nan(""), {});
  EXPECT_EQ(state.best, 0.5);
  EXPECT_EQ(state.bad_evaluations, 1);
}

TEST(LrSchedule, plateau_of_a_negated_loss_takes_a_small_change_for_no_improvement) {
  PlateauState state = plateau_after({}, -3.5, {.threshold = 1e-4});
  state = plateau_after(state, -3.49970, {.threshold = 1e-4});
  EXPECT_EQ(state.best, -3.5);
  EXPECT_EQ(state.bad_evaluations, 1);
  state = plateau_after(state, -3.51, {.threshold = 1e-4});
  EXPECT_EQ(state.bad_evaluations, 2);
  state = plateau_after(state, -3.49960, {.threshold = 1e-4});
  EXPECT_EQ(state.best, -3.49960);
  EXPECT_EQ(state.bad_evaluations, 0);
}

TEST(LrSchedule, plateau_warms_up_from_below_its_floor) {
  const LrScheduleOptions options{.kind = LrScheduleKind::kPlateau, .lr = 1e-3, .warmup_steps = 10, .min_lr = 5e-4};
  EXPECT_DOUBLE_EQ(lr_value(0, options), 1e-4);
  EXPECT_DOUBLE_EQ(lr_value(9, options), 1e-3);
}

TEST(LrSchedule, cosine_stays_at_its_floor_beyond_the_end) {
  const LrScheduleOptions options{
      .kind = LrScheduleKind::kCosine, .lr = 1e-3, .warmup_steps = 5, .total_steps = 50, .min_lr = 1e-5};
  EXPECT_DOUBLE_EQ(lr_value(50, options), 1e-5);
  EXPECT_DOUBLE_EQ(lr_value(500, options), 1e-5);
}

TEST(LrSchedule, cosine_with_warmup_beyond_the_end_only_warms_up) {
  const LrScheduleOptions options{
      .kind = LrScheduleKind::kCosine, .lr = 1e-3, .warmup_steps = 100, .total_steps = 50, .min_lr = 0.0};
  EXPECT_DOUBLE_EQ(lr_value(49, options), 5e-4);
}

TEST(LrSchedule, noam_peaks_at_the_given_rate_when_warmup_ends) {
  const LrScheduleOptions options{.kind = LrScheduleKind::kNoam, .lr = 2.8e-3, .warmup_steps = 4000};
  EXPECT_DOUBLE_EQ(lr_value(3999, options), 2.8e-3);
  EXPECT_LT(lr_value(3998, options), 2.8e-3);
  EXPECT_LT(lr_value(4000, options), 2.8e-3);
  EXPECT_NEAR(lr_value(15999, options), 1.4e-3, 1e-12);
}

TEST(LrSchedule, scales_by_the_declared_world_size) {
  EXPECT_DOUBLE_EQ(scaled_lr(1e-3, LrScaling::kNone, 4, 64), 1e-3);
  EXPECT_DOUBLE_EQ(scaled_lr(1e-3, LrScaling::kLinear, 4, 64), 4e-3);
  EXPECT_DOUBLE_EQ(scaled_lr(1e-3, LrScaling::kSqrt, 4, 64), 2e-3);
  EXPECT_DOUBLE_EQ(scaled_lr(1e-3, LrScaling::kBatch, 4, 64), 2.5e-4);
}

TEST(LrSchedule, options_come_from_the_flags) {
  TrainingOptions training;
  training.lr = 2e-3;
  training.lr_schedule = LrScheduleKind::kExponential;
  const LrScheduleOptions options = lr_schedule_options(training, 6e-3, 100, 5000);
  EXPECT_EQ(options.kind, LrScheduleKind::kExponential);
  EXPECT_DOUBLE_EQ(options.lr, 6e-3);
  EXPECT_EQ(options.total_steps, 5000);
  EXPECT_DOUBLE_EQ(lr_value(1100, options), 6e-3 * 0.95);
  EXPECT_EQ(plateau_options(training).patience, training.plateau_patience);
}

}  // namespace
}  // namespace lockstep
