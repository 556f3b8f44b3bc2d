// `lockstep run` as a process, with scripted workers.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "runner/base/json.h"
#include "tests/runner/cli/agent_process.h"

namespace lockstep::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

AgentProcess::Setup two(std::string script, std::vector<std::string> more_flags = {}) {
  // A worker that gets no CPU for seconds is not silent here.
  std::vector<std::string> flags{"--nproc", "2", "--device", "cpu", "--heartbeat_timeout_seconds", "20"};
  flags.insert(flags.end(), more_flags.begin(), more_flags.end());
  return {.script = std::move(script), .flags = std::move(flags), .environment = {}, .command = {}};
}

// A socket that holds a port of this machine.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  [[nodiscard]] std::string port() const { return std::to_string(port_); }

 private:
  int fd_;
  int port_ = 0;
};

// The whole answer, head and body.
std::string http_get(const std::string& port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::array<char, 4096> chunk{};
    for (ssize_t n = 0; (n = ::read(fd, chunk.data(), chunk.size())) > 0;) {
      answer.append(chunk.data(), static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return answer;
}

std::string body_of(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

std::string free_port() { return Listener().port(); }

// ---- output ----

TEST(Run, ends_with_0_when_all_workers_do) {
  AgentProcess agent(two("* * beat 1\n* * exit 0\n"));
  EXPECT_EQ(agent.wait(), 0) << agent.output();
  EXPECT_THAT(agent.output(), StartsWith("training on the CPU with 2 ranks\n"));
  EXPECT_THAT(agent.output(), ContainsRegex("goodput +[0-9.]+ % of [0-9.]+ s: work"));
  EXPECT_EQ(parse_json(agent.termination_log(), "log")->at("exitCode"), 0);
}

TEST(Run, relays_rank_0_as_it_is_and_names_the_others) {
  AgentProcess agent(two("* 0 print from zero\n* 1 print from one\n* 1 eprint err of one\n* 0 partial no newline\n"));
  EXPECT_EQ(agent.wait(), 0);
  EXPECT_THAT(agent.output(), HasSubstr("\nfrom zero\n"));
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] from one\n"));
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] err of one\n"));
  EXPECT_THAT(agent.output(), HasSubstr("no newline\n"));
  EXPECT_THAT(agent.output(), Not(HasSubstr("goodput"))) << "nothing was committed";
  EXPECT_THAT(agent.output(), Not(HasSubstr("[rank 0]")));
}

TEST(Run, gives_each_worker_its_rank_and_its_own_process_group) {
  AgentProcess agent(two("* * whoami\n"));
  EXPECT_EQ(agent.wait(), 0);
  EXPECT_THAT(agent.output(), HasSubstr("\nrank 0 of 2"));
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] rank 1 of 2"));
  const size_t pid = agent.output().find(" pid ") + 5;
  const std::string number = agent.output().substr(pid, agent.output().find(' ', pid) - pid);
  EXPECT_THAT(agent.output(), HasSubstr(" pid " + number + " group " + number + "\n"));
}

