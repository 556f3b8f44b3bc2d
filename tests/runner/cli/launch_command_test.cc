#include "runner/cli/launch_command.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

const Environment kEnvironment{{"PATH", "/usr/bin:/bin"}};

LaunchLine parsed(const Words& words, const Environment& environment = kEnvironment) {
  const Result<LaunchLine> line = parse_launch_line(words, environment);
  EXPECT_TRUE(line.ok()) << (line.ok() ? "" : line.error().message);
  return line.ok() ? *line : LaunchLine{};
}

std::string problem(const Words& words, const Environment& environment = kEnvironment) {
  const Result<LaunchLine> line = parse_launch_line(words, environment);
  return line.ok() ? "" : line.error().message;
}

TEST(LaunchLine, a_torchrun_line_is_understood) {
  const LaunchLine line = parsed({"--standalone", "--nproc-per-node=4", "--max_restarts", "3", "--rdzv-id", "job",
                                  "--rdzv_backend", "c10d", "-t", "3", "train.py", "--lr", "0.1", "--nproc", "9"});
  EXPECT_EQ(line.config.launch.nproc, 4);
  EXPECT_EQ(line.config.launch.max_restarts, 3);
  EXPECT_EQ(line.command.run_id, "job");
  EXPECT_EQ(line.ignored, (Words{"--rdzv_backend"}));
  EXPECT_TRUE(line.is_standalone);
  EXPECT_TRUE(line.command.output.tee.has(5, true));
  ASSERT_EQ(line.command.words.size(), 7U);
  EXPECT_EQ(Words(line.command.words.begin() + 1, line.command.words.end()),
            (Words{"-u", "train.py", "--lr", "0.1", "--nproc", "9"}));
}

TEST(LaunchLine, where_the_coordinator_is) {
  const auto coordinator = [](Words words) {
    words.emplace_back("x.py");
    return parsed(words).config.launch.coordinator;
  };
  EXPECT_EQ(coordinator({"--nnodes", "2", "--rdzv_endpoint", "host0"}), "host0:29400");
  EXPECT_EQ(coordinator({"--rdzv-endpoint=host0:1234"}), "host0:1234");
  EXPECT_EQ(coordinator({"--coordinator", "a:1", "--rdzv_endpoint", "b:2"}), "a:1");
  EXPECT_EQ(coordinator({"--rdzv_endpoint", "b:2", "--master_addr", "c"}), "b:2");
  EXPECT_EQ(coordinator({"--master_addr", "c"}), "c:29400");
  EXPECT_EQ(coordinator({"--master_addr", "c", "--master_port", "29400"}), "c:29401") << "rank 0's store is there";
  EXPECT_EQ(coordinator({"--rdzv_endpoint", "localhost:0"}), "") << "any free port: one node alone";
  EXPECT_EQ(coordinator({"--standalone", "--rdzv_endpoint", "b:2"}), "");
  EXPECT_NE(problem({"--rdzv_endpoint", "host:x", "x.py"}).find("--rdzv_endpoint: found \"host:x\""),
            std::string::npos);
}

