#include "runner/config/check_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Case {
  std::vector<std::string> arguments;
  std::optional<size_t> index;
  std::string says;
};

TEST(CheckArguments, names_the_argument_that_is_wrong) {
  const std::vector<Case> cases = {
      {{"run", "sasrec", "--datast", "x"}, 2, "unknown flag --datast; did you mean --dataset?"},
      {{"run", "sasrec", "--dataset", "x", "--lr-decay-rte=3"}, 4, "did you mean --lr_decay_rate?"},
      {{"run", "sasrec", "--dataset", "x", "--lr", "fast"}, 4, "--lr: found \"fast\""},
      {{"run", "sasrec", "--lr", "1", "--dataset", "x", "--lr=2x"}, 6, "--lr: found \"2x\""},
      {{"run", "sasrek", "--dataset", "x"}, 1, "unknown workload \"sasrek\"; did you mean \"sasrec\"?"},
      {{"run", "sasrec", "--dataset", "x", "yes"}, 4, "unexpected argument \"yes\""},
      {{"run", "sasrec", "--dataset"}, 2, "--dataset needs a value"},
      {{"run", "sasrec"}, std::nullopt, "--dataset is required"},
      {{"run"}, std::nullopt, "no workload given"},
      {{"rum", "sasrec"}, 0, "did you mean run?"},
      {{"sasrec", "--dataset", "x"}, 0, "is \"sasrec\", expected run WORKLOAD [flags]"},
      {{"run", "sasrec", "--dataset", "x", "--hidden_units", "50", "--num_heads=3"}, 4, "is not divisible by"},
  };
  for (const Case& one : cases) {
    const std::optional<ArgumentProblem> problem = check_arguments({one.arguments}, all_workload_flags());
    ASSERT_TRUE(problem.has_value()) << one.says;
    EXPECT_EQ(problem->index, one.index) << problem->message;
    EXPECT_THAT(problem->message, HasSubstr(one.says));
  }
}

TEST(CheckArguments, accepts_what_a_run_would_begin_with) {
  EXPECT_FALSE(
      check_arguments({{"run", "sasrec", "--dataset", "/data/x.inter", "--no_full_ranking"}, 4}, all_workload_flags())
          .has_value());
  EXPECT_FALSE(check_arguments({}, all_workload_flags()).has_value());
}

TEST(CheckArguments, leaves_a_file_of_flags_to_the_pod_that_has_it) {
  EXPECT_FALSE(check_arguments({{"run", "sasrec", "--config", "/etc/nowhere.yaml"}}, all_workload_flags()).has_value());
  EXPECT_FALSE(check_arguments({{"run", "my_own_model", "--plugin", "/etc/nowhere.so", "--x=1"}}, all_workload_flags())
                   .has_value());
}

TEST(CheckArguments, a_batch_is_shared_by_all_ranks) {
  const std::vector<std::string> small = {"run", "sasrec", "--batch-size", "8", "--dataset", "x"};
  EXPECT_FALSE(check_arguments({small, 8}, all_workload_flags()).has_value());
  const std::optional<ArgumentProblem> problem = check_arguments({small, 9}, all_workload_flags());
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->index, 2U);
  EXPECT_THAT(problem->message, HasSubstr("--batch_size 8 is smaller than the 9 ranks"));
  EXPECT_FALSE(
      check_arguments({{"run", "sasrec", "--batch_size", "8", "--batch_scope", "per_device", "--dataset", "x"}, 9},
                      all_workload_flags())
          .has_value());
}

TEST(CheckArguments, asks_the_agent_about_its_environment) {
  const auto problem = [](const Environment& environment, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"run", "sasrec", "--dataset", "x"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return check_arguments({arguments, 1, environment}, all_workload_flags());
  };
  const Environment slurm = {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}};
  ASSERT_TRUE(problem(slurm).has_value());
  EXPECT_TRUE(problem(slurm)->is_of_environment);
  EXPECT_THAT(problem(slurm)->message, HasSubstr("SLURM_NTASKS=8"));
  EXPECT_FALSE(problem(slurm, {"--nnodes", "8"}).has_value());  // one agent per task
  EXPECT_TRUE(problem({{"RANK", "0"}}, {"--config", "/etc/nowhere.yaml"}).has_value());
  EXPECT_FALSE(problem({{"PATH", "/bin"}}).has_value());
}

}  // namespace
}  // namespace lockstep
