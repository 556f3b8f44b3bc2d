#include "runner/cli/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/config/flag_table.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const WorkloadFlags& first_workload() { return all_workload_flags().front(); }

// The configuration of the first workload, on its demo's generated data, with these flags.
Result<RunConfig> config_with(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments{first_workload().name, "--" + first_workload().demo.data_flag,
                                     first_workload().demo.generated};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return parse_run_config(arguments, all_workload_flags());
}

TEST(Scaling, runs_the_ranks_of_the_list_in_rising_order_and_each_once) {
  EXPECT_THAT(*parse_ranks("1"), ElementsAre(1));
  EXPECT_THAT(*parse_ranks("4,1,2,4"), ElementsAre(1, 2, 4));
}

TEST(Scaling, a_list_of_ranks_that_is_none_is_named_with_what_was_expected) {
  for (const char* text : {"", "two", "1,", "1,,2", "0", "-1", "1.5", "1 2", "5000", "99999999999999999999"}) {
    const Result<std::vector<int>> ranks = parse_ranks(text);
    ASSERT_FALSE(ranks.ok()) << text;
    EXPECT_THAT(ranks.error().message, HasSubstr("--ranks: found"));
    EXPECT_THAT(ranks.error().message, HasSubstr("as 1,2,4"));
  }
}

TEST(Scaling, doubles_the_ranks_up_to_the_gpus_or_else_the_cores) {
  EXPECT_THAT(default_ranks(0, 1), ElementsAre(1));
  EXPECT_THAT(default_ranks(0, 2), ElementsAre(1, 2));
  EXPECT_THAT(default_ranks(0, 6), ElementsAre(1, 2, 4));
  EXPECT_THAT(default_ranks(8, 64), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(default_ranks(1, 64), ElementsAre(1));
}

TEST(Scaling, gives_each_rank_the_share_of_the_cores_that_it_has_among_the_most_ranks) {
  EXPECT_EQ(threads_per_rank(8, {1, 2, 4}), 2);
  EXPECT_EQ(threads_per_rank(2, {1}), 2);
  EXPECT_EQ(threads_per_rank(2, {1, 8}), 1);
}

TEST(Scaling, compares_each_row_with_the_first_one) {
  const ScalingRow one = scaling_row(1, 1000.0, std::nullopt);
  EXPECT_DOUBLE_EQ(one.speedup, 1.0);
  EXPECT_DOUBLE_EQ(one.efficiency, 1.0);
  const ScalingRow four = scaling_row(4, 3000.0, one);
  EXPECT_DOUBLE_EQ(four.speedup, 3.0);
  EXPECT_DOUBLE_EQ(four.efficiency, 0.75);
  const ScalingRow eight_over_two = scaling_row(8, 3000.0, scaling_row(2, 1000.0, std::nullopt));
  EXPECT_DOUBLE_EQ(eight_over_two.speedup, 3.0);
  EXPECT_DOUBLE_EQ(eight_over_two.efficiency, 0.75);
}

TEST(Scaling, has_a_table_whose_columns_stand_below_each_other) {
  EXPECT_EQ(scaling_heading(), " ranks     samples/s   speed-up   efficiency\n");
  EXPECT_EQ(scaling_line({.ranks = 1, .samples_per_second = 1823.4}), "     1          1823      1.00x        100 %\n");
  EXPECT_EQ(
      scaling_line({.ranks = 16, .samples_per_second = 9.5, .speedup = 1.5, .efficiency = 0.094, .shares_cores = true}),
      "    16*         9.50      1.50x          9 %\n");
}

TEST(Scaling, refuses_flags_that_say_how_many_ranks_run_where_or_leave_no_steps) {
  for (const char* flag : {"--nproc=2", "--multi_gpu=false", "--local_nodes=2", "--nnodes=2", "--inference_only"}) {
    const Result<RunConfig> config = config_with({flag});
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Status checked = check_bench_flags(*config);
    ASSERT_FALSE(checked.ok()) << flag;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_THAT(checked.error().message, HasSubstr(name + " cannot be used with bench scaling: "));
  }
  EXPECT_TRUE(check_bench_flags(*config_with({"--batch_size=64"})).ok());
}

TEST(Scaling, names_the_given_flags_that_have_no_effect) {
  EXPECT_EQ(flags_without_effect(*config_with({"--lr=0.1"})), "");
  EXPECT_EQ(flags_without_effect(*config_with({"--train_dir=x", "--num_epochs=5"})), "--num_epochs, --train_dir");
}

// That of a run of the bench, with 15 steps.
Result<RunConfig> config_of_run(const std::vector<std::string>& user, const WorkloadFlags& workload) {
  TRY_ASSIGN(RunConfig config, parse_run_config(user, all_workload_flags()));
  const RunWithData run{.arguments = user, .config = std::move(config), .data_title = "", .remark = ""};
  return parse_run_config(arguments_of({.ranks = 4, .folder = "/scratch/run-4", .on_cpu = true, .threads = 2},
                                       {.ranks = {1, 4}, .warmup_steps = 5, .steps = 10}, run, workload),
                          all_workload_flags());
}

TEST(Scaling, starts_runs_of_every_preset_and_in_its_own_folder_by_whichever_name_the_user_gives_one) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const std::vector<std::string> user{workload.name, "--" + workload.demo.data_flag, workload.demo.generated};
    for (const Preset& preset : workload.presets) {
      std::vector<std::string> words = user;
      words.insert(words.end(), {"--" + workload.preset_flag, preset.name});
      const Result<RunConfig> config = config_of_run(words, workload);
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_EQ(config->training.max_steps, 15);
    }
    for (const Flag& flag : flag_table(&workload)) {
      if (!flag.is_train_dir) continue;
      std::vector<std::string> words = user;
      words.push_back("--" + flag.name + "=mine");
      const Result<RunConfig> config = config_of_run(words, workload);
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_EQ(output_folder(*config, "", ""), "/scratch/run-4");
      EXPECT_EQ(flags_without_effect(*parse_run_config(words, all_workload_flags())), "--" + flag.name);
    }
  }
}

// Of every workload: its own flags for a bench exist, and ours win over the user's.
TEST(Scaling, starts_runs_whose_flags_are_known_and_that_take_as_many_steps_as_asked_for) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const std::vector<std::string> user{workload.name,           "--" + workload.demo.data_flag,
                                        workload.demo.generated, "--num_epochs=3",
                                        "--train_dir=mine",      "--eval_every=1"};
    const Result<RunConfig> config = config_of_run(user, workload);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->launch.nproc, 4);
    EXPECT_EQ(config->launch.threads, 2);
    EXPECT_EQ(config->launch.device, DeviceChoice::kCpu);
    EXPECT_EQ(config->launch.max_restarts, 0);
    EXPECT_EQ(config->training.max_steps, 15);
    EXPECT_GE(config->training.num_epochs, 15);
    EXPECT_EQ(config->training.log_every, 5);
    EXPECT_EQ(config->training.eval_every, 0);
    const Result<RunConfig> users = parse_run_config(user, all_workload_flags());
    ASSERT_TRUE(users.ok()) << users.error().message;
    EXPECT_EQ(config->training.batch_size, users->training.batch_size) << "the global batch is the user's";
    EXPECT_EQ(output_folder(*config, "", ""), "/scratch/run-4");
  }
}

}  // namespace
}  // namespace lockstep
