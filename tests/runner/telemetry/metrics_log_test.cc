#include "runner/telemetry/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "runner/base/json.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

StepReport step_report(int64_t steps_done, double loss = 1.0) {
  return {.step = steps_done - 1,
          .epoch = 0,
          .loss = loss,
          .grad_norm = 2.0,
          .lr = 1e-3,
          .samples_per_second = 10.0,
          .samples_since = 64,
          .time = 5.5};
}

EvaluationRecord evaluation_record(int64_t step) {
  return {.step = step, .epoch = 1, .metrics = {{"valid_ndcg@10", 0.25}}, .time = 6.5};
}

Result<MetricsLog> try_to_open(const std::string& path, int64_t resume_step, uint64_t bytes_max = kLineFileBytesMax) {
  static PosixFileSystem fs;
  return MetricsLog::open(fs, path, resume_step, join_path(parent_path(path), ".tmp-metrics.jsonl"), bytes_max);
}

MetricsLog open_log(const std::string& path, int64_t resume_step) {
  auto log = try_to_open(path, resume_step);
  EXPECT_TRUE(log.ok()) << log.error().message;
  return std::move(log).value();
}

// "3" for a step, "3e" for an evaluation.
std::vector<std::string> steps_in(const std::string& path) {
  std::vector<std::string> steps;
  std::istringstream lines(contents(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = parse_json(line, "line");
    EXPECT_TRUE(json.ok()) << line;
    steps.push_back(std::to_string((*json)["step"].get<int64_t>()) + (json->contains("evaluation") ? "e" : ""));
  }
  return steps;
}

TEST(MetricsLog, writes_the_documented_fields) {
  const TemporaryFolder folder;
  MetricsLog log = open_log(folder.file("metrics.jsonl"), 0);
  ASSERT_TRUE(log.append(step_report(10, 0.5)).ok());
  ASSERT_TRUE(log.append(evaluation_record(10)).ok());
  EXPECT_EQ(contents(log.path()),
            "{\"step\":10,\"epoch\":0,\"loss\":0.5,\"lr\":0.001,\"grad_norm\":2.0,\"samples_per_second\":10.0,"
            "\"samples\":64,\"time\":5.5}\n"
            "{\"step\":10,\"epoch\":1,\"evaluation\":true,\"valid_ndcg@10\":0.25,\"time\":6.5}\n");
}

TEST(MetricsLog, that_became_too_large_is_put_aside_and_a_new_one_begun) {
  const TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  const std::string before = contents(path);
  folder.write("metrics.jsonl.1", "older");
  auto log = try_to_open(path, 2, before.size() - 1);
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_EQ(log->moved_to(), path + ".2");
  EXPECT_EQ(contents(path + ".2"), before);
  EXPECT_EQ(contents(path + ".1"), "older");
  ASSERT_TRUE(log->append(step_report(3)).ok());
  EXPECT_EQ(steps_in(path), std::vector<std::string>{"3"});

  auto again = try_to_open(path, 3, 1000);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->moved_to(), "");
  EXPECT_TRUE(again->has_step(3));
}

TEST(MetricsLog, writes_null_for_a_loss_that_is_not_finite) {
  const TemporaryFolder folder;
  MetricsLog log = open_log(folder.file("metrics.jsonl"), 0);
  ASSERT_TRUE(log.append(step_report(1, std::numeric_limits<double>::quiet_NaN())).ok());
  const auto line = parse_json(contents(log.path()), "line");
  ASSERT_TRUE(line.ok());
  EXPECT_TRUE((*line)["loss"].is_null());
}

TEST(MetricsLog, never_has_two_lines_for_one_step) {
  const TemporaryFolder folder;
  MetricsLog log = open_log(folder.file("metrics.jsonl"), 0);
  for (const int64_t step : {1, 2, 2, 1, 3}) ASSERT_TRUE(log.append(step_report(step)).ok());
  for (const int64_t step : {3, 3}) ASSERT_TRUE(log.append(evaluation_record(step)).ok());
  EXPECT_THAT(steps_in(log.path()), testing::ElementsAre("1", "2", "3", "3e"));
}

TEST(MetricsLog, cuts_back_to_the_step_it_resumes_from) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  {
    MetricsLog log = open_log(path, 0);
    for (int64_t step = 1; step <= 5; ++step) {
      ASSERT_TRUE(log.append(step_report(step)).ok());
      ASSERT_TRUE(log.append(evaluation_record(step)).ok());
    }
  }
  MetricsLog log = open_log(path, 3);
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "1e", "2", "2e", "3", "3e"));
  for (int64_t step = 3; step <= 4; ++step) ASSERT_TRUE(log.append(step_report(step, 7.0)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "1e", "2", "2e", "3", "3e", "4"));
}

// A bad line that it does not read stays. A start takes as long with ten million lines as with a thousand.
TEST(MetricsLog, looks_from_the_end_at_no_more_lines_than_it_must) {
  const TemporaryFolder folder;
  const std::string text = "not looked at\n{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":true}\n";
  const std::string path = folder.write("metrics.jsonl", text + "nonsense\n{\"step\":3}\n");
  const MetricsLog log = open_log(path, 2);
  EXPECT_EQ(contents(path), text);
  EXPECT_TRUE(log.has_step(2));
  EXPECT_TRUE(log.has_evaluation(2));
  EXPECT_FALSE(log.has_step(3));
}

