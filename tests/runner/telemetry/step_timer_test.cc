#include "runner/telemetry/step_timer.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(StepTimer, knows_nothing_before_the_first_step) {
  const StepTimer timer;
  EXPECT_FALSE(timer.samples_per_second().has_value());
  EXPECT_FALSE(timer.seconds_per_step().has_value());
  EXPECT_FALSE(timer.remaining_seconds(10).has_value());
}

TEST(StepTimer, divides_samples_by_the_time_of_the_steps) {
  StepTimer timer;
  timer.on_step(1.0, 0.5, 100);
  timer.on_step(9.0, 0.25, 50);  // an evaluation came between
  EXPECT_DOUBLE_EQ(*timer.samples_per_second(), 200.0);
  EXPECT_DOUBLE_EQ(*timer.seconds_per_step(), 0.375);
}

TEST(StepTimer, forgets_what_is_older_than_its_window) {
  StepTimer timer;
  timer.on_step(100.0, 100.0, 1);  // the slow first step
  double now = 100.0;
  for (size_t i = 0; i < StepTimer::kWindowSteps; ++i) timer.on_step(now += 0.5, 0.5, 64);
  EXPECT_NEAR(*timer.samples_per_second(), 128.0, 1e-9);
}

TEST(StepTimer, remaining_time_is_steps_at_the_present_pace) {
  StepTimer timer;
  timer.on_step(0.5, 0.5, 1);
  timer.on_step(1.0, 0.5, 1);
  EXPECT_DOUBLE_EQ(*timer.remaining_seconds(10), 5.0);
}

TEST(StepTimer, remaining_time_includes_what_evaluations_have_cost) {
  StepTimer timer;
  timer.on_step(0.5, 0.5, 1);
  timer.on_step(2.0, 0.5, 1);  // a second of evaluation before it: wall clock 2 s for 1 s of steps
  EXPECT_DOUBLE_EQ(*timer.remaining_seconds(10), 10.0);
}

}  // namespace
}  // namespace lockstep
