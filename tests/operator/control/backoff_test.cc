#include "operator/control/backoff.h"

#include <gtest/gtest.h>

#include "operator/control/resource_version.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Backoff, doubles_from_the_first_delay_to_the_last) {
  const BackoffPolicy policy{.first = milliseconds(800), .max = seconds(30)};
  const int expected_ms[] = {800, 1600, 3200, 6400, 12800, 25600, 30000, 30000};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(backoff_delay(policy, i + 1, 0.5), milliseconds(expected_ms[i])) << i;
  EXPECT_EQ(backoff_delay(policy, 100'000, 0.5), seconds(30));
}

TEST(Backoff, jitter_adds_up_to_its_share) {
  const BackoffPolicy policy{.first = seconds(1), .max = seconds(30), .jitter = 1.0};
  EXPECT_EQ(backoff_delay(policy, 1, 0.0), seconds(1));
  EXPECT_EQ(backoff_delay(policy, 1, 0.25), milliseconds(1250));
  EXPECT_EQ(backoff_delay(policy, 9, 0.5), seconds(45));
}

TEST(Backoff, random_draws_lie_in_the_unit_interval_and_differ) {
  const Random random = system_random();
  double low = 1;
  double high = 0;
  for (int i = 0; i < 1000; ++i) {
    const double draw = random();
    low = std::min(low, draw);
    high = std::max(high, draw);
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_GT(high - low, 0.5);
}

TEST(ResourceVersion, is_a_number_or_opaque) {
  EXPECT_EQ(version_number("0"), 0U);
  EXPECT_EQ(version_number("18446744073709551615"), UINT64_MAX);
  for (const char* opaque : {"", "18446744073709551616", "12a", "a", "-1", "1.0", " 1"}) {
    EXPECT_EQ(version_number(opaque), std::nullopt) << opaque;
  }
}

}  // namespace
}  // namespace lockstep::control
