// What the operator asks of agents, against a server that answers as the test sets it.
#include "operator/train/agent_client.h"

#include <gtest/gtest.h>

#include "tests/fake/http_server.h"

namespace lockstep::train {
namespace {

using fake::Exchange;
using fake::HttpServer;

constexpr const char* kLoopback = "127.0.0.1";

// Asks again after a time-out: a busy machine may not run the server within the 2 s of an exchange.
template <typename Ask>
auto patiently(const Ask& ask) {
  auto answer = ask();
  for (int i = 0; i < 10 && !answer.ok() && answer.error().code == ErrorCode::kUnavailable; ++i) answer = ask();
  return answer;
}

TEST(AgentClient, reads_the_status) {
  HttpServer server({}, [](Exchange& exchange) {
    EXPECT_EQ(exchange.request().method, "GET");
    EXPECT_EQ(exchange.request().path, "/status");
    EXPECT_EQ(exchange.request().query, "view=summary");
    // A pod's address may be another pod's by now: the token is for POST alone.
    EXPECT_FALSE(exchange.request().headers.contains("authorization"));
    exchange.answer(200, "{\"phase\":\"Running\"}");
  });
  const Result<std::string> body = patiently([&] { return read_agent_status(kLoopback, server.port()); });
  ASSERT_TRUE(body.ok()) << body.error().message;
  EXPECT_EQ(*body, "{\"phase\":\"Running\"}");
}

TEST(AgentClient, sends_the_node_count_with_the_job_s_token) {
  HttpServer server({}, [](Exchange& exchange) {
    EXPECT_EQ(exchange.request().method, "POST");
    EXPECT_EQ(exchange.request().path, "/nodes");
    EXPECT_EQ(exchange.request().headers.at("authorization"), "Bearer secret");
    EXPECT_EQ(exchange.request().body, "{\"nodes\":3}");
    exchange.answer(202, "{\"nodes\":3}\n");
  });
  EXPECT_TRUE(patiently([&] { return send_num_nodes(kLoopback, server.port(), "secret", 3); }).ok());
}

TEST(AgentClient, sends_the_address_of_pod_0_with_the_job_s_token) {
  HttpServer server({}, [](Exchange& exchange) {
    EXPECT_EQ(exchange.request().method, "POST");
    EXPECT_EQ(exchange.request().path, "/coordinator");
    EXPECT_EQ(exchange.request().headers.at("authorization"), "Bearer secret");
    EXPECT_EQ(exchange.request().body, "{\"address\":\"10.98.0.4\"}");
    exchange.answer(202, "{\"address\":\"10.98.0.4\"}\n");
  });
  EXPECT_TRUE(
      patiently([&] { return send_coordinator_address(kLoopback, server.port(), "secret", "10.98.0.4"); }).ok());
}

TEST(AgentClient, says_what_was_answered_when_it_was_refused) {
  HttpServer server({}, [](Exchange& exchange) { exchange.answer(401, "Authorization must be …"); });
  const Status sent = patiently([&] { return send_num_nodes(kLoopback, server.port(), "wrong", 3); });
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kRetry);
  EXPECT_NE(sent.error().message.find("/nodes answers 401: Authorization"), std::string::npos) << sent.error().message;
}

TEST(AgentClient, does_not_wait_for_an_agent_that_is_silent) {
  HttpServer server({}, [](Exchange& exchange) { exchange.wait_for_client_to_go(); });
  const Result<std::string> body = read_agent_status(kLoopback, server.port());
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error().code, ErrorCode::kUnavailable);
}

TEST(AgentClient, gives_up_a_body_that_never_ends) {
  HttpServer server({}, [](Exchange& exchange) {
    exchange.begin(200);
    const std::string piece(size_t{1} << 16, 'x');
    while (exchange.chunk(piece)) continue;
  });
  const Result<std::string> body = patiently([&] { return read_agent_status(kLoopback, server.port()); });
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(body.error().message.find("more than 2 MiB"), std::string::npos) << body.error().message;
}

TEST(AgentClient, refuses_an_answer_that_is_no_http) {
  HttpServer server({}, [](Exchange& exchange) {
    exchange.raw("220 smtp.example.org ESMTP\r\n\r\n");
    exchange.cut();
  });
  const Result<std::string> body = patiently([&] { return read_agent_status(kLoopback, server.port()); });
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error().code, ErrorCode::kCorrupt);
}

TEST(AgentClient, says_that_nobody_listens) {
  uint16_t port = 0;
  {
    HttpServer server({}, [](Exchange& exchange) { exchange.cut(); });
    port = server.port();
  }
  const Result<std::string> body = read_agent_status(kLoopback, port);
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error().code, ErrorCode::kUnavailable);
}

TEST(AgentClient, wants_an_address) {
  const Result<std::string> body = read_agent_status("sasrec-0.sasrec", 8080);
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error().code, ErrorCode::kInvalid);
}

}  // namespace
}  // namespace lockstep::train
