#include "runner/base/append_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

// While it lives, no file of this process grows beyond `bytes`: a write across the limit is short, one at it fails.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(AppendFile, keeps_what_was_there) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("log")) << "old\n";
  auto file = AppendFile::open(disk(), folder.file("log"), FileSystem::Append::kToExisting);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("new\n").ok());
  EXPECT_EQ(contents(folder.file("log")), "old\nnew\n");
}

TEST(AppendFile, refuses_a_file_that_must_be_new) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("log")) << "old\n";
  const auto file = AppendFile::open(disk(), folder.file("log"), FileSystem::Append::kToNew);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kConflict);
}

TEST(AppendFile, says_a_full_disk_once) {
  auto file = AppendFile::open(disk(), "/dev/full", FileSystem::Append::kToExisting);
  ASSERT_TRUE(file.ok());
  const Status first = file->append("line\n");
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(first.error().message.find("/dev/full"), std::string::npos);
  EXPECT_TRUE(file->append("line\n").ok());
}

TEST(AppendFile, leaves_no_part_of_a_record_and_goes_on_when_there_is_space_again) {
  const TemporaryFolder folder;
  auto file = AppendFile::open(disk(), folder.file("log"), FileSystem::Append::kToNew);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("first\n").ok());
  {
    const FileSizeLimit limit(8);  // room for two bytes of the second record
    const Status refused = file->append("second\n");
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("File too large"), std::string::npos) << refused.error().message;
    EXPECT_EQ(contents(folder.file("log")), "first\n");
    EXPECT_TRUE(file->append("third\n").ok()) << "the error was said already";
  }
  ASSERT_TRUE(file->append("fourth\n").ok());
  EXPECT_EQ(contents(folder.file("log")), "first\nfourth\n");
  const FileSizeLimit limit(8);
  EXPECT_FALSE(file->append("fifth\n").ok()) << "a new failure is said again";
}

}  // namespace
}  // namespace lockstep
