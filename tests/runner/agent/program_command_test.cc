#include "runner/agent/program_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runner/contract/generation.h"
#include "tests/support/disk.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

TEST(PythonCommand, is_python_with_a_script_or_a_module) {
  const auto script = python_command({"/usr/bin/python3.11", "-u", "-X", "dev", "train.py", "--lr", "1"});
  ASSERT_TRUE(script);
  EXPECT_EQ(script->options, (Words{"-u", "-X", "dev"}));
  EXPECT_EQ(script->program, (Words{"train.py", "--lr", "1"}));
  const auto module = python_command({"python", "-m", "pkg.train", "-c"});
  ASSERT_TRUE(module);
  EXPECT_EQ(module->program, (Words{"-m", "pkg.train", "-c"}));
}

TEST(PythonCommand, is_nothing_that_a_zygote_could_not_run) {
  for (const Words& words : {Words{"bash", "run.sh"}, Words{"python3", "-c", "print(1)"}, Words{"python3"},
                             Words{"python3", "-"}, Words{"python3", "-i", "train.py"}, Words{"python3", "-m"},
                             Words{"python3", "train.zip"}, Words{"python3", "/"}, Words{"python-config", "x"}}) {
    EXPECT_FALSE(python_command(words)) << words.back();
  }
}

TEST(ProgramEnvironment, has_back_what_the_agent_s_loader_must_not_see) {
  const Environment variables = program_environment(
      {{"LOCKSTEP_KEPT_LD_PRELOAD", "/usr/lib/libjemalloc.so.2"}, {"HOME", "/"}, {"LOCKSTEP_JOB", "j"}}, {}, "/tmp");
  EXPECT_EQ(variables,
            (Environment{{"LD_PRELOAD", "/usr/lib/libjemalloc.so.2"}, {"HOME", "/"}, {"LOCKSTEP_JOB", "j"}}));
}

TEST(ProgramEnvironment, of_a_user_without_a_name_has_one_and_a_home) {
  const Account nameless{.id = 1234, .has_name = false};
  EXPECT_EQ(program_environment({{"HOME", "/"}}, nameless, "/tmp"),
            (Environment{{"USER", "user-1234"}, {"HOME", "/tmp"}}));
  EXPECT_EQ(program_environment({}, nameless, ""), (Environment{{"USER", "user-1234"}}));
  const Environment given = {{"HOME", "/data"}, {"LOGNAME", "trainer"}};
  EXPECT_EQ(program_environment(given, nameless, "/tmp"), given);
}

