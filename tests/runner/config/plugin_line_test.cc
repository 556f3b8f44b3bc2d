#include "runner/config/plugin_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/config/flag_table.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(PluginOf, finds_the_last_one_in_either_form) {
  EXPECT_EQ(*plugin_of({}), "");
  EXPECT_EQ(*plugin_of({"x", "--lr", "0.1"}), "");
  EXPECT_EQ(*plugin_of({"x", "--plugin", "a.so"}), "a.so");
  EXPECT_EQ(*plugin_of({"--plugin=a.so", "x", "--plugin", "b.so"}), "b.so");
  EXPECT_EQ(*plugin_of({"x", "--plugins=a.so"}), "");
}

TEST(PluginOf, refuses_one_without_a_value) {
  const std::vector<std::string> lines[] = {
      {"x", "--plugin"}, {"x", "--plugin="}, {"x", "--plugin", "--lr=1"}, {"x", "--plugin", ""}};
  for (const std::vector<std::string>& line : lines) {
    EXPECT_THAT(plugin_of(line).error().message, HasSubstr("--plugin needs a value: the file of a model of your own"));
  }
}

// Only functions are lost on the way.
TEST(DescribedWorkload, has_the_flags_and_defaults_of_the_one_that_was_described) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    SCOPED_TRACE(workload.name);
    const Json description = *parse_json(dump_line(describe_workload(workload, "some-data")), "test");
    const Result<WorkloadFlags> found = described_workload(description);
    ASSERT_TRUE(found.ok()) << found.error().message;
    RunConfig expected_config;
    RunConfig config;
    workload.set_defaults(expected_config);
    found->set_defaults(config);
    const std::vector<Flag> expected = flag_table(&workload);
    const std::vector<Flag> table = flag_table(&*found);
    ASSERT_EQ(table.size(), expected.size());
    for (size_t i = 0; i < table.size(); ++i) {
      EXPECT_EQ(table[i].name, expected[i].name);
      EXPECT_EQ(table[i].aliases, expected[i].aliases);
      EXPECT_EQ(table[i].scope, expected[i].scope);
      EXPECT_EQ(table[i].is_bool, expected[i].is_bool);
      EXPECT_EQ(table[i].get(config), expected[i].get(expected_config)) << table[i].name;
    }
    EXPECT_EQ(found->data_name(config), "some-data");
    ASSERT_EQ(found->tasks.size(), workload.tasks.size());
    for (size_t t = 0; t < workload.tasks.size(); ++t) {
      EXPECT_EQ(task_flag_table(*found, found->tasks[t]).size(), task_flag_table(workload, workload.tasks[t]).size());
    }
    EXPECT_EQ(run_help(workload.name, {*found}), run_help(workload.name, {workload}));
  }
}

TEST(DescribedWorkload, keeps_what_is_given_as_text) {
  const WorkloadFlags& workload = all_workload_flags().front();
  const Result<WorkloadFlags> found = described_workload(describe_workload(workload, ""));
  const std::vector<std::string> line = {workload.name, "--hidden_units", "24", "--lr", "0.25"};
  const Result<RunConfig> config = parse_run_config(line, {*found});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(args_txt(*config), HasSubstr("hidden_units,24\n"));
  EXPECT_EQ(config->training.lr, 0.25);
}

TEST(DescribedWorkload, takes_the_run_s_folder_by_its_own_names_for_it) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const Result<WorkloadFlags> found = described_workload(describe_workload(workload, ""));
    for (const Flag& flag : flag_table(&workload)) {
      if (!flag.is_train_dir) continue;
      const Result<RunConfig> config = parse_run_config({workload.name, "--" + flag.name, "here/"}, {*found});
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_EQ(config->training.train_dir, "here/") << flag.name;
    }
  }
}

TEST(DescribedWorkload, refuses_a_description_that_is_not_whole) {
  Json description = describe_workload(all_workload_flags().front(), "");
  description.erase("flags");
  EXPECT_THAT(described_workload(description).error().message, HasSubstr("the description of a plugin's workload: "));
  description["flags"] = Json::array({{{"name", 1}}});
  EXPECT_FALSE(described_workload(description).ok());
}

TEST(Line, a_workload_that_is_not_known_may_be_a_plugins) {
  const Result<RunConfig> config = parse_run_config({"my_own_model"}, all_workload_flags());
  EXPECT_THAT(config.error().message, HasSubstr("a model of your own needs --plugin FILE.so"));
}

TEST(Line, the_nearest_name_of_a_misspelt_flag_may_be_plugin) {
  const std::string name = all_workload_flags().front().name;
  EXPECT_THAT(parse_run_config({name, "--plugn", "x"}, all_workload_flags()).error().message,
              HasSubstr("did you mean --plugin?"));
}

}  // namespace
}  // namespace lockstep
