// `lockstep demo`, `lockstep workloads` and what they share with `lockstep bench`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runner/cli/bench_command.h"
#include "runner/cli/demo_command.h"
#include "runner/cli/demo_data.h"
#include "runner/cli/own_run.h"
#include "runner/cli/workloads_command.h"
#include "runner/config/flag_table.h"
#include "runner/models/workload_flags.h"
#include "tests/runner/cli/agent_process.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using test::AgentProcess;
using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const WorkloadFlags& first_workload() { return all_workload_flags().front(); }

// ---- what there is ----

TEST(Workloads, are_described_in_80_columns_each_with_a_command_for_everything) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const std::string text = workloads_text({workload});
    EXPECT_THAT(text, testing::StartsWith(workload.name + " - " + workload.summary + "\n"));
    for (const std::string& command : {"lockstep demo " + workload.name, "lockstep bench scaling " + workload.name,
                                       workload.example, "lockstep run " + workload.name + " --help"}) {
      EXPECT_THAT(text, HasSubstr(command));
    }
    EXPECT_THAT(text, HasSubstr(workload.data));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(Workloads, name_their_variants_and_the_default_one) {
  EXPECT_THAT(workloads_text(all_workload_flags()), ContainsRegex("--variant [a-z]+ \\(default\\), [a-z]+"));
}

TEST(Workloads, take_no_arguments) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(workloads_command({}, {}, out, err), 0);
  EXPECT_EQ(out.str(), workloads_text(all_workload_flags()));
  EXPECT_EQ(workloads_command({"all"}, {}, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("all"));
}

TEST(Workloads, that_are_not_there_are_refused_with_the_names_of_those_that_are) {
  for (const std::string& name : {std::string("gpt5"), std::string(), first_workload().name + "x"}) {
    const Result<const WorkloadFlags*> found = named_workload(name, all_workload_flags());
    ASSERT_FALSE(found.ok());
    for (const WorkloadFlags& workload : all_workload_flags()) {
      EXPECT_THAT(found.error().message, HasSubstr(workload.name));
    }
    EXPECT_THAT(found.error().message, HasSubstr("lockstep workloads"));
  }
  EXPECT_THAT(named_workload(first_workload().name + "x", all_workload_flags()).error().message,
              HasSubstr("did you mean \"" + first_workload().name + "\"?"));
}

TEST(Commands, with_an_unknown_workload_or_flag_end_with_code_2_and_say_so) {
  const struct {
    std::vector<std::string> words;
    const char* said;
  } cases[] = {{{"scaling"}, "no workload given"},
               {{"scaling", "gpt5"}, "unknown workload \"gpt5\""},
               {{"scaling", first_workload().name, "--ranks", "1,two"}, "found \"two\""},
               {{"scaling", first_workload().name, "--steps", "0"}, "--steps"},
               {{"scaling", first_workload().name, "--nproc", "2"}, "--ranks says"},
               {{"scaling", first_workload().name, "--no_such_flag"}, "no_such_flag"},
               {{"scalling"}, "expected scaling"},
               {{}, "found nothing"}};
  for (const auto& c : cases) {
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(bench_command(disk(), c.words, {}, out, err), 2);
    EXPECT_THAT(err.str(), HasSubstr(c.said));
    EXPECT_EQ(out.str(), "");
  }
  for (const std::vector<std::string>& words : {std::vector<std::string>{"gpt5"}, {"--no_such_flag"}}) {
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(demo_command(disk(), words, "lockstep", {}, out, err), 2);
    EXPECT_THAT(err.str(), HasSubstr("lockstep demo: "));
    EXPECT_EQ(out.str(), "");
  }
}

TEST(Commands, answer_help_in_80_columns_and_start_nothing) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(demo_command(disk(), {"--help"}, "lockstep", {}, out, err), 0);
  EXPECT_EQ(bench_command(disk(), {"--help"}, {}, out, err), 0);
  EXPECT_EQ(bench_command(disk(), {"scaling", first_workload().name, "--help"}, {}, out, err), 0);
  EXPECT_EQ(err.str(), "");
  EXPECT_THAT(out.str(), HasSubstr("--warmup"));
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

// ---- the data of a demo ----

