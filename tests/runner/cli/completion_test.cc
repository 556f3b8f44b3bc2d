#include "runner/cli/completion.h"
#include "runner/models/workload_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runner/config/run_config.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<std::string> after(const std::vector<std::string>& words, const std::string& current) {
  return complete(lockstep_shape(), words, current);
}

TEST(Completion, begins_with_the_commands) {
  EXPECT_EQ(after({}, ""), command_names());
  EXPECT_THAT(after({}, "c"), ElementsAre("ckpt", "chaos", "completion"));
  EXPECT_THAT(after({}, "x"), ElementsAre());
}

TEST(Completion, knows_workloads_and_subcommands) {
  EXPECT_THAT(after({"run"}, ""), Contains("sasrec"));
  EXPECT_THAT(after({"demo"}, ""), Contains("sasrec"));
  EXPECT_THAT(after({"bench"}, ""), ElementsAre("scaling"));
  EXPECT_THAT(after({"bench", "scaling"}, ""), Contains("sasrec"));
  EXPECT_THAT(after({"ckpt"}, ""), ElementsAre("ls", "verify", "export", "prune"));
  EXPECT_THAT(after({"chaos"}, "kill-"), ElementsAre("kill-rank", "kill-agent"));
  EXPECT_THAT(after({"completion"}, ""), ElementsAre("bash", "zsh", "fish"));
}

TEST(Completion, flags_are_those_of_the_command) {
  EXPECT_THAT(after({"ckpt", "prune"}, "--keep"), IsSupersetOf({"--keep_last", "--keep_every"}));
  EXPECT_THAT(after({"ckpt", "ls"}, "--keep"), ElementsAre());
  EXPECT_THAT(after({"chaos", "kill-agent"}, "--"), Not(Contains("--rank")));
  EXPECT_THAT(after({"doctor"}, "--"), IsSupersetOf({"--dir", "--json", "--coordinator"}));
  EXPECT_THAT(after({"demo", "sasrec"}, "--max"), Contains("--maxlen"));
  EXPECT_THAT(after({"bench", "scaling", "sasrec"}, "--"), IsSupersetOf({"--ranks", "--json", "--maxlen"}));
}

TEST(Completion, knows_the_tasks_of_a_workload_and_their_flags) {
  EXPECT_THAT(after({}, "sas"), ElementsAre("sasrec"));
  EXPECT_THAT(after({"sasrec"}, ""), ElementsAre("recommend"));
  EXPECT_THAT(after({"sasrec", "recommend"}, "--exclude"), ElementsAre("--exclude_seen"));
  EXPECT_THAT(after({"sasrec", "recommend"}, "--"), Not(Contains("--lr")));
  EXPECT_THAT(after({"sasrec", "recommend", "--format"}, ""), ElementsAre("jsonl", "tsv"));
}

TEST(Completion, flags_of_a_workload_may_stand_before_it_too) {
  EXPECT_THAT(after({"run", "sasrec"}, "--grad_"), ElementsAre("--grad_accum_steps"));
  EXPECT_THAT(after({"run"}, "--grad_"), ElementsAre("--grad_accum_steps"));
  EXPECT_THAT(after({"run", "--lr", "0.1"}, ""), Contains("sasrec"));
}

TEST(Completion, a_flag_is_spelt_as_it_was_begun) {
  EXPECT_THAT(after({"run", "sasrec"}, "--batch_s"), ElementsAre("--batch_size", "--batch_scope"));
  EXPECT_THAT(after({"run", "sasrec"}, "--batch-s"), ElementsAre("--batch-size", "--batch-scope"));
}

TEST(Completion, values_are_words_where_they_are_known) {
  EXPECT_THAT(after({"run", "sasrec", "--backend"}, ""), ElementsAre("auto", "nccl", "gloo"));
  EXPECT_THAT(after({"run", "sasrec", "--lr-schedule"}, "co"), ElementsAre("constant", "cosine"));
  EXPECT_THAT(after({"run", "sasrec"}, "--backend=g"), ElementsAre("--backend=gloo"));
  EXPECT_THAT(after({"ckpt", "export", "--format"}, ""), ElementsAre("safetensors", "pt"));
  // The shell completes paths where nothing is known.
  EXPECT_THAT(after({"run", "sasrec", "--dataset"}, "da"), ElementsAre());
  EXPECT_THAT(after({"run", "sasrec"}, "--dataset=da"), ElementsAre());
  EXPECT_THAT(after({"ckpt", "ls"}, "x"), ElementsAre());
}

TEST(Completion, a_flag_without_a_value_takes_none) {
  EXPECT_THAT(after({"run", "--deterministic"}, "sas"), ElementsAre("sasrec"));
  EXPECT_THAT(after({"ckpt", "export", "--ema"}, "--out"), ElementsAre("--output"));
}

// What is offered is what the parser knows.
TEST(Completion, no_flag_of_run_is_unknown_to_its_parser) {
  const std::vector<std::string> names = after({"run", "sasrec"}, "-");
  EXPECT_GT(names.size(), 80U);
  for (const std::string& name : names) {
    if (name == "--help" || name == "-h") {
      EXPECT_TRUE(wants_help({"sasrec", name}));
      continue;
    }
    const Result<RunConfig> config = parse_run_config({"sasrec", name + "=?"}, all_workload_flags());
    if (config.ok()) continue;
    EXPECT_EQ(config.error().message.find("unknown"), std::string::npos) << config.error().message;
  }
}

TEST(Completion, every_flag_in_the_help_of_run_is_offered) {
  const std::vector<std::string> names = after({"run", "sasrec"}, "--");
  std::istringstream lines(run_help("sasrec", all_workload_flags()));
  int flags = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word && word.starts_with("--");) {
      if (word.ends_with(",")) word.pop_back();
      ++flags;
      EXPECT_THAT(names, Contains(word));
    }
  }
  EXPECT_GT(flags, 70);
}

TEST(Completion, hostile_words_complete_to_nothing) {
  EXPECT_THAT(after({"--", "-", "=", "", "run"}, "--="), ElementsAre());
  EXPECT_THAT(after({"no such"}, "\xff"), ElementsAre());
  EXPECT_THAT(after({"version"}, ""), ElementsAre());
}

TEST(Completion, only_shells_that_we_know_get_a_script) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(completion_command({"bash"}, out, err), 0);
  EXPECT_NE(out.str().find("complete -o default"), std::string::npos);
  EXPECT_EQ(completion_command({"bsh"}, out, err), 2);
  EXPECT_NE(err.str().find("found \"bsh\", expected one of bash, zsh, fish; did you mean \"bash\"?"), std::string::npos)
      << err.str();
  EXPECT_EQ(completion_command({}, out, err), 2);
  EXPECT_EQ(completion_command({"bash", "zsh"}, out, err), 2);
}

}  // namespace
}  // namespace lockstep