TEST(Run, lets_openmp_threads_spin_for_a_moment_unless_told_otherwise) {
  const std::string script = "* 0 env GOMP_SPINCOUNT\n";
  const auto said = [&](std::vector<std::string> environment) {
    AgentProcess::Setup setup = two(script);
    setup.environment = std::move(environment);
    AgentProcess agent(std::move(setup));
    EXPECT_EQ(agent.wait(), 0);
    return agent.output();
  };
  EXPECT_THAT(said({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}), HasSubstr("GOMP_SPINCOUNT is 1000\n"));
  EXPECT_THAT(said({"OMP_WAIT_POLICY=active", "GOMP_SPINCOUNT"}), HasSubstr("GOMP_SPINCOUNT is unset\n"));
  EXPECT_THAT(said({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT=9"}), HasSubstr("GOMP_SPINCOUNT is 9\n"));
}

TEST(Run, lets_the_workers_have_the_last_word) {
  AgentProcess agent(two("* 0 progress 5\n* 0 print all done\n* * exit 0\n"));
  EXPECT_EQ(agent.wait(), 0);
  EXPECT_THAT(agent.output(), testing::EndsWith("all done\n"));
}

TEST(Run, carries_the_store_between_workers) {
  AgentProcess agent(two("* 0 wait key\n* 0 print seen\n* 1 set key\n"));
  EXPECT_EQ(agent.wait(), 0);
  EXPECT_THAT(agent.output(), HasSubstr("seen\n"));
}

// ---- exit codes and restarts ----

TEST(Run, starts_the_dead_one_alone_again_and_goes_on) {
  AgentProcess agent(
      two("1 0 wait dead\n1 0 lose_peer\n1 1 beat 7\n1 1 set dead\n1 1 kill 9\n"
          "2 0 resumed 8\n2 * print second life\n"));
  EXPECT_EQ(agent.wait(), 0) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr("lockstep: rank 1 (pid "));
  EXPECT_THAT(agent.output(),
              HasSubstr(") ended with signal 9 (SIGKILL) at step 7; starting it again, the others keep their state"));
  EXPECT_THAT(agent.output(), HasSubstr("lockstep: going on at step 8 with 2 ranks after "));
  EXPECT_THAT(agent.output(), HasSubstr("goodput   "));
  EXPECT_THAT(agent.output(), HasSubstr("\nsecond life\n"));
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] second life\n"));
}

TEST(Run, kills_a_survivor_that_hangs_in_a_collective_and_shows_its_threads) {
  AgentProcess agent(two("1 0 set up\n1 0 collective\n1 0 hang\n1 1 wait up\n1 1 exit 77\n2 * print again\n"));
  ASSERT_TRUE(agent.wait_for_output(") hangs; its threads")) << agent.output();
  EXPECT_EQ(agent.wait(), 0) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr(") hangs; its threads, as the kernel sees them:\nlockstep:   thread "));
  EXPECT_THAT(agent.output(), HasSubstr("rank 1 (pid "));
  EXPECT_THAT(agent.output(), HasSubstr("exit code 77 (Crash)"));
  EXPECT_THAT(agent.output(), HasSubstr("\nagain\n"));
}

TEST(Run, gives_up_when_the_restarts_are_used_up) {
  AgentProcess agent(two("1 1 beat 1\n2 1 beat 2\n* 0 await_cut\n* 1 exit 77\n", {"--max_restarts", "1"}));
  EXPECT_EQ(agent.wait(), 77) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr("giving up after 1 restarts (--max_restarts 1)"));
}

class RunEndsForGood : public testing::TestWithParam<int> {};

TEST_P(RunEndsForGood, with_the_workers_code_and_words) {
  const std::string code = std::to_string(GetParam());
  AgentProcess agent(two("* 0 await_cut\n* 1 failing the reason why\n* 1 exit " + code + "\n"));
  EXPECT_EQ(agent.wait(), GetParam());
  EXPECT_THAT(agent.output(), HasSubstr("the reason why"));
  EXPECT_THAT(agent.output(), Not(HasSubstr("starting it again")));
  const Result<Json> log = parse_json(agent.termination_log(), "log");
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(log->at("exitCode"), GetParam());
  EXPECT_EQ(log->at("rank"), 1);
  EXPECT_THAT(log->at("message").get<std::string>(), HasSubstr("the reason why"));
}

INSTANTIATE_TEST_SUITE_P(Codes, RunEndsForGood, testing::Values(2, 3, 5));

TEST(Run, says_wrong_usage_in_the_workers_words_and_the_code_once) {
  AgentProcess agent(two("* 0 beat 0\n* 0 failing no such thing\n* 0 exit 2\n* 1 await_cut\n"));
  EXPECT_EQ(agent.wait(), 2);
  EXPECT_THAT(agent.output(), HasSubstr("\nlockstep: no such thing (exit code 2, InvalidUsage)\n"));
}

TEST(Run, names_rank_and_code_once_when_a_worker_fails) {
  AgentProcess agent(two("* 1 beat 0\n* 1 failing the loss is nan\n* 1 exit 5\n* 0 await_cut\n"));
  EXPECT_EQ(agent.wait(), 5);
  EXPECT_THAT(agent.output(), HasSubstr(") ended with exit code 5 (NotFinite): the loss is nan\n"));
}