TEST(DemoData, is_looked_for_here_in_the_image_s_folder_and_in_the_cache) {
  EXPECT_THAT(data_folders({{"HOME", "/home/me"}}), ElementsAre("data", "/data", "/home/me/.cache/lockstep/data"));
  EXPECT_THAT(data_folders({{"HOME", "/home/me"}, {"LOCKSTEP_CACHE", "/big"}}),
              ElementsAre("data", "/data", "/big/data"));
  EXPECT_THAT(data_folders({}), ElementsAre("data", "/data"));
}

TEST(DemoData, is_the_real_one_where_it_lies_in_one_of_the_folders) {
  const TemporaryFolder folder;
  const WorkloadDemo& demo = first_workload().demo;
  folder.write("second/" + demo.data_file, "x");
  const DemoData data = find_demo_data(demo, {folder.file("first"), folder.file("second")});
  EXPECT_EQ(data.value, folder.file("second/" + demo.data_file));
  EXPECT_THAT(data.title, HasSubstr(demo.data_title));
  EXPECT_EQ(data.remark, "");
}

TEST(DemoData, that_is_missing_is_generated_and_that_is_said_with_where_to_get_the_real_one) {
  const TemporaryFolder folder;
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const DemoData data = find_demo_data(workload.demo, {folder.file("first"), folder.file("second")});
    EXPECT_EQ(data.value, workload.demo.generated);
    EXPECT_THAT(data.title, HasSubstr("generated"));
    for (const std::string& part :
         {workload.demo.data_title, workload.demo.data_file, folder.file("first") + " or " + folder.file("second"),
          workload.demo.how_to_get_data, std::string("generated data set instead")}) {
      EXPECT_THAT(data.remark, HasSubstr(part));
    }
  }
}

TEST(DemoData, is_the_user_s_own_where_the_flags_or_their_file_name_one) {
  const TemporaryFolder folder;
  const WorkloadFlags& workload = first_workload();
  const std::string flag = "--" + workload.demo.data_flag;
  const std::string yaml = folder.write("run.yaml", workload.demo.data_flag + ": theirs.txt\n");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{flag, "mine.txt"}, {flag + "=mine.txt", "--lr=0.1"}, {"--config", yaml}}) {
    const Result<RunWithData> run = with_demo_data(workload, flags, {folder.path()}, all_workload_flags());
    ASSERT_TRUE(run.ok()) << run.error().message;
    EXPECT_THAT(run->data_title, testing::AnyOf("mine.txt", "theirs.txt"));
    EXPECT_EQ(run->remark, "");
    EXPECT_EQ(run->arguments.size(), flags.size() + 1);
  }
  const Result<RunWithData> none = with_demo_data(workload, {"--lr=0.1"}, {folder.path()}, all_workload_flags());
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_THAT(none->arguments, ElementsAre(workload.name, flag, workload.demo.generated, "--lr=0.1"));
  EXPECT_NE(none->remark, "");
}

// Every workload's declaration is one that its own parser takes.
TEST(Demo, of_every_workload_has_flags_that_exist) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const Result<RunWithData> run = with_demo_data(workload, workload.demo.arguments, {}, all_workload_flags());
    EXPECT_TRUE(run.ok()) << run.error().message;
    for (const auto& [what, flags] : workload.demo.more) {
      std::vector<std::string> words = workload.demo.arguments;
      std::istringstream list(flags);
      for (std::string word; list >> word;) words.push_back(word);
      const Result<RunWithData> more = with_demo_data(workload, words, {}, all_workload_flags());
      EXPECT_TRUE(more.ok()) << what << ": " << more.error().message;
    }
  }
}

// ---- the result ----

TEST(Demo, shows_the_first_and_the_last_evaluation_beside_each_other) {
  const RunFigures figures{.steps = {{.step = 1, .loss = 1.5}, {.step = 10, .loss = 1.25}, {.step = 20, .loss = 0.5}},
                           .evaluations = {{.step = 10, .epoch = 20, .figures = {{"ndcg", 0.1}}},
                                           {.step = 15, .epoch = 30, .figures = {{"ndcg", 0.9}}},
                                           {.step = 20, .epoch = 40, .figures = {{"ndcg", 0.25}, {"new", 1.0}}}}};
  EXPECT_EQ(result_table(figures),
            "                              epoch 20    epoch 40\n"
            "  loss                          1.2500      0.5000\n"
            "  ndcg                          0.1000      0.2500\n"
            "  new                                -      1.0000\n");
}

