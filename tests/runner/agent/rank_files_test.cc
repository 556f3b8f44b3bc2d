#include "runner/agent/rank_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "runner/agent/program_folder.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using std::chrono_literals::operator""s;

TEST(RankFiles, lines_are_in_the_files_of_torchrun) {
  const TemporaryFolder folder;
  RankFiles files(disk(), folder.path(), [] { FAIL() << "a file cannot be written"; });
  ASSERT_TRUE(files.begin_attempt(0, 2).ok());
  files.write(0, false, "out of 0");
  files.write(1, true, "err of 1");
  files.write_filtered(false, "out of 0");
  EXPECT_EQ(files.error_file(1), folder.path() + "/attempt_0/1/error.json");
  files.flush(60s);
  EXPECT_EQ(contents(folder.path() + "/attempt_0/0/stdout.log"), "out of 0\n");
  EXPECT_EQ(contents(folder.path() + "/attempt_0/1/stderr.log"), "err of 1\n");
  EXPECT_EQ(contents(folder.path() + "/attempt_0/filtered_stdout.log"), "out of 0\n");
}

TEST(RankFiles, each_attempt_has_its_folder_and_one_of_the_same_number_begins_anew) {
  const TemporaryFolder folder;
  RankFiles files(disk(), folder.path(), [] { FAIL() << "a file cannot be written"; });
  ASSERT_TRUE(files.begin_attempt(0, 1).ok());
  files.write(0, false, "first");
  files.flush(60s);
  ASSERT_TRUE(files.begin_attempt(1, 1).ok());
  files.write(0, false, "second");
  files.flush(60s);
  EXPECT_EQ(contents(folder.path() + "/attempt_0/0/stdout.log"), "first\n");
  EXPECT_EQ(contents(folder.path() + "/attempt_1/0/stdout.log"), "second\n");
  ASSERT_TRUE(files.begin_attempt(0, 1).ok());
  files.write(0, false, "third");
  files.flush(60s);
  EXPECT_EQ(contents(folder.path() + "/attempt_0/0/stdout.log"), "third\n");
}

TEST(RankFiles, a_full_disk_is_reported_once_and_other_files_are_written) {
  const TemporaryFolder folder;
  FaultFileSystem fs(disk(), FaultFileSystem::Fault::kFailOnce, 2, ENOSPC);  // the first write
  std::atomic<int> problems = 0;
  std::string problem;
  {
    RankFiles files(fs, folder.path(), [&] { ++problems; });
    ASSERT_TRUE(files.begin_attempt(0, 2).ok());
    files.write(0, false, "lost");
    files.flush(60s);
    files.write(1, false, "kept");
    problem = files.new_problem();
    EXPECT_EQ(files.new_problem(), "");
  }
  EXPECT_EQ(problems, 1);
  EXPECT_NE(problem.find("attempt_0/0/stdout.log"), std::string::npos) << problem;
  EXPECT_NE(problem.find("No space left on device"), std::string::npos) << problem;
  EXPECT_EQ(contents(folder.path() + "/attempt_0/0/stdout.log"), "");
  EXPECT_EQ(contents(folder.path() + "/attempt_0/1/stdout.log"), "kept\n");
}

TEST(ProgramFolder, a_folder_that_cannot_be_filled_is_named_with_the_file) {
  FaultFileSystem full(disk(), FaultFileSystem::Fault::kFailForever, 4, ENOSPC);  // after the three folders in it
  const Result<ProgramFolder> made = ProgramFolder::make(full);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("sitecustomize.py: No space left on device"), std::string::npos)
      << made.error().message;
}

TEST(RankFiles, more_than_waits_in_memory_is_left_out_and_counted) {
  const TemporaryFolder folder;
  std::string written;
  {
    RankFiles files(disk(), folder.path(), [] {});
    ASSERT_TRUE(files.begin_attempt(0, 1).ok());
    files.write(0, false, std::string(kUnwrittenBytesMax + 1, 'x'));
    files.write(0, false, "kept");
    files.flush(60s);
  }
  EXPECT_EQ(contents(folder.path() + "/attempt_0/0/stdout.log"),
            "lockstep: 1 lines were left out here: the disk was slower than the program\nkept\n");
}

TEST(RankFiles, the_folder_is_new_for_each_run_and_what_is_in_the_way_is_named) {
  const TemporaryFolder folder;
  const Result<std::string> first = RankFiles::make_folder(folder.path() + "/logs", "a/b");
  const Result<std::string> second = RankFiles::make_folder(folder.path() + "/logs", "a/b");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(first->starts_with(folder.path() + "/logs/a_b_"));
  folder.write("file", "");
  const Result<std::string> file = RankFiles::make_folder(folder.path() + "/file", "none");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("is a file, expected a folder"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
