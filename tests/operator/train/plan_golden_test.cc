// Every folder of tests/golden/operator is a case: observed.yaml → plan.yaml.
//
// `train_plan_golden_test update` writes plan.yaml of all cases anew; the diff is for a person to review.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "operator/train/plan.h"
#include "runner/base/check.h"
#include "tests/operator/train/golden_case.h"
#include "tests/operator/train/golden_plan_text.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNote =
    "# Written by `train_plan_golden_test update` and reviewed by a person. See ../README.md.\n";

// Its plan is shown in full, those of the others by what differs from it.
constexpr const char* kUsualCase = "a-valid-job-gets-its-service-and-its-pods";

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> folders() {
  std::vector<fs::path> list;
  for (const auto& entry : fs::directory_iterator(LOCKSTEP_GOLDEN_DIR)) {
    if (entry.is_directory()) list.push_back(entry.path());
  }
  std::sort(list.begin(), list.end());
  return list;
}

const UsualPlan& usual_plan() {
  static const UsualPlan plan = [] {
    const Result<GoldenCase> golden = read_golden_case("after: nothing\n", kUsualCase);
    LOCKSTEP_CHECK(golden.ok(), golden.ok() ? "" : golden.error().message.c_str());
    return UsualPlan(make_plan(golden->observed), golden->observed);
  }();
  return plan;
}

Result<std::string> plan_of(const fs::path& folder) {
  TRY_ASSIGN(const GoldenCase golden, read_golden_case(read_file(folder / "observed.yaml"), folder.filename()));
  return kNote + plan_text(make_plan(golden.observed), golden.observed, golden.shows_objects,
                           folder.filename() == kUsualCase ? UsualPlan() : usual_plan());
}

class Golden : public testing::TestWithParam<fs::path> {};

TEST_P(Golden, plan_is_the_reviewed_one) {
  const Result<std::string> plan = plan_of(GetParam());
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(*plan, read_file(GetParam() / "plan.yaml")) << GetParam();
}

std::vector<std::string> actions_of(const Plan& plan) {
  std::vector<std::string> words;
  for (const Action& action : plan.actions) words.push_back(words_of(action));
  return words;
}

// A second plan from the status that the first one wrote decides nothing new, else the operator would never stop
// writing.
TEST_P(Golden, decides_the_same_again_once_the_status_is_written) {
  Result<GoldenCase> golden = read_golden_case(read_file(GetParam() / "observed.yaml"), GetParam().filename());
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  Observed& o = golden->observed;
  const Plan first = make_plan(o);
  if (!first.status) return;
  // The operator's own status write starts no new pass, so this one write must contain everything.
  o.job.status = *first.status;
  const Plan second = make_plan(o);
  EXPECT_FALSE(second.status.has_value()) << plan_text(second, o, false, {});
  EXPECT_TRUE(second.events.empty());
  EXPECT_EQ(actions_of(second), actions_of(first));
  if (second.requeue_at) {
    ASSERT_TRUE(first.requeue_at.has_value());
    EXPECT_LE(*first.requeue_at, *second.requeue_at);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(folders()), [](const auto& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

// A job that trains, whose newest report says `step`, read `later` seconds after the status was written.
class Figures : public testing::Test {
 protected:
  void SetUp() override {
    Result<GoldenCase> golden = read_golden_case("after: all is well\nreport: {secondsAgo: 0}\n", "figures");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    o_ = std::move(golden->observed);
    const Plan first = make_plan(o_);
    ASSERT_TRUE(first.status && first.status->progress);
    EXPECT_EQ(first.status->progress->step, 120) << "the first figures are written at once";
    o_.job.status = *first.status;
  }

  Plan plan_later(api::UnixSeconds later, int64_t step) {
    Observed o = o_;
    o.now += later;
    o.report->read_at = o.now;
    o.report->progress->step = step;
    return make_plan(o);
  }

  Observed o_;
};

TEST_F(Figures, that_only_go_on_are_written_every_30_s) {
  EXPECT_EQ(plan_later(10, 125).status_wait_seconds, 20);
  EXPECT_EQ(plan_later(29, 130).status_wait_seconds, 1);
  const Plan due = plan_later(30, 130);
  ASSERT_TRUE(due.status.has_value());
  EXPECT_EQ(due.status_wait_seconds, 0);
  EXPECT_EQ(due.status->progress->step, 130);
}

TEST_F(Figures, are_written_along_with_anything_else) {
  o_.report->process_restarts = 1;
  const Plan plan = plan_later(10, 125);
  ASSERT_TRUE(plan.status.has_value());
  EXPECT_EQ(plan.status_wait_seconds, 0);
  EXPECT_EQ(plan.status->progress->step, 125);
  EXPECT_EQ(plan.status->restarts.process, 1);
}

TEST_F(Figures, of_a_new_checkpoint_are_written_at_once) {
  o_.report->checkpoint_step = 124;
  const Plan plan = plan_later(10, 125);
  ASSERT_TRUE(plan.status.has_value());
  EXPECT_EQ(plan.status_wait_seconds, 0);
  EXPECT_EQ(plan.status->progress->last_checkpoint_step, 124);
}

TEST_F(Figures, are_written_as_often_as_the_settings_say) {
  o_.settings.progress_seconds = 0;
  EXPECT_EQ(plan_later(1, 121).status_wait_seconds, 0);
  o_.settings.progress_seconds = 300;
  EXPECT_EQ(plan_later(200, 125).status_wait_seconds, 100);
}

// The status shows the first refusal, that of the NetworkPolicy. GangScheduled tells of its own.
TEST(GangScheduled, names_the_refusal_of_the_pod_group) {
  const std::string two_refusals = R"(
job: {spec: {networkPolicy: IntraJob, scheduling: {gang: Native}}}
kinds: {podgroups.scheduling.k8s.io: {version: v1beta1, kind: PodGroup}}
refused:
  NetworkPolicy sasrec: {kind: Refused, reason: CreateRefused, message: "no policies here", secondsAgo: 1}
  PodGroup sasrec-11111111-0: {kind: Refused, reason: QuotaExceeded, message: "no groups here", secondsAgo: 1}
)";
  const Result<GoldenCase> golden = read_golden_case(two_refusals, "two refusals");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  const Plan plan = make_plan(golden->observed);
  ASSERT_TRUE(plan.status.has_value());
  EXPECT_EQ(plan.status->reason, "CreateRefused");
  const api::Condition* const gang = plan.status->conditions.find(api::condition::kGangScheduled);
  ASSERT_NE(gang, nullptr);
  EXPECT_EQ(gang->reason, "QuotaExceeded");
  EXPECT_EQ(gang->message, "The gang waits: no groups here.");
}

TEST(GoldenCases, are_as_many_as_the_policies_need) { EXPECT_GE(folders().size(), 60U); }

int update() {
  for (const fs::path& folder : folders()) {
    const Result<std::string> plan = plan_of(folder);
    if (!plan.ok()) {
      std::cerr << folder.filename() << ": " << plan.error().message << '\n';
      return 1;
    }
    std::ofstream(folder / "plan.yaml") << *plan;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::train

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "update") return lockstep::train::update();
  return RUN_ALL_TESTS();
}
