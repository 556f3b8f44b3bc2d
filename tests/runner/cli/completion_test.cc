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

std::vector<std::string> texts(const Completion& completion) {
  std::vector<std::string> all;
  for (const Candidate& candidate : completion.candidates) all.push_back(candidate.text);
  return all;
}

Completion after(const std::vector<std::string>& words, const std::string& current) {
  return complete(lockstep_shape(), words, current);
}

TEST(Completion, begins_with_the_commands) {
  EXPECT_EQ(texts(after({}, "")), command_names());
  EXPECT_THAT(texts(after({}, "c")), ElementsAre("ckpt", "chaos", "completion"));
  EXPECT_THAT(texts(after({}, "x")), ElementsAre());
}

TEST(Completion, knows_workloads_and_subcommands) {
  EXPECT_THAT(texts(after({"run"}, "")), Contains("sasrec"));
  EXPECT_THAT(texts(after({"demo"}, "")), Contains("sasrec"));
  EXPECT_THAT(texts(after({"bench"}, "")), ElementsAre("scaling"));
  EXPECT_THAT(texts(after({"bench", "scaling"}, "")), Contains("sasrec"));
  EXPECT_THAT(texts(after({"ckpt"}, "")), ElementsAre("ls", "verify", "export", "prune"));
  EXPECT_THAT(texts(after({"chaos"}, "kill-")), ElementsAre("kill-rank", "kill-agent"));
  EXPECT_THAT(texts(after({"completion"}, "")), ElementsAre("bash", "zsh", "fish"));
}

TEST(Completion, flags_are_those_of_the_command) {
  EXPECT_THAT(texts(after({"ckpt", "prune"}, "--keep")), IsSupersetOf({"--keep_last", "--keep_every"}));
  EXPECT_THAT(texts(after({"ckpt", "ls"}, "--keep")), ElementsAre());
  EXPECT_THAT(texts(after({"chaos", "kill-agent"}, "--")), Not(Contains("--rank")));
  EXPECT_THAT(texts(after({"doctor"}, "--")), IsSupersetOf({"--dir", "--json", "--coordinator"}));
  EXPECT_THAT(texts(after({"demo", "sasrec"}, "--max")), Contains("--maxlen"));
  EXPECT_THAT(texts(after({"bench", "scaling", "sasrec"}, "--")), IsSupersetOf({"--ranks", "--json", "--maxlen"}));
}

TEST(Completion, knows_the_tasks_of_a_workload_and_their_flags) {
  EXPECT_THAT(texts(after({}, "sas")), ElementsAre("sasrec"));
  EXPECT_THAT(texts(after({"sasrec"}, "")), ElementsAre("recommend"));
  EXPECT_THAT(texts(after({"sasrec", "recommend"}, "--exclude")), ElementsAre("--exclude_seen"));
  EXPECT_THAT(texts(after({"sasrec", "recommend"}, "--")), Not(Contains("--lr")));
  EXPECT_THAT(texts(after({"sasrec", "recommend", "--format"}, "")), ElementsAre("jsonl", "tsv"));
  EXPECT_EQ(after({"sasrec", "recommend", "--checkpoint"}, "").rest, Takes::kFolder);
  EXPECT_EQ(after({"sasrec", "recommend", "--users"}, "").rest, Takes::kFile);
}

TEST(Completion, flags_of_a_workload_may_stand_before_it_too) {
  EXPECT_THAT(texts(after({"run", "sasrec"}, "--grad_")), ElementsAre("--grad_accum_steps"));
  EXPECT_THAT(texts(after({"run"}, "--grad_")), ElementsAre("--grad_accum_steps"));
  EXPECT_THAT(texts(after({"run", "--lr", "0.1"}, "")), Contains("sasrec"));
}

TEST(Completion, a_flag_is_spelt_as_it_was_begun) {
  EXPECT_THAT(texts(after({"run", "sasrec"}, "--batch_s")), ElementsAre("--batch_size", "--batch_scope"));
  EXPECT_THAT(texts(after({"run", "sasrec"}, "--batch-s")), ElementsAre("--batch-size", "--batch-scope"));
}

TEST(Completion, values_are_words_files_or_folders) {
  EXPECT_THAT(texts(after({"run", "sasrec", "--backend"}, "")), ElementsAre("auto", "nccl", "gloo"));
  EXPECT_THAT(texts(after({"run", "sasrec", "--lr-schedule"}, "co")), ElementsAre("constant", "cosine"));
  EXPECT_THAT(texts(after({"run", "sasrec"}, "--backend=g")), ElementsAre("--backend=gloo"));
  EXPECT_THAT(texts(after({"ckpt", "export", "--format"}, "")), ElementsAre("safetensors", "pt"));
  const struct {
    std::vector<std::string> words;
    const char* current;
    Takes rest;
  } cases[] = {{{"run", "sasrec", "--dataset"}, "da", Takes::kFile},
               {{"run", "sasrec"}, "--dataset=da", Takes::kFile},
               {{"run", "sasrec", "--config"}, "", Takes::kFile},
               {{"run", "sasrec", "--data-dir"}, "", Takes::kFolder},
               {{"run", "sasrec", "--resume"}, "", Takes::kFile},
               {{"run", "sasrec", "--lr"}, "", Takes::kNothing},
               {{"ckpt", "ls"}, "x", Takes::kFolder},
               {{"ckpt", "export", "x", "--output"}, "", Takes::kFile},
               {{"chaos", "kill-rank"}, "x", Takes::kFolder},
               {{"doctor", "--dir"}, "", Takes::kFolder},
               {{"doctor", "--data"}, "", Takes::kFile},
               {{"doctor", "--nproc"}, "", Takes::kNothing}};
  for (const auto& c : cases) {
    const Completion completion = after(c.words, c.current);
    EXPECT_EQ(completion.rest, c.rest) << c.words.back() << " " << c.current;
    EXPECT_THAT(texts(completion), ElementsAre()) << c.words.back() << " " << c.current;
  }
}

TEST(Completion, a_flag_without_a_value_takes_none) {
  EXPECT_THAT(texts(after({"run", "--deterministic"}, "sas")), ElementsAre("sasrec"));
  EXPECT_THAT(texts(after({"ckpt", "export", "--ema"}, "--out")), ElementsAre("--output"));
}

// What is offered is what the parser knows.
TEST(Completion, no_flag_of_run_is_unknown_to_its_parser) {
  const std::vector<std::string> names = texts(after({"run", "sasrec"}, "-"));
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
  const std::vector<std::string> names = texts(after({"run", "sasrec"}, "--"));
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
  EXPECT_THAT(texts(after({"--", "-", "=", "", "run"}, "--=")), ElementsAre());
  EXPECT_THAT(texts(after({"no such"}, "\xff")), ElementsAre());
  EXPECT_EQ(to_lines(after({"version"}, "")), ":none\n");
}

TEST(Completion, the_shells_are_told_line_by_line) {
  Completion completion;
  completion.candidates = {{"run", "start"}, {"x", ""}};
  EXPECT_EQ(to_lines(completion), "run\tstart\nx\t\n:none\n");
  completion.rest = Takes::kFolder;
  EXPECT_EQ(to_lines(completion), "run\tstart\nx\t\n:folder\n");
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
