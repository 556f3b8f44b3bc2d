#include "runner/telemetry/wandb_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runner/base/json.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

std::vector<Json> lines_of(const TemporaryFolder& folder) {
  std::vector<Json> lines;
  const std::string text = contents(folder.file("wandb/metrics.jsonl"));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(parse_json(text.substr(begin, end - begin), "line").value());
    begin = end + 1;
  }
  return lines;
}

Json run_of(const TemporaryFolder& folder) {
  return parse_json(contents(folder.file("wandb/run.json")), "run").value();
}

WandbLog open_log(const TemporaryFolder& folder, const RunConfig& config, int64_t step = 0, int64_t epochs = 0,
                  double time = 100.0) {
  static PosixFileSystem fs;
  auto log = WandbLog::open(fs, config,
                            {.run_folder = folder.path(), .resume_step = step, .resume_epochs = epochs, .time = time});
  EXPECT_TRUE(log.ok()) << log.error().message;
  return std::move(log).value();
}

EvaluationRecord evaluation(int64_t step, int64_t epoch, double loss, double time) {
  return {.step = step, .epoch = epoch, .metrics = {{"valid_loss", 0.5}, {"train_loss", loss}}, .time = time};
}

TEST(WandbLog, has_the_guides_names_and_the_time_of_an_epoch) {
  const TemporaryFolder folder;
  WandbLog log = open_log(folder, {});
  EXPECT_TRUE(
      log.append(StepReport{.step = 3, .epoch = 1, .loss = 2.0, .lr = 0.1, .samples_since = 48, .time = 103.0}).ok());
  EXPECT_TRUE(log.append(evaluation(4, 2, 2.5, 104.0)).ok());
  const std::vector<Json> lines = lines_of(folder);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["train/loss"], 2.0);
  EXPECT_EQ(lines[0]["train/learning_rate"], 0.1);
  EXPECT_EQ(lines[0]["train/step"], 4);
  EXPECT_EQ(lines[1]["train/epoch_loss"], 2.5);
  EXPECT_EQ(lines[1]["train/best_loss"], 2.5);
  EXPECT_EQ(lines[1]["train/epoch_time"], 2.0);           // four seconds, two epochs
  EXPECT_EQ(lines[1]["train/samples_per_second"], 12.0);  // 48 in four seconds
  EXPECT_EQ(lines[1]["eval/valid_loss"], 0.5);
}

TEST(WandbLog, a_resume_keeps_id_and_best_loss_and_a_new_run_does_not) {
  const TemporaryFolder folder;
  RunConfig config;
  config.training.wandb = {.is_used = true, .project = "p", .name = "", .entity = "e"};
  {
    WandbLog log = open_log(folder, config);
    EXPECT_TRUE(log.append(evaluation(4, 1, 1.0, 104.0)).ok());
    EXPECT_TRUE(log.append(evaluation(8, 2, 0.1, 108.0)).ok());
  }
  const Json first = run_of(folder);
  EXPECT_EQ(first["project"], "p");
  EXPECT_EQ(first["name"], base_name(folder.path()));
  WandbLog resumed = open_log(folder, config, 4, 1, 200.0);  // the evaluation of step 8 is made again
  EXPECT_EQ(run_of(folder)["id"], first["id"]);
  EXPECT_TRUE(resumed.append(evaluation(8, 2, 3.0, 201.0)).ok());
  EXPECT_EQ(lines_of(folder).back()["train/best_loss"], 1.0);
  open_log(folder, config, 0, 0, 300.0);
  EXPECT_NE(run_of(folder)["id"], first["id"]);
  EXPECT_TRUE(lines_of(folder).empty());
}

TEST(WandbLog, a_step_has_one_line) {
  const TemporaryFolder folder;
  WandbLog log = open_log(folder, {});
  EXPECT_TRUE(log.append(StepReport{.step = 2}).ok());
  EXPECT_TRUE(log.append(StepReport{.step = 2}).ok());
  EXPECT_TRUE(log.append(evaluation(3, 0, 1.0, 101.0)).ok());
  EXPECT_TRUE(log.append(evaluation(3, 0, 1.0, 101.0)).ok());
  EXPECT_EQ(lines_of(folder).size(), 2U);
  EXPECT_FALSE(lines_of(folder)[1].contains("train/epoch_time"));  // no epoch was completed
}

}  // namespace
}  // namespace lockstep
