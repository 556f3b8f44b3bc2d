// Every folder of tests/golden/operator is a case: observed.yaml → plan.yaml.
//
// `train_plan_golden_test update` writes plan.yaml of all cases anew; the diff is for a person to review.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "operator/train/plan.h"
#include "tests/operator/train/golden_case.h"
#include "tests/operator/train/golden_plan_text.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNote =
    "# Written by `train_plan_golden_test update` and reviewed by a person. See ../README.md.\n";

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

Result<std::string> plan_of(const fs::path& folder) {
  TRY_ASSIGN(const GoldenCase golden, read_golden_case(read_file(folder / "observed.yaml"), folder.filename()));
  return kNote + plan_text(make_plan(golden.observed), golden.observed, golden.shows_objects);
}

class Golden : public testing::TestWithParam<fs::path> {};

TEST_P(Golden, plan_is_the_reviewed_one) {
  const Result<std::string> plan = plan_of(GetParam());
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(*plan, read_file(GetParam() / "plan.yaml")) << GetParam();
}

// Carrying out the same plan's status and looking again decides nothing new, or a job would never come to rest.
TEST_P(Golden, decides_the_same_again_once_the_status_is_written) {
  Result<GoldenCase> golden = read_golden_case(read_file(GetParam() / "observed.yaml"), GetParam().filename());
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  Observed& o = golden->observed;
  Plan first = make_plan(o);
  if (!first.status) return;
  for (int pass = 0; pass < 3 && first.status; ++pass) {
    o.job.status = *first.status;
    first = make_plan(o);
  }
  EXPECT_FALSE(first.status.has_value()) << plan_text(first, o, false);
  EXPECT_TRUE(first.events.empty());
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(folders()), [](const auto& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

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
