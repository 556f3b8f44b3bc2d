#include "runner/base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "runner/base/forwarding_file_system.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class PosixFiles : public ::testing::Test {
 protected:
  std::string in(const std::string& name) { return join_path(folder_.path(), name); }
  Status put(const std::string& path, const std::string& text) {
    return write_file(fs_, path, [&](const ByteSink& sink) { return sink(text.data(), text.size()); });
  }

  TemporaryFolder folder_;
  PosixFileSystem fs_;
};

TEST_F(PosixFiles, gives_back_what_was_written) {
  const std::string text(100'000, 'x');
  ASSERT_TRUE(put(in("a"), text).ok());
  EXPECT_EQ(*read_file(fs_, in("a"), text.size()), text);
  std::string streamed;
  ASSERT_TRUE(read_file(fs_, in("a"), [&](const void* data, size_t bytes) -> Status {
                streamed.append(static_cast<const char*>(data), bytes);
                return {};
              }).ok());
  EXPECT_EQ(streamed, text);
}

// Discards what is written, and records how much was not durable at any time.
class CountingFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  Result<size_t> write(FileHandle /*file*/, const void* /*data*/, size_t bytes) override {
    written += bytes;
    not_durable += bytes;
    not_durable_max = std::max(not_durable_max, not_durable);
    return bytes;
  }
  Status fsync(FileHandle /*file*/) override {
    not_durable = 0;
    return {};
  }

  size_t written = 0;
  size_t not_durable = 0;
  size_t not_durable_max = 0;
};

TEST_F(PosixFiles, makes_a_large_file_durable_piece_by_piece) {
  constexpr size_t kMiB = size_t{1} << 20;
  CountingFileSystem counting(fs_);
  // Pages that nobody touches take no memory.
  const std::unique_ptr<char, decltype(&std::free)> large(static_cast<char*>(std::calloc(600, kMiB)), &std::free);
  ASSERT_TRUE(write_file(counting, in("large"), [&](const ByteSink& sink) -> Status {
                TRY(sink(large.get(), 100 * kMiB));
                TRY(sink(large.get(), 600 * kMiB));
                return sink(large.get(), 1);
              }).ok());
  EXPECT_EQ(counting.written, 700 * kMiB + 1);
  EXPECT_EQ(counting.not_durable, 0U);
  EXPECT_EQ(counting.not_durable_max, 256 * kMiB);
}

TEST_F(PosixFiles, that_are_watched_say_when_the_volume_has_answered) {
  int answers = 0;
  WatchedFileSystem watched(fs_, [&]() -> Status {
    ++answers;
    return {};
  });
  ASSERT_TRUE(write_file(watched, in("a"), [](const ByteSink& sink) { return sink("text", 4); }).ok());
  EXPECT_EQ(answers, 2);  // write, fsync
  EXPECT_EQ(*read_file(watched, in("a"), 4), "text");
  EXPECT_GT(answers, 2);
}

// A large file is read in pieces, so that a reader that is told to stop does so within one piece.
TEST_F(PosixFiles, that_are_watched_are_read_no_further_when_the_watcher_says_so) {
  constexpr size_t kBytes = size_t{9} << 20;
  ASSERT_TRUE(put(in("a"), std::string(kBytes, 'x')).ok());
  int pieces = 0;
  const auto stop_at = [&pieces](int last) {
    return [&pieces, last]() -> Status {
      if (++pieces == last) return Error{ErrorCode::kCancelled, "told to stop"};
      return {};
    };
  };
  WatchedFileSystem whole(fs_, stop_at(0));
  ASSERT_EQ(read_file(whole, in("a"), kBytes)->size(), kBytes);
  EXPECT_GE(std::exchange(pieces, 0), 3);
  WatchedFileSystem stopped(fs_, stop_at(2));
  const Result<std::string> read = read_file(stopped, in("a"), kBytes);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kCancelled);
  EXPECT_THAT(read.error().message, HasSubstr("told to stop"));
  EXPECT_EQ(pieces, 2) << "nothing was read after that";
}

TEST_F(PosixFiles, says_the_path_and_the_reason) {
  const Result<std::string> missing = read_file(fs_, in("missing"), 10);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr(in("missing")));
  EXPECT_THAT(missing.error().message, HasSubstr("No such file or directory"));
}

