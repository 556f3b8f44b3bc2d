// The lines that a run leaves in its folder, and who may write them.
#include "runner/loop/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/forwarding_file_system.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LoggedWorkload final : public ToyWorkload {
 public:
  [[nodiscard]] std::string log_header() const override { return "epoch (figures)"; }
};

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() { config_.training.tensorboard = false; }

  RunFolder open(FileSystem& fs, int64_t resume_step = 0) {
    Result<RunFolder> opened =
        RunFolder::open(fs, config_, workload_, {.path = folder_, .host_name = "here", .resume_step = resume_step});
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return std::move(opened).value();
  }
  static std::vector<std::string> record(RunFolder& folder, int64_t step) {
    return folder.record(EvaluationRecord{.step = step, .epoch = 1, .metrics = {{"valid", 0.5}}},
                         "1 of step " + std::to_string(step));
  }
  [[nodiscard]] std::string text(const std::string& name) const { return contents(join_path(folder_, name)); }

  PosixFileSystem posix_;
  TemporaryFolder temporary_;
  std::string folder_ = temporary_.file("run");
  RunConfig config_;
  LoggedWorkload workload_;
};

TEST_F(RunFolderTest, takes_a_line_of_each_log_of_an_evaluation) {
  RunFolder folder = open(posix_);
  EXPECT_THAT(record(folder, 10), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n1 of step 10\n");
  EXPECT_THAT(text("metrics.jsonl"), HasSubstr("\"step\":10"));
  EXPECT_TRUE(folder.has_evaluation(10));
  folder.add_file("best.pt");
  folder.add_file("best.pt");
  EXPECT_THAT(folder.files(), ElementsAre("args.txt", "metrics.jsonl", "log.txt", "best.pt"));
}

// An old rank 0 that was cut off and still runs beside its successor, on the same volume.
TEST_F(RunFolderTest, takes_nothing_from_an_old_rank_0_once_a_new_one_has_opened_it) {
  RunFolder old = open(posix_);
  EXPECT_THAT(record(old, 10), IsEmpty());
  RunFolder folder = open(posix_, 10);
  EXPECT_THAT(record(old, 20), IsEmpty());
  EXPECT_THAT(text("log.txt"), Not(HasSubstr("step 20")));
  EXPECT_THAT(text("metrics.jsonl"), Not(HasSubstr("\"step\":20")));
  EXPECT_THAT(record(folder, 30), IsEmpty());
  EXPECT_THAT(text("log.txt"), HasSubstr("step 30"));
}

// Calls `then` once, when log.txt has been renamed into place.
class PausedAtLogFile final : public ForwardingFileSystem {
 public:
  PausedAtLogFile(FileSystem& below, std::function<void()> then)
      : ForwardingFileSystem(below), then_(std::move(then)) {}
  Status rename(const std::string& from, const std::string& to) override {
    const Status renamed = ForwardingFileSystem::rename(from, to);
    if (to.ends_with("log.txt") && then_) std::exchange(then_, nullptr)();
    return renamed;
  }

 private:
  std::function<void()> then_;
};

TEST_F(RunFolderTest, takes_nothing_from_an_old_rank_0_that_was_opening_it_when_the_new_one_did) {
  std::optional<RunFolder> successor;
  PausedAtLogFile fs(posix_, [&] { successor = open(posix_); });
  RunFolder old = open(fs);
  EXPECT_THAT(record(old, 20), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
  ASSERT_TRUE(successor.has_value());
  EXPECT_THAT(record(*successor, 30), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n1 of step 30\n");
}

TEST_F(RunFolderTest, replaces_no_log_that_it_cannot_read) {
  FaultFileSystem fs(posix_, FaultFileSystem::Fault::kNone, 0);
  RunFolder first = open(fs);
  record(first, 10);
  const std::string before = text("log.txt");
  fs.hold_back("log.txt");
  const Result<RunFolder> opened =
      RunFolder::open(fs, config_, workload_, {.path = folder_, .host_name = "here", .resume_step = 10});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, HasSubstr("log.txt: Input/output error"));
  EXPECT_EQ(text("log.txt"), before);
}

TEST_F(RunFolderTest, moves_a_log_that_is_too_large_and_says_so) {
  open(posix_);
  std::filesystem::resize_file(join_path(folder_, "log.txt"), kLineFileBytesMax + 1);  // sparse
  const RunFolder folder = open(posix_, 10);
  EXPECT_EQ(folder.remark(),
            "log.txt had more than 64 MiB: it is " + join_path(folder_, "log.txt") + ".1 now, and a new one is begun");
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
}

TEST_F(RunFolderTest, names_each_file_that_takes_no_line) {
  RunFolder folder = open(posix_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::vector<std::string> problems = record(folder, 10);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("metrics.jsonl"), HasSubstr("log.txt")));
  EXPECT_THAT(record(folder, 20), IsEmpty());
  EXPECT_THAT(text("log.txt"), HasSubstr("step 20"));
}

TEST_F(RunFolderTest, leaves_no_log_line_where_an_evaluation_has_none) {
  RunFolder folder = open(posix_);
  EXPECT_THAT(folder.record(EvaluationRecord{.step = 10}, ""), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
  EXPECT_THAT(folder.files(), ElementsAre("args.txt", "metrics.jsonl"));
}

}  // namespace
}  // namespace lockstep
