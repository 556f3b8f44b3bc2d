#include "runner/base/file_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

namespace lockstep {
namespace {

std::string path_of_test() { return testing::TempDir() + "lock-" + std::to_string(::getpid()); }

TEST(FileLock, is_refused_while_it_is_held_and_names_file_and_holder) {
  const std::string path = path_of_test();
  std::optional<FileLock> first;
  {
    Result<FileLock> taken = FileLock::take(path);
    ASSERT_TRUE(taken.ok());
    first.emplace(std::move(*taken));
  }
  const Result<FileLock> second = FileLock::take(path);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_NE(second.error().message.find(path), std::string::npos);
  EXPECT_NE(second.error().message.find(std::to_string(::getpid())), std::string::npos) << second.error().message;
  first.reset();
  EXPECT_TRUE(FileLock::take(path).ok());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace lockstep
