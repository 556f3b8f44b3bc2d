#include "runner/agent/control_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/asio/post.hpp>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runner/base/line_channel.h"
#include "tests/runner/agent/run_until.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string problem_of(const std::string& line) {
  const Result<ControlRequest> request = parse_control_request(line);
  return request.ok() ? "" : request.error().message;
}

TEST(ControlRequest, is_one_of_the_commands) {
  EXPECT_TRUE(std::holds_alternative<GetStatus>(*parse_control_request(R"({"command":"status"})")));
  EXPECT_EQ(std::get<WaitForRecoveries>(*parse_control_request(R"({"command":"recoveries","after":-1})")).after, -1);
}

TEST(ControlRequest, tells_a_decision) {
  const RestartDecision told{.level = "gang", .reason = "Crash", .line = "node 1 …; ending the job", .gives_up = true};
  const auto heard = std::get<ReportDecision>(*parse_control_request(decision_request(told))).decision;
  EXPECT_EQ(heard.level, told.level);
  EXPECT_EQ(heard.reason, told.reason);
  EXPECT_EQ(heard.line, told.line);
  EXPECT_TRUE(heard.gives_up);
}

TEST(ControlRequest, names_what_is_wrong) {
  EXPECT_THAT(problem_of("nonsense"), HasSubstr("request"));
  EXPECT_THAT(problem_of("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(problem_of("{}"), HasSubstr("\"command\""));
  EXPECT_THAT(problem_of(R"({"command":"kil-rank"})"), HasSubstr("unknown command \"kil-rank\": expected status"));
  EXPECT_THAT(problem_of(R"({"command":"recoveries","after":0,"seconds":-2})"), HasSubstr("\"seconds\""));
  EXPECT_THAT(problem_of(R"({"command":"recoveries"})"), HasSubstr("\"after\""));
  EXPECT_THAT(problem_of(R"({"command":"decision"})"), HasSubstr("\"level\""));
}

class ControlSocketInAFolder : public testing::Test {
 protected:
  Result<std::unique_ptr<ControlSocket>> open(const std::string& folder, int node = 0) {
    return ControlSocket::open(loop_, folder, node, [this](const ControlRequest&, const ControlSocket::Answer& answer) {
      ++requests_;
      answer({{"ok", true}, {"requests", requests_}});
    });
  }

  // Asks from another thread while the loop runs here.
  std::string ask(const std::string& folder, const std::string& line) {
    std::string answer;
    std::thread client([&] {
      const Result<int> fd = connect_control_socket(folder, 0);
      if (!fd.ok()) {
        answer = fd.error().message;
      } else {
        LineChannel channel(*fd);
        answer = "closed";  // perhaps before all is written
        if (channel.write_line(line).ok()) {
          const auto said = channel.read_line();
          if (said.ok() && *said) answer = **said;
        }
      }
      boost::asio::post(loop_, [this] { loop_.stop(); });
    });
    loop_.restart();
    loop_.run_for(kPatience);
    client.join();
    return answer;
  }

  bool until(const std::function<bool()>& is_so) { return run_until(loop_, is_so); }

  boost::asio::io_context loop_;
  TemporaryFolder temporary_;
  std::filesystem::path root_ = temporary_.path();
  int requests_ = 0;
};