TEST(LaunchLine, the_variables_of_torchrun_give_what_no_flag_gives) {
  Environment environment = kEnvironment;
  environment.insert({{"PET_NPROC_PER_NODE", "2"},
                      {"PET_NNODES", "1:3"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_MASTER_ADDR", "pod-0"},
                      {"PET_MASTER_PORT", "29400"},
                      {"PET_MAX_RESTARTS", "0"},
                      {"PET_ROLE", "trainer"},
                      {"PET_LOG_DIR", "logs"},
                      {"PET_RDZV_BACKEND", "c10d"},
                      {"PET_MODULE", "1"},
                      {"PET_STANDALONE", "0"},
                      {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[$rank] "}});
  const LaunchLine line = parsed({"--nproc", "4", "pkg.train"}, environment);
  const LaunchOptions& launch = line.config.launch;
  EXPECT_EQ(launch.nproc, 4) << "the flag wins";
  EXPECT_EQ(launch.min_nodes, 1);
  EXPECT_EQ(launch.nnodes, 3);
  EXPECT_EQ(launch.node_rank, 1);
  EXPECT_EQ(launch.coordinator, "pod-0:29401");
  EXPECT_EQ(launch.max_restarts, 0);
  EXPECT_TRUE(is_given(line.config, "max_restarts"));
  EXPECT_EQ(line.command.role, "trainer");
  EXPECT_EQ(line.command.output.log_dir, "logs");
  EXPECT_EQ(line.command.output.prefix, "[$rank] ");
  EXPECT_EQ(line.ignored, (Words{"PET_RDZV_BACKEND"}));
  EXPECT_FALSE(line.is_standalone);
  EXPECT_EQ(Words(line.command.words.begin() + 1, line.command.words.end()), (Words{"-u", "-m", "pkg.train"}));
  // The agents of --local_nodes read the same variables, and get the whole command.
  EXPECT_EQ(parsed({"--", "python3", "-m", "pkg.train"}, environment).command.words,
            (Words{"python3", "-m", "pkg.train"}));
}

TEST(LaunchLine, a_variable_that_is_wrong_is_named) {
  for (const auto& [name, value] : Environment{{"PET_NPROC_PER_NODE", "many"},
                                               {"PET_NNODES", "0"},
                                               {"PET_NODE_RANK", "-1"},
                                               {"PET_MASTER_PORT", "x"},
                                               {"PET_MAX_RESTARTS", "-1"},
                                               {"PET_STANDALONE", "maybe"},
                                               {"PET_TEE", "7"},
                                               {"PET_SIGNALS_TO_HANDLE", "SIGNONE"},
                                               {"PET_LOCAL_RANKS_FILTER", "a"},
                                               {"PET_SHUTDOWN_TIMEOUT", "soon"}}) {
    Environment environment = kEnvironment;
    environment[name] = value;
    const std::string said = problem({"x.py"}, environment);
    EXPECT_TRUE(said.starts_with(name + ": found \"" + value + "\"")) << name << ": " << said;
  }
}

TEST(LaunchLine, how_many_ranks_a_word_means_is_found_later) {
  EXPECT_EQ(parsed({"x.py"}).nproc, std::nullopt);
  EXPECT_EQ(parsed({"--nproc_per_node", "gpu", "x.py"}).nproc, NprocWord::kGpu);
  EXPECT_EQ(parsed({"--nproc", "auto", "x.py"}).nproc, NprocWord::kAuto);
  const LaunchLine cores = parsed({"--nproc", "cpu", "x.py"});
  EXPECT_EQ(cores.nproc, NprocWord::kNumber);
  EXPECT_GE(cores.config.launch.nproc.value_or(0), 1);
}

TEST(LaunchLine, flags_of_the_output_and_of_the_end) {
  const LaunchLine line = parsed({"-r3", "--tee=0:1", "--local-ranks-filter", "0,2", "--log-line-prefix-template",
                                  "[$rank] ", "--duplicate-stdout-filters", "a,,b,c", "--signals-to-handle",
                                  "SIGTERM, SIGUSR1", "--shutdown-timeout", "7", "--virtual-local-rank", "x.py"});
  EXPECT_TRUE(line.command.output.redirects.has(4, true));
  EXPECT_TRUE(line.command.output.tee.has(0, false));
  EXPECT_EQ(line.command.output.shown, (std::vector{0, 2}));
  EXPECT_EQ(line.command.output.duplicate_out, (Words{"a,b", "c"}));
  EXPECT_EQ(line.command.signals, (std::vector{SIGTERM, SIGUSR1}));
  EXPECT_EQ(line.config.launch.stop_timeout_seconds, 7);
  EXPECT_TRUE(line.command.virtual_local_rank);
  EXPECT_FALSE(parsed({"--log_dir", "/dev/null", "--tee", "3", "x.py"}).command.output.writes_files());
}

TEST(LaunchLine, the_agents_of_local_nodes_get_every_flag_that_has_an_effect) {
  const LaunchLine line =
      parsed({"--role", "r", "--log_dir", "l", "-t", "3", "--rdzv_id", "7", "--recover", "--no-zygote", "x.py"});
  EXPECT_EQ(line.flags, (Words{"--role=r", "--log_dir=l", "--tee=3", "--rdzv_id=7", "--recover", "--no_zygote"}));
}

TEST(LaunchLine, what_cannot_be_done_here_is_named_with_what_to_do) {
  EXPECT_NE(problem({"--logs_specs", "mine", "x.py"}).find("Use --log_dir, --redirects and --tee"), std::string::npos);
  const LaunchLine line = parsed({"--numa-binding", "node", "x.py"});
  ASSERT_EQ(line.remarks.size(), 1U);
  EXPECT_NE(line.remarks[0].find("--numa_binding: the ranks are not bound"), std::string::npos);
}

TEST(LaunchLine, after_two_dashes_comes_a_whole_command) {
  EXPECT_EQ(parsed({"--nproc", "2", "--", "python", "-u", "x.py"}).command.words, (Words{"python", "-u", "x.py"}));
  EXPECT_EQ(parsed({"--", "./run.sh", "--nproc", "2"}).command.words, (Words{"./run.sh", "--nproc", "2"}));
}

TEST(LaunchLine, python_is_put_in_front_of_what_python_runs) {
  const TemporaryFolder folder;
  folder.write("train", "print(1)");
  const std::string script = folder.path() + "/train";
  for (const Words& words : {Words{script}, Words{"x.py"}, Words{"-m", "pkg.x"}, Words{"--module", "pkg.x"}}) {
    EXPECT_TRUE(parsed(words).command.words.front().starts_with("python")) << words.front();
  }
  EXPECT_EQ(parsed({"bash", "run.sh"}).command.words.front(), "bash");
  EXPECT_EQ(parsed({"--no_python", "x.py"}).command.words.front(), "x.py");
  EXPECT_TRUE(parsed({"--run_path", "--no_python", "train"}).command.words.front().starts_with("python"));
  folder.write("run.sh", "#!/bin/sh\n");
  EXPECT_EQ(parsed({folder.path() + "/run.sh"}).command.words.size(), 1U) << "another interpreter's";
  Environment with_exec = kEnvironment;
  with_exec["PYTHON_EXEC"] = "/opt/python";
  EXPECT_EQ(parsed({"x.py"}, with_exec).command.words.front(), "/opt/python");
}

TEST(LaunchLine, launchers_are_refused_however_they_are_started) {
  for (const Words& words :
       {Words{"torchrun", "x.py"}, Words{"accelerate", "launch", "x.py"}, Words{"deepspeed", "x.py"},
        Words{"mpirun", "-np", "2", "x"}, Words{"horovodrun", "-np", "2", "python", "x.py"}, Words{"srun", "x"},
        Words{"lockstep", "run", "sasrec"}, Words{"-m", "torch.distributed.run", "x.py"},
        Words{"--", "python", "-u", "-m", "torch.distributed.launch", "x.py"},
        Words{"--", "/usr/bin/python3", "-mtorch.distributed.run", "x.py"},
        Words{"--", "python", "-m", "accelerate.commands.launch", "x.py"}, Words{"--", "uv", "run", "torchrun", "x.py"},
        Words{"--", "env", "A=1", "python", "-m", "torch.distributed.run", "x.py"}}) {
    EXPECT_NE(problem(words).find("starts ranks itself"), std::string::npos) << words.front() << " " << words.back();
  }
  for (const Words& words : {Words{"--", "uv", "run", "x.py", "torchrun"}, Words{"bash", "run.sh", "torchrun"},
                             Words{"--", "python", "x.py", "-m", "torch.distributed.run"}}) {
    EXPECT_EQ(problem(words), "");
  }
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
