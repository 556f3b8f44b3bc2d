// Several nodes on one machine, with scripted workers: `lockstep run --local_nodes`, agents started one by one, and
// `lockstep chaos` on them.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/socket.h>

#include <memory>
#include <regex>
#include <vector>

#include "runner/base/json.h"
#include "runner/cli/control_client.h"
#include "runner/cli/run_program.h"
#include "tests/runner/cli/agent_process.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::Not;

AgentProcess::Setup local_nodes(std::string script, std::vector<std::string> more_flags = {}) {
  std::vector<std::string> flags{"--local_nodes", "2", "--nproc", "2", "--device", "cpu"};
  flags.insert(flags.end(), more_flags.begin(), more_flags.end());
  return {.script = std::move(script), .flags = std::move(flags), .environment = {}, .command = {}};
}

// Trains until it is told to stop.
constexpr const char* kTrainForLong = "* * train 1000000000\n";

// What node 0's agent says of the run that was started in `process`' folder; null while nobody answers.
Json status_of(const AgentProcess& process) {
  Result<ControlClient> client = ControlClient::connect(process.file("x_default"), 0);
  if (!client.ok()) return nullptr;
  const Result<Json> answer = client->ask({{"command", "status"}});
  return answer.ok() ? answer->at("status") : Json(nullptr);
}

// Polls, because from outside there is nothing to wait on. The poll() only sleeps.
template <typename Predicate>
bool wait_until(const AgentProcess& process, Predicate is_so) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const Json status = status_of(process);
    if (!status.is_null() && is_so(status)) return true;
    ::poll(nullptr, 0, 10);
  }
  return false;
}
bool is_training(const Json& status) {
  return status.at("phase") == "Running" && status.at("worldSize") == 4 && status.at("workers").size() == 4 &&
         status.at("workers").at(0).at("step") > 0;
}

// `lockstep chaos` in the folder of `process`; its output.
std::string chaos(const AgentProcess& process, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "chaos");
  arguments.push_back(process.file("x_default"));
  AgentProcess command({.script = "", .flags = {}, .environment = {}, .command = std::move(arguments)});
  const int code = command.wait();
  return (code == 0 ? "" : "code " + std::to_string(code) + ": ") + command.output();
}

// What the group in `pattern` captures in each match in `text`.
std::vector<double> numbers_in(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<double> numbers;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    numbers.push_back(std::stod((*it)[1]));
  }
  return numbers;
}

// The end of a process is noticed in milliseconds, or else by the silence after it. With this timeout the two cannot be
// confused, even if a process gets no CPU for seconds.
const std::vector<std::string> kLongSilence{"--heartbeat_timeout_seconds", "20"};
constexpr double kBySilence = 10.0;  // seconds; the last sign of life may be older than the kill
auto found_by_its_end() { return AllOf(Not(IsEmpty()), Each(Lt(kBySilence))); }

// Kills the agent of node 1 as soon as another one than `before` answers there; its pid, 0 when none did.
pid_t kill_node_1(const AgentProcess& process, pid_t before) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    Result<ControlClient> client = ControlClient::connect(process.file("x_default"), 1);
    const Result<Json> answer = client.ok() ? client->ask({{"command", "status"}}) : Result<Json>(client.error());
    if (answer.ok() && answer->at("pid") != before) {
      const auto pid = answer->at("pid").get<pid_t>();
      if (::kill(pid, SIGKILL) == 0) return pid;
    }
    ::poll(nullptr, 0, 1);
  }
  return 0;
}

// ---- --local_nodes ----

TEST(LocalNodes, form_one_group_and_end_with_0) {
  AgentProcess run(local_nodes("* * whoami\n* 0 wait key\n* 3 set key\n"));
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("starting 2 nodes with 2 ranks each"));
  EXPECT_THAT(run.output(), HasSubstr("\nrank 0 of 4"));
  EXPECT_THAT(run.output(), HasSubstr("\n[rank 1] rank 1 of 4"));
  EXPECT_THAT(run.output(), HasSubstr("\n[node 1] [rank 2] rank 2 of 4"));
  EXPECT_THAT(run.output(), HasSubstr("\n[node 1] [rank 3] rank 3 of 4"));
  EXPECT_FALSE(std::filesystem::exists(run.file("x_default/agent.sock")));
  EXPECT_FALSE(std::filesystem::exists(run.file("x_default/agent-1.sock")));
}

