#include "runner/cli/launch_command.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

const Environment kEnvironment{{"PATH", "/usr/bin:/bin"}};

LaunchLine parsed(const Words& words) {
  const Result<LaunchLine> line = parse_launch_line(words, kEnvironment);
  EXPECT_TRUE(line.ok()) << (line.ok() ? "" : line.error().message);
  return line.ok() ? *line : LaunchLine{};
}

std::string problem(const Words& words) {
  const Result<LaunchLine> line = parse_launch_line(words, kEnvironment);
  return line.ok() ? "" : line.error().message;
}

TEST(LaunchLine, a_torchrun_line_is_understood) {
  const LaunchLine line = parsed({"--standalone", "--nproc-per-node=4", "--max_restarts", "3", "--rdzv-id", "job",
                                  "--rdzv_backend", "c10d", "-t", "3", "train.py", "--lr", "0.1", "--nproc", "9"});
  EXPECT_EQ(line.config.launch.nproc, 4);
  EXPECT_EQ(line.config.launch.max_restarts, 3);
  EXPECT_EQ(line.run_id, "job");
  EXPECT_EQ(line.ignored, (Words{"--rdzv_backend", "--tee"}));
  ASSERT_EQ(line.program.size(), 6U);
  EXPECT_EQ(Words(line.program.begin() + 1, line.program.end()), (Words{"train.py", "--lr", "0.1", "--nproc", "9"}));
}

TEST(LaunchLine, the_rendezvous_endpoint_is_the_coordinator) {
  const LaunchLine line = parsed({"--nnodes", "2", "--rdzv_endpoint", "host0", "x.py"});
  EXPECT_EQ(line.config.launch.coordinator, "host0:29400");
  EXPECT_EQ(line.config.launch.nnodes, 2);
  EXPECT_EQ(parsed({"--coordinator", "a:1", "--rdzv_endpoint", "b:2", "x.py"}).config.launch.coordinator, "a:1");
}

TEST(LaunchLine, after_two_dashes_comes_a_whole_command) {
  EXPECT_EQ(parsed({"--nproc", "2", "--", "python", "-u", "x.py"}).program, (Words{"python", "-u", "x.py"}));
  EXPECT_EQ(parsed({"--", "./run.sh", "--nproc", "2"}).program, (Words{"./run.sh", "--nproc", "2"}));
}

TEST(LaunchLine, python_is_put_in_front_of_what_python_runs) {
  const TemporaryFolder folder;
  folder.write("train", "print(1)");
  const std::string script = folder.path() + "/train";
  for (const Words& words : {Words{script}, Words{"x.py"}, Words{"-m", "pkg.x"}, Words{"--module", "pkg.x"}}) {
    EXPECT_TRUE(parsed(words).program.front().starts_with("python")) << words.front();
  }
  EXPECT_EQ(parsed({"bash", "run.sh"}).program.front(), "bash");
  EXPECT_EQ(parsed({"--no_python", "x.py"}).program.front(), "x.py");
}

TEST(LaunchLine, what_is_wrong_is_named) {
  EXPECT_NE(problem({}).find("no program given"), std::string::npos);
  EXPECT_NE(problem({"--nproc"}).find("--nproc needs a value"), std::string::npos);
  EXPECT_NE(problem({"--nprok", "2", "x.py"}).find("did you mean --nproc"), std::string::npos);
  EXPECT_NE(problem({"--nproc", "0", "x.py"}).find("--nproc"), std::string::npos);
  EXPECT_NE(problem({"-x", "x.py"}).find("unknown flag -x"), std::string::npos);
  EXPECT_NE(problem({"accelerate", "launch", "x.py"}).find("lockstep launch train.py"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
