#include "runner/data/instant.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

struct Case {
  const char* text;
  int64_t seconds;
  uint32_t nanoseconds;
};

TEST(Instant, is_read_from_numbers_and_dates) {
  const Case cases[] = {{"978300760", 978300760, 0},
                        {" 5 ", 5, 0},
                        {"-3", -3, 0},
                        {"881250949.25", 881250949, 250'000'000},
                        {"1000.123456789123", 1000, 123'456'789},
                        {"7.", 7, 0},
                        {"-0.25", -1, 750'000'000},
                        {"1.5e3", 1500, 0},
                        {"1970-01-01", 0, 0},
                        {"1969-12-31 23:59:59.5", -1, 500'000'000},
                        {"2000-02-29", 951782400, 0},
                        {"2015-03-02T10:00:00Z", 1425290400, 0},
                        {"2015-03-02T10:00:00+01:30", 1425285000, 0},
                        {"2015-03-02 10:00-0100", 1425294000, 0},
                        {"2016-12-31T23:59:60Z", 1483228800, 0}};
  for (const Case& c : cases) {
    const auto instant = instant_of(c.text);
    ASSERT_TRUE(instant) << c.text;
    EXPECT_EQ(instant->seconds, c.seconds) << c.text;
    EXPECT_EQ(instant->nanoseconds, c.nanoseconds) << c.text;
  }
}

TEST(Instant, is_nothing_else) {
  for (const char* text :
       {"", " ", "Monday", "09 13, 2009", "2015-13-01", "2015-02-29", "2015-03-02T", "2015-03-02T25:00",
        "2015-03-02T10:00:00+1", "2015-3-2", "1.2.3", "1e300", "nan", "inf", "5x", "."}) {
    EXPECT_FALSE(instant_of(text)) << text;
  }
}

TEST(Instant, is_rounded_like_llround) {
  EXPECT_EQ(rounded_seconds({5, 499'999'999}), 5);
  EXPECT_EQ(rounded_seconds({5, 500'000'000}), 6);
  EXPECT_EQ(rounded_seconds({-6, 500'000'000}), -6) << "-5.5";
  EXPECT_EQ(rounded_seconds({-6, 500'000'001}), -5);
  EXPECT_EQ(rounded_seconds({-6, 0}), -6);
}

}  // namespace
}  // namespace lockstep
