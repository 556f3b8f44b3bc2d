#include "runner/agent/progress_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

ProgressReport parsed(const std::string& body) {
  const Result<ProgressReport> report = parse_progress_report(body);
  EXPECT_TRUE(report.ok()) << report.error().message;
  return report.ok() ? *report : ProgressReport{};
}

TEST(ProgressReport, is_what_transformers_says) {
  const ProgressReport report = parsed(R"({"trainerStatus": {"lastUpdatedTime": "2026-11-29T02:00:00+00:00",
      "progressPercentage": 42, "estimatedRemainingSeconds": 190, "metrics": [{"name": "loss", "value": "0.5"},
      {"name": "grad_norm", "value": "1.25"}, {"name": "learning_rate", "value": "5e-05"},
      {"name": "epoch", "value": "1.84"}, {"name": "eval_loss", "value": "0.75"}, {"name": "current_step", "value": "84"},
      {"name": "total_steps", "value": "200"}, {"name": "current_epoch", "value": "1.84"}]}})");
  EXPECT_EQ(report.step, 84);
  EXPECT_EQ(report.total_steps, 200);
  EXPECT_EQ(report.epoch, 1);
  EXPECT_EQ(report.loss, 0.5);
  EXPECT_EQ(report.grad_norm, 1.25);
  EXPECT_EQ(report.lr, 5e-05);
  EXPECT_EQ(report.eta_seconds, 190);
  EXPECT_THAT(report.others, ElementsAre(Pair("eval_loss", 0.75)));
}

TEST(ProgressReport, leaves_out_what_is_no_number) {
  const ProgressReport report = parsed(R"({"trainerStatus": {"estimatedRemainingSeconds": -5, "metrics": [
      {"name": "loss", "value": "nan"}, {"name": "step", "value": "1e300"}, {"name": "total", "value": "-3"},
      {"name": "note", "value": "good"}, {"name": "", "value": "1"}, {"value": "1"}, {"name": "x"}, 7, null,
      {"name": 3, "value": "1"}, {"name": "accuracy", "value": 0.5}, {"name": "inf", "value": "inf"}]}})");
  EXPECT_FALSE(report.step);
  EXPECT_FALSE(report.total_steps);
  EXPECT_TRUE(std::isnan(report.loss));
  EXPECT_LT(report.eta_seconds, 0);
  EXPECT_THAT(report.others, ElementsAre(Pair("accuracy", 0.5)));
}

TEST(ProgressReport, keeps_some_figures) {
  std::string metrics;
  for (int i = 0; i < 200; ++i) {
    metrics += (i > 0 ? "," : "") + std::string(R"({"name": "m)") + std::to_string(i) + R"(", "value": "1"})";
  }
  metrics += R"(,{"name": ")" + std::string(kReportedNameBytesMax + 1, 'x') + R"(", "value": "1"})";
  EXPECT_EQ(parsed(R"({"trainerStatus": {"metrics": [)" + metrics + "]}}").others.size(), kReportedFiguresMax);
}

TEST(ProgressReport, is_refused_with_what_was_expected) {
  for (const std::string& body : {std::string("step 3"), std::string("[]"), std::string("{}"), std::string(),
                                  std::string(R"({"trainerStatus": 3})"), std::string(R"({"trainerStatus": {})")}) {
    const Result<ProgressReport> report = parse_progress_report(body);
    ASSERT_FALSE(report.ok()) << body;
    EXPECT_EQ(report.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(report.error().message, HasSubstr("expected {\"trainerStatus\"")) << body;
  }
  EXPECT_FALSE(parse_progress_report(std::string(kProgressReportBytesMax + 1, ' ')).ok());
  EXPECT_FALSE(parse_progress_report("{\"trainerStatus\": {\"a\": [" + std::string(9000, ',') + "]}}").ok());
}

TEST(ProgressReport, adds_to_what_earlier_ones_said_but_for_the_time_left) {
  ProgressReport known = parsed(R"({"trainerStatus": {"estimatedRemainingSeconds": 9, "metrics": [
      {"name": "step", "value": "4"}, {"name": "loss", "value": "2"}, {"name": "accuracy", "value": "0.5"}]}})");
  update(known, parsed(R"({"trainerStatus": {"metrics": [{"name": "step", "value": "5"}]}})"));
  EXPECT_EQ(known.step, 5);
  EXPECT_EQ(known.loss, 2);
  EXPECT_LT(known.eta_seconds, 0);
  EXPECT_THAT(known.others, ElementsAre(Pair("accuracy", 0.5)));
}

}  // namespace
}  // namespace lockstep
