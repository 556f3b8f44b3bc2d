#include "runner/base/same_secret.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(SameSecret, compares_the_whole_text) {
  EXPECT_TRUE(same_secret("secret", "secret"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* other : {"", "s", "secre", "secrets", "Secret", "secreT", "sXcret"}) {
    EXPECT_FALSE(same_secret("secret", other)) << other;
    EXPECT_FALSE(same_secret(other, "secret")) << other;
  }
}

}  // namespace
}  // namespace lockstep