TEST(Run, ends_and_restarts_a_worker_that_sends_nonsense) {
  AgentProcess agent(two("1 0 await_cut\n1 1 garbage\n1 1 hang\n2 * print fine\n"));
  EXPECT_EQ(agent.wait(), 0) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr("message of unknown type \"nonsense\""));
}

TEST(Run, names_the_workers_that_never_say_hello) {
  AgentProcess::Setup setup = two("", {"--rendezvous_timeout_seconds", "1", "--max_restarts", "0"});
  setup.environment = {"FAKE_WORKER_SILENT=1"};
  AgentProcess agent(std::move(setup));
  EXPECT_EQ(agent.wait(), 11) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr("did not say hello within 1 s"));
}

// ---- signals ----

class RunForwards : public testing::TestWithParam<int> {};

TEST_P(RunForwards, the_signal_once_and_ends_with_128_and_it) {
  AgentProcess agent(two("* 1 until_signal\n* 0 until_signal\n"));
  ASSERT_TRUE(agent.wait_for_output("\nwaiting for a signal"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] waiting for a signal"));
  agent.send(GetParam());
  EXPECT_EQ(agent.wait(), 128 + GetParam());
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] got signal " + std::to_string(GetParam())));
  EXPECT_THAT(agent.output(), Not(HasSubstr("going on")));
}

INSTANTIATE_TEST_SUITE_P(Signals, RunForwards, testing::Values(SIGTERM, SIGINT));

