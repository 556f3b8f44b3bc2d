#include "runner/cli/ckpt_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runner/formats/checkpoint_write.h"
#include "runner/formats/pickle_zip.h"
#include "runner/formats/safetensors.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CkptCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30, 40}) {
      const std::vector<float> weights(4, static_cast<float>(step));
      const TensorView view{"w", DType::kF32, {4}, weights.data(), 16};
      CheckpointWrite write;
      write.folder = folder();
      write.state.workload = "sasrec";
      write.state.step = step;
      write.state.generation = 1;
      write.state.is_best = step <= 20;
      write.tensors = {{std::string(kModelFile), {view}}, {ema_file_name(""), {view}}};
      write.retention.keep_last = 100;
      ASSERT_TRUE(write_checkpoint(fs_, write).ok());
    }
  }
  [[nodiscard]] const std::string& folder() const { return temporary_.path(); }
  int run(const std::vector<std::string>& args) {
    out_.str("");
    err_.str("");
    return ckpt_command(fs_, args, out_, err_);
  }
  void spoil(const std::string& name) {
    ASSERT_TRUE(write_file(fs_, join_path(folder(), name), [](const ByteSink& sink) { return sink("x", 1); }).ok());
  }

  PosixFileSystem fs_;
  TemporaryFolder temporary_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(CkptCommand, lists_the_newest_first_and_says_what_is_damaged) {
  spoil("step-00000020/model.safetensors");
  ASSERT_EQ(run({"ls", folder()}), 0) << err_.str();
  const std::string text = out_.str();
  EXPECT_LT(text.find("step-00000040"), text.find("step-00000010"));
  EXPECT_THAT(text, AllOf(HasSubstr("CHECKPOINT"), HasSubstr("sasrec"), HasSubstr("1 bytes"),
                          HasSubstr("complete, checksums not verified")));
}

TEST_F(CkptCommand, marks_only_the_best_that_retention_keeps) {
  ASSERT_EQ(run({"ls", folder()}), 0) << err_.str();
  std::istringstream lines(out_.str());
  std::string best;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("  yes  ") != std::string::npos) best += line.substr(0, line.find(' ')) + ";";
  }
  EXPECT_EQ(best, "step-00000020;");
}

TEST_F(CkptCommand, verifies_and_answers_4_for_damage) {
  EXPECT_EQ(run({"verify", folder()}), 0) << err_.str();
  spoil("step-00000030/model.safetensors");
  EXPECT_EQ(run({"verify", folder()}), 4);
  EXPECT_THAT(out_.str(), HasSubstr("complete, all checksums match"));
  EXPECT_THAT(err_.str(), HasSubstr("step-00000030"));
  EXPECT_EQ(run({"verify", folder() + "/step-00000010"}), 0);
}

TEST_F(CkptCommand, passes_over_what_the_run_removes_while_it_looks) {
  FaultFileSystem fs(fs_, FaultFileSystem::Fault::kNone, 0);
  // The first reading is that of the list.
  fs.at_read_of("step-00000010/state.json", 2,
                [&] { ASSERT_TRUE(remove_tree(fs_, join_path(folder(), "step-00000010")).ok()); });
  EXPECT_EQ(ckpt_command(fs, {"verify", folder()}, out_, err_), 0) << err_.str();
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("step-00000010  removed meanwhile"), HasSubstr("complete, all checksums match")));
}

TEST_F(CkptCommand, exports_the_newest_complete_one_in_both_formats) {
  spoil("step-00000040/model.safetensors");
  const std::string pt = join_path(folder(), "w.pt");
  ASSERT_EQ(run({"export", "--format", "pt", "--output", pt, folder()}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("passed over"));
  EXPECT_THAT(out_.str(), HasSubstr("weights_only=True"));
  const auto bytes = std::make_shared<const std::string>(*read_file(fs_, pt, 1 << 20));
  const Result<TorchFile> torch_file = read_torch_zip(bytes, pt);
  ASSERT_TRUE(torch_file.ok());
  EXPECT_EQ(*static_cast<const float*>(state_dict_of(*torch_file, pt)->tensors[0].data), 30.0F);

  const std::string safetensors = join_path(folder(), "w.safetensors");
  ASSERT_EQ(run({"export", "--format=safetensors", "--output=" + safetensors, "--ema", folder() + "/step-00000010"}), 0)
      << err_.str();
  const Result<TensorFile> file =
      read_safetensors(std::make_shared<const std::string>(*read_file(fs_, safetensors, 1 << 20)), safetensors);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->tensors[0].name, "w");
}

TEST_F(CkptCommand, says_where_it_could_not_write) {
  EXPECT_EQ(run({"export", "--format", "pt", "--output", folder() + "/missing/w.pt", folder()}), 4);
  EXPECT_THAT(err_.str(), HasSubstr("No such file or directory"));
}

TEST_F(CkptCommand, names_the_averages_that_there_are) {
  EXPECT_EQ(run({"export", "--format", "pt", "--output", folder() + "/w.pt", "--ema=fast", folder()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("(unnamed)"));
}

TEST_F(CkptCommand, prunes_by_the_flags) {
  ASSERT_TRUE(fs_.make_directory(join_path(folder(), ".stale-step-00000010-g1")).ok());
  ASSERT_EQ(run({"prune", "--keep_last", "1", "--keep-every", "20", folder()}), 0) << err_.str();
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("step-00000010"), HasSubstr("step-00000030"), HasSubstr(".stale-"), HasSubstr("2 kept")));
  EXPECT_FALSE(fs_.stat(join_path(folder(), "step-00000030")).ok());
  EXPECT_TRUE(fs_.stat(join_path(folder(), "step-00000020")).ok());
}

TEST_F(CkptCommand, answers_2_for_usage) {
  EXPECT_EQ(run({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("expected one of ls, verify, export, prune, found nothing"));
  EXPECT_EQ(run({"frobnicate", folder()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("unknown command \"frobnicate\", expected one of ls"));
  EXPECT_EQ(run({"exprot", folder()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean \"export\"?"));
  EXPECT_EQ(run({"export"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("expected lockstep ckpt export DIR --format safetensors|pt --output FILE"));
  EXPECT_EQ(run({"export", "--format", "onnx", "--output", "x", folder()}), 2);
  EXPECT_EQ(run({"prune", "--keep_last", "0", folder()}), 2);
  EXPECT_EQ(run({"ls", folder() + "/missing"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("No such file or directory"));
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("export"));
}

}  // namespace
}  // namespace lockstep