TEST_F(ControlSocketInAFolder, is_made_with_its_folder_for_the_owner_alone_and_goes_away) {
  const std::string folder = (root_ / "new" / "run").string();
  {
    auto control = open(folder);
    ASSERT_TRUE(control.ok()) << control.error().message;
    struct stat info {};
    ASSERT_EQ(::stat((folder + "/agent.sock").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
    EXPECT_EQ(ask(folder, R"({"command":"status"})"), R"({"ok":true,"requests":1})");
    EXPECT_THAT(ask(folder, "nonsense"), HasSubstr("error"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));  // nothing else came into it
  EXPECT_THAT(connect_control_socket(folder, 0).error().message, HasSubstr("no run is active"));
}

TEST_F(ControlSocketInAFolder, may_have_a_path_longer_than_a_socket_s_address) {
  const std::string folder = (root_ / std::string(150, 'd')).string();
  auto control = open(folder);
  ASSERT_TRUE(control.ok()) << control.error().message;
  EXPECT_THAT(ask(folder, R"({"command":"status"})"), HasSubstr("ok"));
}

TEST_F(ControlSocketInAFolder, replaces_what_a_dead_agent_left) {
  const std::string folder = root_.string();
  std::ofstream(folder + "/agent.sock") << "not even a socket";
  auto control = open(folder);
  ASSERT_TRUE(control.ok()) << control.error().message;
  EXPECT_THAT(ask(folder, R"({"command":"status"})"), HasSubstr("ok"));
}

TEST_F(ControlSocketInAFolder, leaves_a_living_agent_its_own) {
  const std::string folder = root_.string();
  auto first = open(folder);
  ASSERT_TRUE(first.ok());
  auto second = open(folder);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_THAT(ask(folder, R"({"command":"status"})"), HasSubstr("ok"));
}

TEST_F(ControlSocketInAFolder, of_an_agent_that_is_frozen_holds_nobody_up_and_stays_its_own) {
  const std::string folder = root_.string();
  const auto frozen = open(folder);  // its loop does not run
  ASSERT_TRUE(frozen.ok());
  std::deque<LineChannel> waiting;  // they do not move
  Result<int> fd = connect_control_socket(folder, 0);
  for (; fd.ok() && waiting.size() < 4 * kControlClientsMax; fd = connect_control_socket(folder, 0)) {
    waiting.emplace_back(*fd);
  }
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(fd.error().message, HasSubstr("agent.sock: its agent has taken no connection for 1 s: it is stopped or"));
  const auto second = open(folder);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
}

TEST_F(ControlSocketInAFolder, knows_whether_an_answer_is_still_awaited) {
  const std::string folder = root_.string();
  std::optional<ControlSocket::Answer> answer;
  auto control = ControlSocket::open(
      loop_, folder, 0, [&](const ControlRequest&, const ControlSocket::Answer& wanted) { answer.emplace(wanted); });
  ASSERT_TRUE(control.ok());
  auto client = std::make_unique<LineChannel>(*connect_control_socket(folder, 0));
  ASSERT_TRUE(client->write_line(R"({"command":"status"})").ok());
  ASSERT_TRUE(until([&] { return answer.has_value(); }));
  EXPECT_TRUE(answer->is_awaited());
  client.reset();
  ASSERT_TRUE(until([&] { return !answer->is_awaited(); }));
  (*answer)({{"too", "late"}});
  client = std::make_unique<LineChannel>(*connect_control_socket(folder, 0));
  ASSERT_TRUE(client->write_line(R"({"command":"status"})").ok());
  ASSERT_TRUE(until([&] { return answer->is_awaited(); }));
  *control = nullptr;
  EXPECT_FALSE(answer->is_awaited());
  (*answer)({{"too", "late"}});
}

TEST_F(ControlSocketInAFolder, closes_a_client_with_an_endless_line) {
  auto control = open(root_.string());
  ASSERT_TRUE(control.ok());
  EXPECT_EQ(ask(root_.string(), std::string(2 * kControlLineBytesMax, 'x')), "closed");
}

TEST_F(ControlSocketInAFolder, has_a_name_per_node) {
  EXPECT_EQ(control_socket_name(0), "agent.sock");
  EXPECT_EQ(control_socket_name(12), "agent-12.sock");
  auto second = open(root_.string(), 2);
  auto first = open(root_.string(), 0);
  std::ofstream(root_ / "agent-x.sock") << "";
  std::ofstream(root_ / "agent-01.sock") << "";
  EXPECT_THAT(control_sockets_in(root_.string()), ElementsAre(0, 2));
  EXPECT_THAT(control_sockets_in("/nowhere"), ElementsAre());
}

TEST_F(ControlSocketInAFolder, says_why_it_cannot_be_made) {
  std::ofstream(root_ / "file") << "";
  const auto control = open((root_ / "file").string());
  ASSERT_FALSE(control.ok());
  EXPECT_THAT(control.error().message, HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace lockstep