TEST(RankEnvironment, is_torchruns) {
  const ProgramCommand command{.words = {"train"}, .environment = {{"A", "b"}}, .run_id = "id", .max_restarts = 3};
  const Assignment assignment{.generation = make_generation(1, 3),
                              .rank = 5,
                              .local_rank = 1,
                              .world_size = 8,
                              .local_world_size = 4,
                              .nnodes = 2};
  const Environment variables = rank_environment(command, assignment, {.host = "10.0.0.1", .port = 4711});
  const Environment expected = {{"A", "b"},
                                {"RANK", "5"},
                                {"LOCAL_RANK", "1"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_RANK", "5"},
                                {"ROLE_WORLD_SIZE", "8"},
                                {"ROLE_NAME", "default"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "4711"},
                                {"OMP_NUM_THREADS", "1"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "id"},
                                {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
  EXPECT_EQ(variables, expected);
}

TEST(RankEnvironment, leaves_what_the_user_has_set) {
  const ProgramCommand command{.words = {"train"}, .environment = {{"OMP_NUM_THREADS", "6"}}};
  const Environment variables = rank_environment(command, {.world_size = 2, .local_world_size = 2}, {});
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "6");
  EXPECT_EQ(rank_environment({.words = {"train"}}, {}, {}).count("OMP_NUM_THREADS"), 0U) << "one rank has all cores";
}

std::string reason(const Words& lines) {
  LastLines last;
  for (const std::string& line : lines) last.add(line);
  return last.reason();
}

TEST(LastLines, give_a_traceback_in_one_line) {
  EXPECT_EQ(reason({"Traceback (most recent call last):", "  File \"/a/train.py\", line 3, in <module>", "    main()",
                    "  File \"/a/model.py\", line 12, in forward", "    raise ValueError(\"x\")", "ValueError: x",
                    "a warning at exit"}),
            "ValueError: x (model.py:12, in forward)");
  EXPECT_EQ(reason({"[rank1]: Traceback (most recent call last):", "[rank1]:   File \"t.py\", line 1, in <module>",
                    "[rank1]: KeyError: 'a'"}),
            "KeyError: 'a' (t.py:1, in <module>)");
}

TEST(LastLines, give_a_crash_with_the_line_that_python_was_in) {
  EXPECT_EQ(reason({"Fatal Python error: Segmentation fault", "",
                    "Thread 0x1 (most recent call first):", "  File \"/a/other.py\", line 1 in wait", "",
                    "Current thread 0x2 (most recent call first):", "  File \"/a/train.py\", line 7 in step",
                    "  File \"/a/train.py\", line 9 in <module>", "", "Extension modules: numpy (total: 1)"}),
            "Fatal Python error: Segmentation fault (train.py:7 in step)");
}

TEST(LastLines, of_several_tracebacks_the_last_is_the_reason) {
  EXPECT_EQ(reason({"Traceback (most recent call last):", "  File \"a.py\", line 1, in f", "KeyError: 1", "",
                    "During handling of the above exception, another exception occurred:", "",
                    "Traceback (most recent call last):", "  File \"b.py\", line 2, in g", "OSError: 2"}),
            "OSError: 2 (b.py:2, in g)");
}

TEST(LastLines, of_an_error_in_the_script_itself_there_is_no_traceback) {
  EXPECT_EQ(reason({"  File \"/a/train.py\", line 2", "    if True", "           ^", "SyntaxError: expected ':'"}),
            "SyntaxError: expected ':' (train.py:2)");
}

TEST(LastLines, without_a_traceback_give_the_last_line_that_says_something) {
  EXPECT_EQ(reason({"terminate called after throwing", "  what():  x", "  "}), "  what():  x");
  EXPECT_EQ(reason({}), "");
}

TEST(ErrorFile, gives_the_reason_with_file_and_line) {
  const std::string path = testing::TempDir() + "error-file.json";
  const auto reason_of = [&path](const std::string& text) {
    std::ofstream(path) << text;
    return reason_of_error_file(disk(), path);
  };
  EXPECT_EQ(reason_of(R"({"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1", "py_callstack":
      "Traceback (most recent call last):\n  File \"/a/train.py\", line 3, in main\n    f()\nValueError: x\n"}}})"),
            "ValueError: x (train.py:3, in main)");
  EXPECT_EQ(reason_of(R"({"message": {"message": "ValueError: x"}})"), "ValueError: x");
  EXPECT_EQ(reason_of(R"({"message": "x"})"), "x");
  for (const char* const text : {"", "{", "[]", R"({"message": 3})", R"({"message": {"extraInfo": []}})"}) {
    EXPECT_EQ(reason_of(text), "") << text;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(reason_of_error_file(disk(), path), "");
}

TEST(ProgramKey, is_the_scripts_wherever_it_is_started) {
  const auto key = [](Words program) { return program_key({.python = "python", .options = {}, .program = program}); };
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(key({"train.py", "--lr", "1"}), key({here + "/train.py"}));
  EXPECT_NE(key({"-m", "a"}), key({"-m", "b"}));
  EXPECT_NE(key({"a.py"}), key({"b.py"}));
}

TEST(FindProgram, names_what_is_wrong) {
  const Environment environment{{"PATH", "/usr/bin:/bin"}};
  EXPECT_EQ(*find_program("sh", environment), "/usr/bin/sh");
  EXPECT_EQ(find_program("no-such", environment).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(find_program("/etc", environment).error().code, ErrorCode::kInvalid);
  EXPECT_NE(find_program("/etc/passwd", environment).error().message.find("cannot be executed"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