TEST(LocalNodes, go_on_when_a_worker_of_another_node_dies) {
  AgentProcess run(local_nodes("1 2 beat 7\n1 2 kill 9\n1 * train 1000000000\n2 * train 5\n"));
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("[node 1] lockstep: rank 2 (pid "));
  EXPECT_THAT(run.output(), HasSubstr("starting it again, the others keep their state"));
  EXPECT_THAT(run.output(), HasSubstr("lockstep: going on at step "));
  EXPECT_THAT(run.output(), HasSubstr(" with 4 ranks after "));
}

TEST(LocalNodes, end_with_the_code_of_the_one_that_fails_for_good) {
  AgentProcess run(local_nodes("* 3 failing the loss is nan\n* 3 exit 5\n* * await_cut\n"));
  EXPECT_EQ(run.wait(), 5) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("the loss is nan"));
  EXPECT_EQ(parse_json(run.termination_log(), "log")->at("exitCode"), 5);
  EXPECT_THAT(run.output(), Not(HasSubstr("starting it again")));
}

class LocalNodesStop : public testing::TestWithParam<int> {};

TEST_P(LocalNodesStop, together_with_the_signal_s_code) {
  AgentProcess run(local_nodes(kTrainForLong));
  ASSERT_TRUE(wait_until(run, is_training));
  run.send(GetParam());
  EXPECT_EQ(run.wait(), 128 + GetParam()) << run.output();
  EXPECT_THAT(run.output(), Not(HasSubstr("starting it again")));
}

INSTANTIATE_TEST_SUITE_P(Signals, LocalNodesStop, testing::Values(SIGTERM, SIGINT));

TEST(LocalNodes, stop_together_when_the_terminal_is_closed) {
  AgentProcess run(local_nodes(kTrainForLong));
  ASSERT_TRUE(wait_until(run, is_training));
  run.send(SIGHUP);
  EXPECT_EQ(run.wait(), 143) << run.output();
}

TEST(LocalNodes, leave_nobody_behind_when_the_parent_is_killed) {
  AgentProcess run(local_nodes(kTrainForLong));
  ASSERT_TRUE(wait_until(run, is_training));
  const Json status = status_of(run);
  const pid_t worker = status.at("workers").at(0).at("pid");
  run.send(SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);  // the agents, which hold the pipe, are gone by then
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const std::string program = "/proc/" + std::to_string(worker) + "/exe";  // a zombie has none
  while (std::filesystem::exists(program) && std::chrono::steady_clock::now() < deadline) ::poll(nullptr, 0, 1);
  EXPECT_FALSE(std::filesystem::exists(program)) << worker;
}

TEST(LocalNodes, are_started_again_together_when_one_comes_no_further_and_given_up_when_that_does_not_help) {
  AgentProcess run(local_nodes(kTrainForLong, {"--max_restarts", "100"}));
  ASSERT_TRUE(wait_until(run, is_training));
  pid_t killed = 0;
  // When the run has made a step meanwhile, more kills are needed.
  const auto kills_until = [&](const std::string& decision) {
    constexpr int kKillsMax = 20;
    for (int kills = 1; kills <= kKillsMax; ++kills) {
      killed = kill_node_1(run, killed);
      if (killed == 0) break;
      const std::string line = run.wait_for_line("node 1 (pid " + std::to_string(killed) + ") ended with ");
      if (line.find(decision) != std::string::npos) return kills;
      if (line.find("starting") == std::string::npos) break;
    }
    return 0;
  };
  ASSERT_GE(kills_until("stopping all nodes and starting them again together"), 3) << run.output();
  ASSERT_TRUE(wait_until(run, [](const Json& status) {
    const std::string decision = status.at("ladder").at("lastDecision");
    return is_training(status) && status.at("ladder").at("rung") == "gang" &&
           decision.find(": stopping all nodes and starting them again together") != std::string::npos;
  })) << run.output();
  EXPECT_GE(kills_until("; ending the job"), 1) << run.output();
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.output(), HasSubstr("3 times in a row a restart of node 1 came no further than step "));
  EXPECT_THAT(run.output(), HasSubstr("; ending the job\n"));
}

// ---- chaos ----

TEST(Chaos, kills_a_rank_and_says_what_it_cost) {
  AgentProcess run(local_nodes(kTrainForLong, kLongSilence));
  ASSERT_TRUE(wait_until(run, is_training));
  const std::string said = chaos(run, {"kill-rank", "--rank", "3", "--count", "2", "--every", "0"});
  EXPECT_THAT(said, HasSubstr("killed rank 3 (pid "));
  EXPECT_THAT(numbers_in(said, R"(the group broke \(SignalKILL\) after ([0-9]+\.[0-9]+) s)"), found_by_its_end())
      << said;
  EXPECT_THAT(said, HasSubstr("next committed step "));
  EXPECT_THAT(numbers_in(said, R"(1 step redone, ([0-9]+\.[0-9]+) s)"), found_by_its_end()) << said;
  const Json status = status_of(run);
  EXPECT_EQ(status.at("recoveriesTotal"), 2);
  EXPECT_EQ(status.at("recoveries").at(1).at("rank"), 3);
  EXPECT_EQ(status.at("recoveries").at(1).at("worldSize"), 4);
  EXPECT_THAT(chaos(run, {"kill-rank", "--rank", "9"}), HasSubstr("code 2: lockstep chaos: no rank 9 in this run"));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.output(), HasSubstr("goodput   "));
}

