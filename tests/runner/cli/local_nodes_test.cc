#include "runner/cli/local_nodes.h"
#include "runner/models/workload_flags.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "runner/config/run_config.h"
#include "runner/launch/world.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

LocalNodesOptions two_nodes() {
  LocalNodesOptions options;
  options.arguments = {"sasrec", "--dataset", "x", "--local_nodes", "2", "--nproc=2"};
  options.environment = {{"HOME", "/root"}, {"LOCKSTEP_NODE_RANK", "7"}, {"LOCKSTEP_TOKEN", "theirs"}};
  options.nodes = 2;
  options.min_nodes = 1;
  options.nproc = 2;
  options.cores = 8;
  return options;
}

const LocalNetwork kNetwork{.coordinator_host = "127.0.0.1", .coordinator_port = 4711, .token = "secret"};

TEST(NodeLaunch, tells_each_agent_its_place) {
  const NodeLaunch launch = node_launch(two_nodes(), kNetwork, 1, 99);
  ASSERT_EQ(launch.arguments.front(), "run");
  const Result<RunConfig> config =
      parse_run_config({launch.arguments.begin() + 1, launch.arguments.end()}, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->launch.node_rank, 1);
  EXPECT_EQ(config->launch.nnodes, 2);
  EXPECT_EQ(config->launch.min_nodes, 1);
  EXPECT_EQ(config->launch.nproc, 2);
  EXPECT_EQ(config->launch.threads, 2);
  EXPECT_EQ(config->launch.coordinator, "127.0.0.1:4711");
  EXPECT_FALSE(config->launch.local_nodes);
  const Result<AgentPosition> position = derive_agent_position(launch.environment, "laptop", config->launch);
  ASSERT_TRUE(position.ok()) << position.error().message;
  EXPECT_EQ(position->node_rank, 1);
  EXPECT_EQ(launch.environment.at("LOCKSTEP_TOKEN"), "secret");
  EXPECT_EQ(launch.environment.at("LOCKSTEP_POD_ATTEMPT"), "99");
  EXPECT_EQ(launch.environment.at("HOME"), "/root");
}

int status_port(const LocalNodesOptions& options, int node) {
  const NodeLaunch launch = node_launch(options, kNetwork, node, 1);
  return parse_run_config({launch.arguments.begin() + 1, launch.arguments.end()}, all_workload_flags())
      ->launch.status_port;
}

TEST(NodeLaunch, gives_node_0_alone_a_status_page) {
  LocalNodesOptions options = two_nodes();
  options.status_port = 8080;
  EXPECT_EQ(status_port(options, 0), 8080);  // as without --local_nodes: taken if it is free
  EXPECT_EQ(status_port(options, 1), 0);
  options.status_port_given = true;
  options.status_port = 9000;
  EXPECT_EQ(status_port(options, 0), 9000);
  EXPECT_EQ(status_port(options, 1), 0);
  options.status_port = 0;
  EXPECT_EQ(status_port(options, 0), 0);
  EXPECT_EQ(status_port(options, 1), 0);
}

TEST(NodeLaunch, leaves_threads_alone_that_were_given) {
  LocalNodesOptions options = two_nodes();
  options.share_cores = false;
  options.arguments.emplace_back("--threads=5");
  const NodeLaunch launch = node_launch(options, kNetwork, 0, 1);
  EXPECT_EQ(
      parse_run_config({launch.arguments.begin() + 1, launch.arguments.end()}, all_workload_flags())->launch.threads,
      5);
}

TEST(NodeLaunch, shares_the_gpus_out) {
  LocalNodesOptions options = two_nodes();
  options.gpus = {"4", "5", "6", "GPU-abc"};
  EXPECT_EQ(node_launch(options, kNetwork, 0, 1).environment.at("CUDA_VISIBLE_DEVICES"), "4,5");
  EXPECT_EQ(node_launch(options, kNetwork, 1, 1).environment.at("CUDA_VISIBLE_DEVICES"), "6,GPU-abc");
}

TEST(GpusOfNode, are_all_of_them_if_there_are_too_few_to_share) {
  EXPECT_THAT(gpus_of_node({"0", "1"}, 2, 1, 1), ElementsAre("1"));
  EXPECT_THAT(gpus_of_node({"0", "1"}, 2, 2, 1), ElementsAre("0", "1"));
}

// Receives what the parent's signal handler writes. Like an event loop's, it is a pipe that the child has, too.
struct SignalPipe {
  std::array<int, 2> fds{};
  bool raises_in_child = false;
};
SignalPipe& signal_pipe() {
  static SignalPipe pipe;
  return pipe;
}

// Ctrl-C in the terminal at a moment when the child is still in the parent's process group.
TEST(StartAgent, lets_no_handler_of_its_parent_run_in_the_child) {
  SignalPipe& signals = signal_pipe();
  ASSERT_EQ(::pipe2(signals.fds.data(), O_CLOEXEC | O_NONBLOCK), 0);
  struct sigaction counts {};
  struct sigaction before {};
  counts.sa_handler = [](int) { [[maybe_unused]] const ssize_t written = ::write(signal_pipe().fds[1], "x", 1); };
  ASSERT_EQ(::sigaction(SIGINT, &counts, &before), 0);
  ASSERT_EQ(::pthread_atfork(nullptr, nullptr,
                             [] {
                               if (signal_pipe().raises_in_child) ::raise(SIGINT);
                             }),
            0);
  signals.raises_in_child = true;
  const pid_t pid = start_agent("/bin/true", NodeLaunch{}, AgentDescriptors{});
  signals.raises_in_child = false;
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  char written = 0;
  EXPECT_LT(::read(signals.fds[0], &written, 1), 0) << "the parent counts the signal of its child";
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  ::sigaction(SIGINT, &before, nullptr);
  for (const int fd : signals.fds) ::close(fd);
}

}  // namespace
}  // namespace lockstep
