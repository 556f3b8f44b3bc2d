#include "runner/optim/loss_scale.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(LossScale, halves_at_once_when_a_step_overflows) {
  LossScale scale;
  scale.update(true);
  EXPECT_EQ(scale.scale, 32768.0);
  scale.update(true);
  EXPECT_EQ(scale.scale, 16384.0);
}

TEST(LossScale, doubles_after_two_thousand_good_steps_in_a_row) {
  LossScale scale;
  for (int step = 0; step < 1999; ++step) scale.update(false);
  EXPECT_EQ(scale.scale, 65536.0);
  scale.update(false);
  EXPECT_EQ(scale.scale, 131072.0);
  EXPECT_EQ(scale.good_steps, 0);
}

TEST(LossScale, an_overflow_begins_the_row_anew) {
  LossScale scale;
  for (int step = 0; step < 1999; ++step) scale.update(false);
  scale.update(true);
  for (int step = 0; step < 1999; ++step) scale.update(false);
  EXPECT_EQ(scale.scale, 32768.0);
  scale.update(false);
  EXPECT_EQ(scale.scale, 65536.0);
}

}  // namespace
}  // namespace lockstep