TEST(Chaos, kills_the_agent_of_a_node_which_is_replaced) {
  AgentProcess run(local_nodes(kTrainForLong, kLongSilence));
  ASSERT_TRUE(wait_until(run, is_training));
  const std::string said = chaos(run, {"kill-agent", "--node", "1"});
  EXPECT_THAT(said, HasSubstr("killed the agent of node 1 (pid "));
  EXPECT_THAT(numbers_in(said, R"(the group broke \(NodeLost\) after ([0-9]+\.[0-9]+) s)"), found_by_its_end()) << said;
  EXPECT_THAT(said, HasSubstr("with 4 ranks"));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.output(), HasSubstr("lockstep: node 1 (pid "));
  EXPECT_THAT(run.output(), HasSubstr("starting it again as attempt "));
}

TEST(Chaos, kills_node_0_whose_successor_is_found) {
  AgentProcess run(local_nodes(kTrainForLong, kLongSilence));
  ASSERT_TRUE(wait_until(run, is_training));
  const std::string said = chaos(run, {"kill-agent", "--node", "0"});
  EXPECT_THAT(numbers_in(said, R"(the group broke \(NodeLost\) after ([0-9]+\.[0-9]+) s)"), found_by_its_end()) << said;
  EXPECT_THAT(said, HasSubstr("the new group formed in "));
  EXPECT_THAT(said, HasSubstr("next committed step "));
  EXPECT_THAT(said, HasSubstr(" of work lost\n"));
  EXPECT_THAT(said, HasSubstr("with a new agent of node 0 (pid "));
  const Json status = status_of(run);
  EXPECT_EQ(status.at("recoveriesTotal"), 1);
  EXPECT_EQ(status.at("recoveries").at(0).at("cause"), "NodeLost");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
}

TEST(Chaos, stops_a_rank_which_is_given_up_when_it_stays_silent) {
  AgentProcess run(local_nodes(kTrainForLong, {"--heartbeat_timeout_seconds", "2"}));
  ASSERT_TRUE(wait_until(run, is_training));
  EXPECT_THAT(chaos(run, {"stop-rank", "--rank", "2"}), HasSubstr("next committed step "));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(numbers_in(run.output(), R"(has not run for ([0-9]+) s \(stopped, frozen or starved\))"),
              AllOf(Not(IsEmpty()), Each(Ge(2))))
      << run.output();
  EXPECT_THAT(run.output(), HasSubstr("T (stopped)"));
}

TEST(Chaos, lets_a_stopped_rank_go_on) {
  AgentProcess run(local_nodes(kTrainForLong, kLongSilence));
  ASSERT_TRUE(wait_until(run, is_training));
  const std::string said = chaos(run, {"stop-rank", "--rank", "2", "--seconds", "0.1", "--patience", "0.1"});
  EXPECT_THAT(said, AllOf(HasSubstr("for 0.100 s"), HasSubstr("the group did not break")));
  const int64_t step = status_of(run).at("workers").at(2).at("step");
  EXPECT_TRUE(wait_until(run, [step](const Json& status) { return status.at("workers").at(2).at("step") > step; }));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
}

// ---- agents one by one, as on several machines ----

// Agents of one job that share a port of this machine.
class SeparateAgents : public testing::Test {
 protected:
  // Chooses an ephemeral port that was free a moment ago.
  SeparateAgents() {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = std::to_string(ntohs(address.sin_port));
    ::close(fd);
  }

  AgentProcess::Setup node(int rank, const std::string& script, const std::string& nnodes = "2",
                           const std::string& token = "secret") const {
    return {.script = script,
            .flags = {"--nproc", "1", "--device", "cpu", "--nnodes", nnodes, "--node_rank", std::to_string(rank),
                      "--coordinator", "127.0.0.1:" + port_, "--rejoin_timeout_seconds", "1"},
            .environment = {"LOCKSTEP_TOKEN=" + token},
            .command = {}};
  }

  std::string port_;
};

