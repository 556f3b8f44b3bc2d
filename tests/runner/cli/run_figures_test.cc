#include "runner/cli/run_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr const char* kLines =
    "{\"step\":1,\"epoch\":0,\"loss\":1.5,\"samples\":64,\"time\":100.0}\n"
    "{\"step\":10,\"epoch\":1,\"loss\":null,\"samples\":500,\"time\":104.0}\n"
    "{\"step\":10,\"epoch\":2,\"evaluation\":true,\"z_first\":0.25,\"a_second\":null,\"time\":105.0}\n"
    "nonsense\n[1]\n{\"step\":15}\n"
    "{\"step\":20,\"epoch\":2,\"loss\":0.5,\"samples\":300,\"time\":110.0}\n"
    "{\"step\":30,\"ep";

TEST(RunFigures, are_the_lines_of_steps_and_of_evaluations_in_the_file_s_order) {
  const RunFigures figures = parse_run_figures(kLines);
  ASSERT_EQ(figures.steps.size(), 3U);
  EXPECT_EQ(figures.steps[0].step, 1);
  EXPECT_DOUBLE_EQ(figures.steps[0].loss, 1.5);
  EXPECT_TRUE(std::isnan(figures.steps[1].loss));
  EXPECT_EQ(figures.steps[2].samples, 300);
  ASSERT_EQ(figures.evaluations.size(), 1U);
  EXPECT_EQ(figures.evaluations[0].epoch, 2);
  EXPECT_THAT(figures.evaluations[0].figures, ElementsAre(Pair("z_first", 0.25), Pair("a_second", testing::IsNan())));
}

TEST(RunFigures, of_an_empty_or_foreign_file_are_none) {
  EXPECT_TRUE(parse_run_figures("").steps.empty());
  EXPECT_TRUE(parse_run_figures("\n\n{}\nnull\n").steps.empty());
}

TEST(RunFigures, of_a_folder_without_the_file_name_it) {
  const TemporaryFolder folder;
  const Result<RunFigures> figures = read_run_figures(disk(), folder.path());
  ASSERT_FALSE(figures.ok());
  EXPECT_THAT(figures.error().message, testing::HasSubstr(folder.file("metrics.jsonl")));
}

TEST(Throughput, counts_samples_and_time_after_the_warm_up) {
  const RunFigures figures = parse_run_figures(kLines);
  EXPECT_DOUBLE_EQ(*samples_per_second_after(figures, 1), 80.0);
  EXPECT_DOUBLE_EQ(*samples_per_second_after(figures, 2), 50.0);
}

TEST(Throughput, of_too_few_lines_or_without_samples_is_an_error) {
  EXPECT_FALSE(samples_per_second_after(parse_run_figures(kLines), 20).ok());
  EXPECT_FALSE(samples_per_second_after({}, 1).ok());
  EXPECT_FALSE(samples_per_second_after({.steps = {{.step = 1, .time = 1.0}, {.step = 2, .time = 2.0}}}, 1).ok());
}

}  // namespace
}  // namespace lockstep