TEST(Demo, with_one_evaluation_or_none_shows_what_there_is) {
  EXPECT_EQ(result_table({.steps = {{.step = 10, .loss = 0.5}},
                          .evaluations = {{.step = 10, .epoch = 2, .figures = {{"ndcg", 0.1}}}}}),
            "                               epoch 2\n"
            "  loss                          0.5000\n"
            "  ndcg                          0.1000\n");
  EXPECT_EQ(result_table({.steps = {{.step = 10, .loss = 0.5}}, .evaluations = {}}),
            "  loss                          0.5000\n");
}

TEST(Demo, puts_a_flag_in_the_place_of_the_one_before_it) {
  EXPECT_THAT(with_flag({"w", "--num_epochs", "5", "--lr=1", "--num-epochs=6", "x"}, "num_epochs", "12"),
              ElementsAre("w", "--lr=1", "x", "--num_epochs", "12"));
}

// ---- the process ----

TEST(OwnRun, knows_nothing_of_launchers_pods_and_other_runs) {
  const Environment own = environment_of_own_run({{"RANK", "1"},
                                                  {"SLURM_PROCID", "1"},
                                                  {"LOCKSTEP_CHECKPOINT_DIR", "/checkpoints"},
                                                  {"LOCKSTEP_JOB", "job"},
                                                  {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                                                  {"LOCKSTEP_WORKER", "/worker"},
                                                  {"CUDA_VISIBLE_DEVICES", "0"},
                                                  {"HOME", "/home/me"}});
  EXPECT_THAT(own, ElementsAre(testing::Pair("CUDA_VISIBLE_DEVICES", "0"), testing::Pair("HOME", "/home/me"),
                               testing::Pair("LOCKSTEP_TERMINATION_LOG", "/dev/null"),
                               testing::Pair("LOCKSTEP_WORKER", "/worker")));
}

TEST(OwnRun, names_the_program_as_the_user_called_it) {
  EXPECT_EQ(program_for_people("build/bin/lockstep"), "build/bin/lockstep");
  EXPECT_EQ(program_for_people("lockstep"), "lockstep");
  EXPECT_EQ(command_line_of("./lockstep", {"ckpt", "ls", "a folder"}), "./lockstep ckpt ls 'a folder'");
}

AgentProcess::Setup demo(std::string script) {
  return {.script = std::move(script),
          .flags = {},
          .environment = {"HOME=/nowhere", "LOCKSTEP_CACHE"},
          .command = {"demo", "--status_port", "0", "--device", "cpu", "--max_restarts", "0"}};
}

TEST(Demo, ends_with_the_code_of_a_run_that_fails_and_shows_no_result) {
  AgentProcess process(demo("* * eprint the data are gone\n* * exit 3\n"));
  EXPECT_EQ(process.wait(), 3) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("the data are gone"));
  EXPECT_THAT(process.output(), HasSubstr("generated data set instead"));
  EXPECT_THAT(process.output(), Not(HasSubstr("Result")));
  EXPECT_THAT(process.output(), Not(HasSubstr("Next")));
}

TEST(Demo, of_a_run_that_left_no_metrics_says_so) {
  AgentProcess process(demo("* * exit 0\n"));
  EXPECT_EQ(process.wait(), 1) << process.output();
  EXPECT_THAT(process.output(), ContainsRegex("the run left no result: .*metrics.jsonl"));
}

TEST(Demo, passes_a_stop_on_to_the_run_and_ends_with_it) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    AgentProcess process(demo("* * print ready\n* * until_signal\n"));
    ASSERT_TRUE(process.wait_for_output("[rank 1] ready"));
    process.send(signal);
    EXPECT_EQ(process.wait(), 143) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("Result")));
  }
}