TEST_F(SeparateAgents, find_each_other) {
  AgentProcess second(node(1, "* * whoami\n"));
  AgentProcess first(node(0, "* * whoami\n"));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_THAT(first.output(), HasSubstr("rank 0 of 2"));
  EXPECT_THAT(second.output(), HasSubstr("[rank 1] rank 1 of 2"));
  EXPECT_THAT(second.output(), Not(HasSubstr("training on the CPU")));
}

TEST_F(SeparateAgents, are_refused_with_a_wrong_token) {
  AgentProcess first(node(0, "* * exit 0\n"));
  AgentProcess stranger(node(1, "* * exit 0\n", "2", "guess"));
  EXPECT_EQ(stranger.wait(), 2) << stranger.output();
  EXPECT_THAT(stranger.output(), HasSubstr("TOKEN"));
  AgentProcess second(node(1, "* * exit 0\n"));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
}

TEST_F(SeparateAgents, are_refused_with_other_flags_than_node_0_which_waits_for_one_that_fits) {
  const auto with_terms = [&](int rank, const std::string& terms) {
    AgentProcess::Setup setup = node(rank, "* * exit 0\n");
    setup.environment.push_back("FAKE_WORKER_TERMS=" + terms);
    return setup;
  };
  AgentProcess first(with_terms(0, R"({"lr":"0.1","number of samples":5})"));
  AgentProcess other(with_terms(1, R"({"lr":"0.2","number of samples":5})"));
  EXPECT_EQ(other.wait(), 2) << other.output();
  EXPECT_THAT(other.output(), HasSubstr("--lr is 0.1 in node 0 ("));
  EXPECT_THAT(other.output(), HasSubstr(") and 0.2 in node 1 ("));
  EXPECT_THAT(other.output(), HasSubstr("; start all ranks with the same flags, data and version of lockstep"));
  AgentProcess second(with_terms(1, R"({"lr":"0.1","number of samples":5})"));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
}

TEST_F(SeparateAgents, are_warned_that_nobody_is_kept_out) {
  AgentProcess first(node(0, "* * exit 0\n", "2", ""));
  AgentProcess second(node(1, "* * exit 0\n", "2", ""));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_THAT(first.output(), HasSubstr("warning: LOCKSTEP_TOKEN is not set: whoever reaches port " + port_));
}

TEST_F(SeparateAgents, go_on_with_fewer_when_they_may) {
  AgentProcess::Setup patient = node(0, "1 0 train 1000000000\n2 0 whoami\n", "1:2");
  patient.flags.back() = "20";  // --rejoin_timeout_seconds: with the second one from the beginning
  AgentProcess first(std::move(patient));
  {
    AgentProcess second(node(1, "* * train 1000000000\n", "1:2"));
    ASSERT_TRUE(first.wait_for_output("2 of 2 wanted nodes are ready"));
    ASSERT_TRUE(wait_until(first, [](const Json& status) { return status.at("workers").at(0).at("step") > 3; }));
  }
  EXPECT_TRUE(first.wait_for_output("rank 0 of 1"));  // waited for separately, because it takes most of kPatience
  EXPECT_EQ(first.wait(), 0) << first.output();
}

// The only worker of a node ends the job: its agent has nothing left to do, and must report the end all the same.
TEST_F(SeparateAgents, all_end_with_the_code_of_a_node_whose_only_worker_failed_for_good) {
  for (const int failing : {0, 1}) {
    AgentProcess failed(node(failing, "* * exit 3\n"));
    AgentProcess other(node(1 - failing, "* * await_cut\n"));
    EXPECT_EQ(failed.wait(), 3) << failed.output();
    EXPECT_EQ(other.wait(), 3) << other.output();
  }
}

TEST_F(SeparateAgents, name_the_port_that_is_taken) {
  AgentProcess first(node(0, "* * exit 0\n"));
  ASSERT_TRUE(first.wait_for_output("listens for the others on port " + port_));
  AgentProcess twin(node(0, "* * exit 0\n"));
  EXPECT_EQ(twin.wait(), 2) << twin.output();
  EXPECT_THAT(twin.output(), HasSubstr("port " + port_));
}

TEST_F(SeparateAgents, say_where_they_look_for_a_coordinator_and_end_with_10) {
  AgentProcess::Setup lonely = node(1, "* * exit 0\n");
  lonely.flags.insert(lonely.flags.end(), {"--rendezvous_timeout_seconds", "10"});
  AgentProcess second(std::move(lonely));
  EXPECT_EQ(second.wait(), 10) << second.output();
  EXPECT_THAT(second.output(), HasSubstr("looking for the coordinator at 127.0.0.1:" + port_));
  EXPECT_THAT(second.output(), HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace lockstep::test