// A new rank 0 writes again the lines that its state knows of: the newest steps and the newest evaluation.
TEST(MetricsLog, what_had_its_line_far_before_the_end_gets_no_second_one) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  {
    MetricsLog log = open_log(path, 0);
    for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(log.append(step_report(step)).ok());
    ASSERT_TRUE(log.append(evaluation_record(3)).ok());
    for (int64_t step = 4; step <= 6; ++step) ASSERT_TRUE(log.append(step_report(step)).ok());
  }
  MetricsLog log = open_log(path, 6);
  EXPECT_TRUE(log.has_evaluation(3));
  ASSERT_TRUE(log.append(evaluation_record(3)).ok());
  for (int64_t step = 2; step <= 6; ++step) ASSERT_TRUE(log.append(step_report(step)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "3", "3e", "4", "5", "6"));
  ASSERT_TRUE(log.append(evaluation_record(6)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "3", "3e", "4", "5", "6", "6e"));

  MetricsLog later = open_log(path, 7);  // step 7 is the first that has no line
  for (int64_t step = 5; step <= 7; ++step) ASSERT_TRUE(later.append(step_report(step)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "3", "3e", "4", "5", "6", "6e", "7"));
}

TEST(MetricsLog, has_one_line_of_the_step_that_it_resumes_from) {
  const TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl",
                                        "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":true}\n"
                                        "{\"step\":2}\n{\"step\":2,\"evaluation\":true}\n");
  const MetricsLog log = open_log(path, 2);
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "2e"));
}

TEST(MetricsLog, drops_a_torn_last_line) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  std::ofstream(path) << "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"lo";
  MetricsLog log = open_log(path, 9);
  ASSERT_TRUE(log.append(step_report(3)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "3"));
}

TEST(MetricsLog, drops_a_last_line_without_its_newline) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  std::ofstream(path) << "{\"step\":1}\n{\"step\":2}";
  MetricsLog log = open_log(path, 9);
  ASSERT_TRUE(log.append(step_report(2)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2"));
}

TEST(MetricsLog, begins_anew_without_a_checkpoint) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  std::ofstream(path) << "{\"step\":1}\n";
  const MetricsLog log = open_log(path, 0);
  EXPECT_EQ(contents(path), "");
}

TEST(MetricsLog, is_a_new_file_at_each_opening_so_that_an_old_writer_adds_nothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  MetricsLog old = open_log(path, 0);
  for (const int64_t step : {1, 2}) ASSERT_TRUE(old.append(step_report(step)).ok());
  MetricsLog log = open_log(path, 2);  // nothing to cut
  ASSERT_TRUE(old.append(step_report(3, 7.0)).ok());
  ASSERT_TRUE(old.append(evaluation_record(3)).ok());
  ASSERT_TRUE(log.append(step_report(3, 0.5)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("1", "2", "3"));
  EXPECT_THAT(contents(path), testing::HasSubstr("\"loss\":0.5"));
}

TEST(MetricsLog, keeps_the_old_file_when_it_cannot_be_replaced) {
  const TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n");
  std::filesystem::create_directory(folder.file(".tmp-metrics.jsonl"));  // where the new one would be written
  const auto log = try_to_open(path, 1);
  ASSERT_FALSE(log.ok());
  EXPECT_THAT(log.error().message, testing::HasSubstr(".tmp-metrics.jsonl"));
  EXPECT_EQ(contents(path), "{\"step\":1}\n");
}

TEST(MetricsLog, keeps_the_old_lines_whatever_call_fails_while_it_is_opened) {
  PosixFileSystem disk;
  bool opened = false;
  for (int n = 1; !opened; ++n) {
    ASSERT_LT(n, 100);
    const TemporaryFolder folder;
    const std::string path = folder.write("metrics.jsonl", "{\"step\":1}\n");
    FaultFileSystem fs(disk, FaultFileSystem::Fault::kFailOnce, n, ENOSPC);
    const auto log = MetricsLog::open(fs, path, 1, folder.file(".tmp-lines"));
    EXPECT_EQ(log.ok(), fs.failures() == 0) << testing::PrintToString(fs.log());
    EXPECT_EQ(contents(path), "{\"step\":1}\n");
    opened = fs.failures() == 0;
  }
}

TEST(MetricsLog, says_once_that_a_line_cannot_be_written_and_writes_the_next_ones) {
  PosixFileSystem disk;
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  FaultFileSystem counted(disk, FaultFileSystem::Fault::kNone, 0);
  ASSERT_TRUE(MetricsLog::open(counted, path, 0, folder.file(".tmp-lines")).ok());
  // The next call after those of the opening is the write of the first line.
  FaultFileSystem fs(disk, FaultFileSystem::Fault::kFailOnce, counted.calls() + 1, EIO);
  auto log = MetricsLog::open(fs, path, 0, folder.file(".tmp-lines"));
  ASSERT_TRUE(log.ok()) << log.error().message;
  const Status lost = log->append(step_report(1));
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(lost.error().message, testing::HasSubstr("metrics.jsonl: write"));
  ASSERT_TRUE(log->append(step_report(2)).ok());
  EXPECT_THAT(steps_in(path), testing::ElementsAre("2"));
}

TEST(MetricsLog, names_the_path_it_cannot_open) {
  const TemporaryFolder folder;
  const auto log = try_to_open(folder.file("missing/metrics.jsonl"), 0);
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.error().message.find("missing/metrics.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