TEST(Demo, leaves_out_those_of_its_flags_that_the_user_gave) {
  AgentProcess::Setup setup = demo("* * exit 3\n");
  setup.command.insert(setup.command.end(), {"--num_epochs=7", "--nproc", "1"});
  AgentProcess process(std::move(setup));
  EXPECT_EQ(process.wait(), 3) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("--num_epochs=7"));
  EXPECT_THAT(process.output(), Not(HasSubstr("--num_epochs 200")));
  EXPECT_THAT(process.output(), Not(HasSubstr("--nproc 2")));
}

// The output of a demo whose run is begun and ends with code 3.
std::string begun_demo(const std::vector<std::string>& words) {
  AgentProcess::Setup setup = demo("* * exit 3\n");
  setup.command.insert(setup.command.begin() + 1, words.begin(), words.end());
  AgentProcess process(std::move(setup));
  EXPECT_EQ(process.wait(), 3) << process.output();
  return process.output();
}

TEST(Demo, of_every_preset_is_begun) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    for (const Preset& preset : workload.presets) begun_demo({workload.name, "--" + workload.preset_flag, preset.name});
  }
}

TEST(Demo, leaves_out_those_of_its_flags_that_contradict_the_user_s) {
  EXPECT_THAT(begun_demo({"gpt2rec", "--preset", "two_phase"}),
              AllOf(Not(HasSubstr("--num_epochs")), Not(HasSubstr("--lr ")), HasSubstr("--batch_size 1024")));
  EXPECT_THAT(begun_demo({"jit", "--blr", "1e-4"}), AllOf(Not(HasSubstr("--lr ")), HasSubstr("--model 4x128/4")));
  EXPECT_THAT(begun_demo({"jit", "--warmup_steps", "10"}), Not(HasSubstr("--warmup_epochs")));
  EXPECT_THAT(begun_demo({"protein", "--variant", "mdm"}), Not(HasSubstr("--batch_tokens")));
}

TEST(Demo, trains_in_the_folder_that_the_user_gives_by_any_of_its_names) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    const std::string untouched = begun_demo({workload.name});
    for (size_t i = 0; i < workload.demo.arguments.size(); i += 2) {
      EXPECT_THAT(untouched, HasSubstr(workload.demo.arguments[i] + " " + workload.demo.arguments[i + 1]));
    }
    for (const Flag& flag : flag_table(&workload)) {
      if (!flag.is_train_dir) continue;
      const std::string words = "--" + flag.name + " mine/";
      EXPECT_THAT(begun_demo({workload.name, "--" + flag.name, "mine/"}),
                  AllOf(HasSubstr(words), Not(HasSubstr("demo/" + workload.name))));
    }
  }
}

TEST(Demo, trains_in_a_folder_of_its_own_below_the_present_one) {
  AgentProcess process(demo("* * exit 3\n"));
  EXPECT_EQ(process.wait(), 3) << process.output();
  EXPECT_THAT(process.output(), HasSubstr(" --nproc 2 --train_dir demo/" + first_workload().name + " "));
}

AgentProcess::Setup bench(std::string script) {
  AgentProcess::Setup setup = demo(std::move(script));
  setup.command = {"bench", "scaling", first_workload().name, "--ranks", "1,2"};
  return setup;
}

TEST(Bench, ends_with_the_code_and_the_error_text_of_a_run_that_fails) {
  AgentProcess process(bench("* * eprint the disk is full\n* * exit 4\n"));
  EXPECT_EQ(process.wait(), 4) << process.output();
  EXPECT_THAT(process.output(), ContainsRegex("the run with 1 rank ended with code 4:\n(.*\n)*.*the disk is full"));
}

TEST(Bench, of_a_run_without_metrics_says_that_there_is_nothing_to_measure) {
  AgentProcess process(bench("* * exit 0\n"));
  EXPECT_EQ(process.wait(), 1) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("the run with 1 rank left nothing to measure"));
}

TEST(Bench, without_a_folder_for_its_runs_says_which_variable_names_another) {
  AgentProcess::Setup setup = bench("* * exit 0\n");
  setup.environment.emplace_back("TMPDIR=/nowhere");
  AgentProcess process(std::move(setup));
  EXPECT_EQ(process.wait(), 4) << process.output();
  EXPECT_THAT(process.output(), ContainsRegex("cannot make a folder in /nowhere: .*TMPDIR"));
}

}  // namespace
}  // namespace lockstep
