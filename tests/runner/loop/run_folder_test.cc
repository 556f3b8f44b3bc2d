// What an evaluation leaves in the output folder, and who may leave it there.
#include "runner/loop/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runner/formats/checkpoint_dir.h"
#include "runner/formats/checkpoint_write.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/loop/line_workload.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kWeights = "line.epoch=1.pth";

class LoggedWorkload final : public LineWorkload {
 public:
  using LineWorkload::LineWorkload;
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
  static RunFolder::Evaluation evaluation(int64_t step, float weight = 1.0F) {
    return {.record = {.step = step, .epoch = 1, .metrics = {{"valid", 0.5}}},
            .log_line = "1 of step " + std::to_string(step),
            .outputs = {kWeights},
            .content_of = [weight](const std::string&) -> OutputContent {
              TorchTree tree;
              tree.root.emplace_back("w", tree.value(torch::full({2}, weight)));
              return tree;
            }};
  }
  void write_checkpoint_of(uint64_t generation, int64_t step, const RunIdentity& run) {
    CheckpointWrite write{.folder = folder_};
    write.state.workload = run.workload;
    write.state.config_hash = run.config_hash;
    write.state.generation = generation;
    write.state.step = step;
    const int64_t value = step;
    write.tensors = {{std::string(kModelFile), {{"w", DType::kI64, {1}, &value, sizeof value}}}};
    const Result<WrittenCheckpoint> written = write_checkpoint(posix_, write);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }
  [[nodiscard]] std::string text(const std::string& name) const { return contents(join_path(folder_, name)); }

  PosixFileSystem posix_;
  TemporaryFolder temporary_;
  std::string folder_ = temporary_.file("run");
  RunConfig config_;
  LoggedWorkload workload_{8};
  RunIdentity run_{.job = {}, .config_hash = "hash", .workload = "line"};
};

