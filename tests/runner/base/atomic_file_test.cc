#include "runner/base/atomic_file.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using Fault = FaultFileSystem::Fault;

constexpr int kCallsMax = 100;

class AtomicFile : public ::testing::TestWithParam<Fault> {};

TEST_P(AtomicFile, is_the_old_or_the_new_one_whatever_call_is_the_last) {
  const TemporaryFolder folder;
  PosixFileSystem posix;
  const std::string path = join_path(folder.path(), "latest");
  bool ended = false;
  for (int n = 1; n < kCallsMax && !ended; ++n) {
    ASSERT_TRUE(write_file_atomically(posix, path, "old").ok());
    FaultFileSystem fs(posix, GetParam(), n, ENOSPC);
    try {
      ended = write_file_atomically(fs, path, "new").ok();
    } catch (const Died&) {
    }
    const Result<std::string> found = read_file(posix, path, 100);
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(*found == "new" || (!ended && *found == "old")) << *found;
  }
  EXPECT_TRUE(ended);
}

INSTANTIATE_TEST_SUITE_P(Faults, AtomicFile,
                         ::testing::Values(Fault::kDie, Fault::kDieAfter, Fault::kFailOnce, Fault::kFailForever));

TEST(AtomicFileFailure, leaves_no_temporary_file_after_a_failure) {
  const TemporaryFolder folder;
  PosixFileSystem posix;
  FaultFileSystem fs(posix, Fault::kFailOnce, 2, ENOSPC);
  ASSERT_FALSE(
      write_file_atomically(fs, join_path(folder.path(), "latest"), "new", join_path(folder.path(), ".tmp-g7-latest"))
          .ok());
  EXPECT_TRUE(posix.list(folder.path())->empty());
  EXPECT_EQ(fs.log().front(), "open .tmp-g7-latest");
}

}  // namespace
}  // namespace lockstep
