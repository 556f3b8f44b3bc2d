#include "operator/kube/rate_limit.h"

#include <gtest/gtest.h>

namespace lockstep::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RateLimitOfTen : public ::testing::Test {
 protected:
  RateLimit limit_{10.0, 5};
  RateLimit::Clock::time_point now_ = RateLimit::Clock::time_point(seconds(1000));
};

TEST_F(RateLimitOfTen, a_burst_passes_at_once) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit_.reserve(now_), milliseconds(0)) << i;
}

TEST_F(RateLimitOfTen, beyond_the_burst_each_waits_behind_the_one_before) {
  EXPECT_EQ(limit_.reserve(now_, 5), milliseconds(0));
  EXPECT_EQ(limit_.reserve(now_), milliseconds(100));
  EXPECT_EQ(limit_.reserve(now_), milliseconds(200));
  // Half of the way later, one more stands behind both.
  EXPECT_EQ(limit_.reserve(now_ + milliseconds(100)), milliseconds(200));
}

TEST_F(RateLimitOfTen, tokens_come_back_with_time_up_to_the_burst) {
  EXPECT_EQ(limit_.available(now_), 5);
  EXPECT_EQ(limit_.reserve(now_, 5), milliseconds(0));
  EXPECT_EQ(limit_.available(now_), 0);
  EXPECT_EQ(limit_.available(now_ + milliseconds(199)), 1);
  EXPECT_EQ(limit_.available(now_ + milliseconds(250)), 2);
  EXPECT_EQ(limit_.available(now_ + seconds(100)), 5);
  EXPECT_EQ(limit_.reserve(now_ + seconds(100), 5), milliseconds(0));
  EXPECT_EQ(limit_.reserve(now_ + seconds(100)), milliseconds(100));
}

TEST_F(RateLimitOfTen, more_than_the_burst_at_once_waits_for_the_rest) {
  EXPECT_EQ(limit_.reserve(now_, 25), seconds(2));
  EXPECT_EQ(limit_.available(now_ + seconds(2)), 0);
  EXPECT_EQ(limit_.available(now_ + milliseconds(2200)), 2);
}

TEST_F(RateLimitOfTen, a_clock_that_stands_or_goes_back_gives_nothing) {
  EXPECT_EQ(limit_.reserve(now_, 5), milliseconds(0));
  EXPECT_EQ(limit_.reserve(now_ - seconds(10)), milliseconds(100));
  EXPECT_EQ(limit_.reserve(now_), milliseconds(200));
}

TEST(RateLimit, long_run_rate_is_the_one_asked_for) {
  RateLimit limit(500.0, 1000);
  RateLimit::Clock::time_point now{};
  // A caller that waits as it is told makes 1000 + 500 t requests in t seconds.
  int made = 0;
  while (now < RateLimit::Clock::time_point(seconds(10))) {
    now += limit.reserve(now);
    ++made;
  }
  EXPECT_NEAR(made, 1000 + 500 * 10, 2);
}

TEST(RateLimit, zero_means_no_limit) {
  RateLimit limit(0.0, 1);
  EXPECT_EQ(limit.reserve(RateLimit::Clock::time_point(), 1'000'000), milliseconds(0));
  EXPECT_GT(limit.available(RateLimit::Clock::time_point()), 1'000'000);
}

TEST(RateLimit, a_burst_of_nothing_is_a_burst_of_one) {
  RateLimit limit(10.0, 0);
  EXPECT_EQ(limit.reserve(RateLimit::Clock::time_point()), milliseconds(0));
  EXPECT_EQ(limit.reserve(RateLimit::Clock::time_point()), milliseconds(100));
}

}  // namespace
}  // namespace lockstep::kube