TEST_F(RunFolderTest, takes_a_line_of_each_log_and_the_weights_of_an_evaluation) {
  RunFolder folder = open(posix_);
  folder.set_owner({.run = run_, .stamp = {.generation = 1}});
  EXPECT_THAT(folder.record(evaluation(10)), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n1 of step 10\n");
  EXPECT_THAT(text("metrics.jsonl"), HasSubstr("\"step\":10"));
  EXPECT_TRUE(folder.has_evaluation(10));
  EXPECT_THAT(folder.files(), ElementsAre("args.txt", "metrics.jsonl", "log.txt", kWeights));
}

TEST_F(RunFolderTest, takes_nothing_from_an_old_rank_0_once_a_newer_generation_has_written) {
  RunFolder old = open(posix_);
  old.set_owner({.run = run_, .stamp = {.generation = 1}});
  EXPECT_THAT(old.record(evaluation(10)), IsEmpty());
  RunFolder folder = open(posix_, 10);
  folder.set_owner({.run = run_, .stamp = {.generation = 2}});
  write_checkpoint_of(2, 12, run_);
  EXPECT_THAT(folder.record(evaluation(20, 2.0F)), IsEmpty());
  const std::vector<std::string> before = {text("log.txt"), text("metrics.jsonl"), text(kWeights)};

  EXPECT_THAT(old.record(evaluation(20)),
              ElementsAre(testing::AllOf(HasSubstr("step-00000012 is of generation 2, newer than this one's 1"),
                                         HasSubstr("the evaluation of step 20"), HasSubstr("end the one"))));
  EXPECT_THAT(old.record(evaluation(30)), IsEmpty());  // said once
  EXPECT_EQ((std::vector<std::string>{text("log.txt"), text("metrics.jsonl"), text(kWeights)}), before);
  EXPECT_FALSE(old.has_evaluation(20));
}

TEST_F(RunFolderTest, is_written_again_by_who_became_the_newer_one_and_says_a_second_loss_again) {
  RunFolder folder = open(posix_);
  folder.set_owner({.run = run_, .stamp = {.generation = 1}});
  write_checkpoint_of(2, 10, run_);
  EXPECT_EQ(folder.record(evaluation(10)).size(), 1U);
  folder.set_owner({.run = run_, .stamp = {.generation = 3}});
  EXPECT_THAT(folder.record(evaluation(20)), IsEmpty());
  EXPECT_THAT(text("log.txt"), HasSubstr("step 20"));
  write_checkpoint_of(4, 20, run_);
  EXPECT_EQ(folder.record(evaluation(30)).size(), 1U);
}

TEST_F(RunFolderTest, does_not_mind_another_runs_checkpoints_nor_any_before_its_owner_is_known) {
  RunFolder folder = open(posix_);
  write_checkpoint_of(2, 10, run_);
  EXPECT_THAT(folder.record(evaluation(10)), IsEmpty());
  folder.set_owner({.run = {.job = {}, .config_hash = "another", .workload = "line"}, .stamp = {.generation = 1}});
  EXPECT_THAT(folder.record(evaluation(20)), IsEmpty());
}

TEST_F(RunFolderTest, writes_nothing_while_nobody_can_tell_whose_it_is) {
  FaultFileSystem fs(posix_, FaultFileSystem::Fault::kNone, 0);
  RunFolder folder = open(fs);
  folder.set_owner({.run = run_, .stamp = {.generation = 1}});
  fs.hold_back("run");
  EXPECT_THAT(folder.record(evaluation(10)),
              ElementsAre(testing::AllOf(HasSubstr("list "), HasSubstr("mend the volume"))));
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
  EXPECT_FALSE(std::filesystem::exists(join_path(folder_, kWeights)));
  fs.hold_back("");
  EXPECT_THAT(folder.record(evaluation(20)), IsEmpty());
}

TEST_F(RunFolderTest, replaces_no_log_that_it_cannot_read) {
  FaultFileSystem fs(posix_, FaultFileSystem::Fault::kNone, 0);
  open(fs).record(evaluation(10));
  const std::string before = text("log.txt");
  fs.hold_back("log.txt");
  const Result<RunFolder> opened =
      RunFolder::open(fs, config_, workload_, {.path = folder_, .host_name = "here", .resume_step = 10});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, HasSubstr("log.txt: Input/output error"));
  EXPECT_EQ(text("log.txt"), before);
}

TEST_F(RunFolderTest, moves_a_log_that_is_too_large_and_says_so) {
  open(posix_).record(evaluation(10));
  std::filesystem::resize_file(join_path(folder_, "log.txt"), kLineFileBytesMax + 1);  // sparse
  const RunFolder folder = open(posix_, 10);
  EXPECT_EQ(folder.remark(),
            "log.txt had more than 64 MiB: it is " + join_path(folder_, "log.txt") + ".1 now, and a new one is begun");
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
}

TEST_F(RunFolderTest, names_each_file_of_an_evaluation_that_cannot_be_written) {
  RunFolder folder = open(posix_);
  std::filesystem::remove(join_path(folder_, "log.txt"));
  std::filesystem::create_directory(join_path(folder_, "log.txt"));
  std::filesystem::create_directory(join_path(folder_, kWeights));
  EXPECT_THAT(folder.record(evaluation(10)), ElementsAre(HasSubstr("log.txt"), HasSubstr(kWeights)));
  EXPECT_THAT(text("metrics.jsonl"), HasSubstr("\"step\":10"));  // the one that can be
}

TEST_F(RunFolderTest, leaves_no_log_line_and_no_weights_where_an_evaluation_has_none) {
  RunFolder folder = open(posix_);
  EXPECT_THAT(folder.record(RunFolder::Evaluation{.record = {.step = 10}}), IsEmpty());
  EXPECT_EQ(text("log.txt"), "epoch (figures)\n");
  EXPECT_THAT(folder.files(), ElementsAre("args.txt", "metrics.jsonl"));
}

}  // namespace
}  // namespace lockstep