TEST(Run, stops_in_order_when_the_terminal_is_closed) {
  AgentProcess agent(two("* 1 until_signal\n* 0 until_signal\n"));
  ASSERT_TRUE(agent.wait_for_output("\nwaiting for a signal"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] waiting for a signal"));
  agent.send(SIGHUP);
  EXPECT_EQ(agent.wait(), 143);
  EXPECT_THAT(agent.output(), HasSubstr("[rank 1] got signal " + std::to_string(SIGTERM)));
  EXPECT_THAT(agent.output(), HasSubstr("the terminal was closed (SIGHUP)"));
}

TEST(Run, goes_on_under_nohup_when_the_terminal_is_closed) {
  ::signal(SIGHUP, SIG_IGN);  // as nohup does; the agent inherits it
  AgentProcess agent(two("* 1 until_signal\n* 0 until_signal\n"));
  ASSERT_TRUE(agent.wait_for_output("\nwaiting for a signal"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] waiting for a signal"));
  ::signal(SIGHUP, SIG_DFL);
  agent.send(SIGHUP);
  agent.send(SIGINT);
  EXPECT_EQ(agent.wait(), 130);
  EXPECT_THAT(agent.output(), Not(HasSubstr("SIGHUP")));
}

TEST(Run, kills_who_takes_longer_to_stop_than_the_pod_is_given) {
  AgentProcess::Setup setup = two("* * hang\n");
  setup.environment = {"LOCKSTEP_STOP_TIMEOUT_SECONDS=1"};
  AgentProcess agent(std::move(setup));
  ASSERT_TRUE(agent.wait_for_output("\nhanging"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] hanging"));
  agent.send(SIGTERM);
  EXPECT_EQ(agent.wait(), 11);
  EXPECT_THAT(agent.output(), HasSubstr("had not stopped 1 s after it was asked to"));
}

TEST(Run, leaves_at_once_on_a_second_interrupt) {
  AgentProcess agent(two("* * hang\n"));
  ASSERT_TRUE(agent.wait_for_output("\nhanging"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] hanging"));
  agent.send(SIGINT);
  ASSERT_TRUE(agent.wait_for_output("Ctrl-C again leaves at once"));
  agent.send(SIGINT);
  EXPECT_EQ(agent.wait(), 130);
}

TEST(Run, leaves_no_worker_when_the_agent_is_killed) {
  AgentProcess agent(two("* * whoami\n* * hang\n"));
  ASSERT_TRUE(agent.wait_for_output("\nhanging"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] hanging"));
  std::vector<pid_t> workers;
  for (size_t at = 0; (at = agent.output().find(" pid ", at)) != std::string::npos; at += 5) {
    workers.push_back(std::stoi(agent.output().substr(at + 5)));
  }
  ASSERT_EQ(workers.size(), 2U);
  agent.send(SIGKILL);
  EXPECT_EQ(agent.wait(), 128 + SIGKILL);
  for (const pid_t pid : workers) {
    // Gone, or a zombie of the process that inherits orphans here.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    char state = 'R';
    while (state != 'Z' && state != 0 && std::chrono::steady_clock::now() < deadline) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string id;
      std::string name;
      state = 0;
      stat >> id >> name >> state;
      ::poll(nullptr, 0, 1);
    }
    EXPECT_TRUE(state == 'Z' || state == 0) << state;
  }
}

// ---- HTTP ----

TEST(Run, serves_status_metrics_and_health) {
  const std::string port = free_port();
  AgentProcess agent(
      two("* 0 beat 5\n* 0 progress 5\n* 0 checkpoint 4\n* * metrics\n* 1 until_signal\n* 0 until_signal\n",
          {"--status_port", port}));
  ASSERT_TRUE(agent.wait_for_output("\nwaiting for a signal"));
  ASSERT_TRUE(agent.wait_for_output("[rank 1] waiting for a signal"));
  // The page shows the new beats once the agent has read them again.
  const auto shows_what_beats_say = [&] {
    const Result<Json> page = parse_json(body_of(http_get(port, "/status")), "/status");
    return page.ok() && !page->at("progress").is_null() && !page->at("lastCheckpoint").is_null() &&
           page->at("workers").size() == 2 && page->at("workers").at(0).at("step") == 5 &&
           page->at("workers").at(1).at("activity") == "training";
  };
  for (int looks = 0; looks < 1000 && !shows_what_beats_say(); ++looks) ::poll(nullptr, 0, 10);

  EXPECT_THAT(http_get(port, "/healthz"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(http_get(port, "/readyz"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(http_get(port, "/"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(http_get(port, "/nothing"), StartsWith("HTTP/1.1 404"));
  const std::string metrics = body_of(http_get(port, "/metrics"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_steps_total{rank=\"0\"} 7"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_steps_total{rank=\"1\"} 7"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_agent_workers 2"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_world_size 2"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_rank_unchanged_seconds{rank=\"1\"}"));
  EXPECT_THAT(metrics, HasSubstr("lockstep_goodput_seconds_total{cause=\"startup\",kind=\"waiting\"}"));
  EXPECT_EQ(metrics.find("# TYPE lockstep_steps_total"), metrics.rfind("# TYPE lockstep_steps_total"));

  const Result<Json> status = parse_json(body_of(http_get(port, "/status")), "/status");
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->at("phase"), "Running");
  EXPECT_EQ(status->at("workload"), "sasrec");
  EXPECT_EQ(status->at("progress").at("step"), 5);
  EXPECT_EQ(status->at("lastCheckpoint").at("step"), 4);
  EXPECT_EQ(status->at("workers").size(), 2U);
  EXPECT_EQ(status->at("workers").at(0).at("step"), 5);
  EXPECT_EQ(status->at("workers").at(1).at("state"), "joined");
  EXPECT_EQ(status->at("workers").at(1).at("activity"), "training");
  EXPECT_EQ(status->at("nodes").at(0).at("state"), "member");
  EXPECT_EQ(status->at("worldSize"), 2);
  EXPECT_EQ(status->at("ladder").at("budgetLeft"), 10);
  EXPECT_TRUE(status->at("recoveries").empty());

  // What the operator reads: all but the list of the ranks. Any other query is ignored.
  const Result<Json> summary = parse_json(body_of(http_get(port, "/status?view=summary")), "/status?view=summary");
  ASSERT_TRUE(summary.ok());
  EXPECT_FALSE(summary->contains("workers"));
  EXPECT_EQ(summary->at("progress").at("step"), 5);
  EXPECT_EQ(summary->at("nodes"), status->at("nodes"));
  EXPECT_TRUE(parse_json(body_of(http_get(port, "/status?view=other")), "/status?view=other")->contains("workers"));

  agent.send(SIGTERM);
  EXPECT_EQ(agent.wait(), 143);
}

TEST(Run, refuses_a_taken_port_that_was_asked_for) {
  const Listener listener;
  AgentProcess agent(two("", {"--status_port", listener.port()}));
  EXPECT_EQ(agent.wait(), 2);
  EXPECT_THAT(agent.output(), HasSubstr("port " + listener.port()));
  EXPECT_THAT(agent.output(), HasSubstr("--status_port N"));
  EXPECT_THAT(agent.output(), HasSubstr("--status_port 0"));
}

// ---- refusals ----

struct Refusal {
  std::string name;
  std::vector<std::string> flags;
  std::vector<std::string> environment;
  std::vector<std::string> said;
};

class RunRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(RunRefuses, with_code_2_and_says_why) {
  AgentProcess::Setup setup = two("* * print must not run\n");
  setup.flags = GetParam().flags;
  setup.environment = GetParam().environment;
  AgentProcess agent(std::move(setup));
  EXPECT_EQ(agent.wait(), 2);
  for (const std::string& text : GetParam().said) EXPECT_THAT(agent.output(), HasSubstr(text));
  EXPECT_THAT(agent.output(), Not(HasSubstr("must not run")));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RunRefuses,
    testing::Values(
        Refusal{"batch", {"--nproc", "4", "--batch_size", "3", "--device", "cpu"}, {}, {"--batch_size 3", "4 ranks"}},
        Refusal{"node_rank", {"--nnodes", "2"}, {}, {"2 nodes", "--node_rank (0 to 1)", "LOCKSTEP_NODE_RANK"}},
        Refusal{"coordinator",
                {"--nnodes", "2", "--node_rank", "1"},
                {},
                {"node 1 of 2", "--coordinator HOST:PORT", "LOCKSTEP_COORDINATOR"}},
        Refusal{"min_nodes", {"--nnodes", "3:2", "--node_rank", "0"}, {}, {"3:2", "MIN 3 is above MAX 2"}},
        Refusal{"local_nodes", {"--local_nodes", "2", "--node_rank", "1"}, {}, {"--local_nodes 2", "--node_rank"}},
        Refusal{"local_nnodes", {"--local_nodes", "2", "--nnodes", "3"}, {}, {"--local_nodes 2", "--nnodes"}},
        Refusal{"local_batch",
                {"--local_nodes", "2", "--nproc", "2", "--batch_size", "3", "--device", "cpu"},
                {},
                {"--batch_size 3", "4 ranks"}},
        Refusal{"torchrun",
                {},
                {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"},
                {"RANK", "lockstep-worker"}},
        Refusal{"local_rank", {"--local_rank", "1"}, {}, {"--local_rank 1", "starts the ranks itself"}},
        Refusal{"rank_alone", {}, {"RANK=0"}, {"WORLD_SIZE"}},
        Refusal{"unknown_flag", {"--batch_sise", "3"}, {}, {"batch_size"}},
        Refusal{"no_worker", {"--device", "cpu"}, {"LOCKSTEP_WORKER=/nowhere/worker"}, {"/nowhere/worker"}}),
    [](const auto& param) { return param.param.name; });

TEST(Lockstep, names_the_nearest_command) {
  AgentProcess agent({.script = "", .flags = {}, .environment = {}, .command = {"rnu"}});
  EXPECT_EQ(agent.wait(), 2);
  EXPECT_THAT(agent.output(), HasSubstr("did you mean \"run\"?"));
}

TEST(Lockstep, names_the_nearest_flag_of_its_own) {
  AgentProcess agent({.script = "", .flags = {}, .environment = {}, .command = {"--verson"}});
  EXPECT_EQ(agent.wait(), 2);
  EXPECT_THAT(agent.output(), HasSubstr("did you mean \"--version\"?"));
}

TEST(Lockstep, says_its_version_and_helps) {
  AgentProcess version({.script = "", .flags = {}, .environment = {}, .command = {"--version"}});
  EXPECT_EQ(version.wait(), 0);
  EXPECT_THAT(version.output(), StartsWith("lockstep 0."));
  AgentProcess help({.script = "", .flags = {}, .environment = {}, .command = {"run", "sasrec", "--help"}});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("--batch_size"));
}

}  // namespace
}  // namespace lockstep::test