TEST_F(PosixFiles, refuses_a_file_above_the_bound_and_a_folder) {
  ASSERT_TRUE(put(in("a"), "12345").ok());
  EXPECT_EQ(read_file(fs_, in("a"), 4).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(read_file(fs_, folder_.path(), 100).error().code, ErrorCode::kInvalid);
}

TEST_F(PosixFiles, follows_no_link_when_it_writes_or_removes) {
  ASSERT_TRUE(put(in("target"), "keep me").ok());
  ASSERT_TRUE(fs_.make_directory(in("tree")).ok());
  ASSERT_EQ(::symlink(in("target").c_str(), in("tree/link").c_str()), 0);
  EXPECT_FALSE(put(in("tree/link"), "overwritten").ok());
  ASSERT_TRUE(remove_tree(fs_, in("tree")).ok());
  EXPECT_EQ(*read_file(fs_, in("target"), 100), "keep me");
}

// Kubernetes mounts a ConfigMap's file as a link to ..data/file, and ..data is a link, too.
TEST_F(PosixFiles, reads_through_links) {
  const std::string text = "the text is longer than the link's path: " + std::string(5000, 'x');
  ASSERT_TRUE(make_directories(fs_, in("..2026_01_01")).ok());
  ASSERT_TRUE(put(in("..2026_01_01/file"), text).ok());
  ASSERT_EQ(::symlink("..2026_01_01", in("..data").c_str()), 0);
  ASSERT_EQ(::symlink("..data/file", in("file").c_str()), 0);
  const Result<std::string> read = read_file(fs_, in("file"), text.size());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, text);
  EXPECT_EQ(read_file(fs_, in("file"), text.size() - 1).error().code, ErrorCode::kInvalid);
  EXPECT_THAT(read_file(fs_, in("..data"), 100).error().message, HasSubstr("is a folder, not a file"));
  ASSERT_EQ(::symlink("nowhere", in("dangling").c_str()), 0);
  EXPECT_EQ(read_file(fs_, in("dangling"), 100).error().code, ErrorCode::kNotFound);
}

TEST_F(PosixFiles, reads_through_no_link_where_links_are_refused) {
  ASSERT_TRUE(put(in("target"), "text").ok());
  ASSERT_EQ(::symlink("target", in("link").c_str()), 0);
  PosixFileSystem refusing(PosixFileSystem::Links::kRefused);
  EXPECT_EQ(*read_file(refusing, in("target"), 100), "text");
  EXPECT_EQ(read_file(refusing, in("link"), 100).error().code, ErrorCode::kInvalid);
}

TEST_F(PosixFiles, removes_trees_and_what_is_not_there) {
  ASSERT_TRUE(make_directories(fs_, in("a/b/c")).ok());
  ASSERT_TRUE(make_directories(fs_, in("a/b/c")).ok());
  ASSERT_TRUE(put(in("a/b/file"), "x").ok());
  ASSERT_TRUE(remove_tree(fs_, in("a")).ok());
  EXPECT_EQ(fs_.stat(in("a")).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(remove_tree(fs_, in("a")).ok());
}

// Another process renames a folder away that is to be listed.
class VanishingFolder final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    EXPECT_TRUE(rename(path, path + "-renamed").ok());
    return ForwardingFileSystem::list(path);
  }
};

TEST_F(PosixFiles, takes_a_tree_for_removed_that_is_renamed_meanwhile) {
  ASSERT_TRUE(make_directories(fs_, in("a/b")).ok());
  VanishingFolder vanishing(fs_);
  const Status removed = remove_tree(vanishing, in("a"));
  EXPECT_TRUE(removed.ok()) << removed.error().message;
  EXPECT_TRUE(fs_.stat(in("a-renamed/b")).ok());
}

TEST_F(PosixFiles, refuses_a_file_in_a_folders_place) {
  ASSERT_TRUE(put(in("file"), "x").ok());
  EXPECT_THAT(make_directories(fs_, in("file")).error().message, HasSubstr("is a file"));
}

TEST_F(PosixFiles, closes_after_a_failed_write) {
  for (int n = 1; n <= 4; ++n) {
    FaultFileSystem faulty(fs_, FaultFileSystem::Fault::kFailOnce, n, ENOSPC);
    const Status status = write_file(faulty, in("a"), [](const ByteSink& sink) { return sink("abc", 3); });
    ASSERT_FALSE(status.ok()) << n;
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr(in("a")));
    EXPECT_THAT(status.error().message, HasSubstr("No space left on device"));
    EXPECT_EQ(faulty.log().back(), n > 1 ? "close" : "open a");
  }
}

TEST(Paths, split_and_join) {
  EXPECT_EQ(join_path("a/b", "c"), "a/b/c");
  EXPECT_EQ(join_path("/", "c"), "/c");
  EXPECT_EQ(join_path("", "c"), "c");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("a/b/"), "a");
  EXPECT_EQ(parent_path("b"), ".");
  EXPECT_EQ(parent_path("/b"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(base_name("a/b/"), "b");
  EXPECT_EQ(base_name("b"), "b");
}

}  // namespace
}  // namespace lockstep
