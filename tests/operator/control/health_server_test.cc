#include "operator/control/health_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace lockstep::control {
namespace {

// The whole answer to "METHOD path", until the server closes.
std::string ask(int port, const std::string& path, const std::string& method = "GET") {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t got = 0; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
        answer.append(buffer, static_cast<size_t>(got));
      }
    }
  }
  ::close(fd);
  return answer;
}

std::string first_line(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }
std::string body(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

// One server for all tests, because a server takes a while to end.
class HealthServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    HealthServerOptions options;
    options.port = 0;
    options.metrics = [] { return std::string("widgets_total 3\n"); };
    options.ready = {
        {"crd", [] { return std::nullopt; }},
        {"caches", [] { return ready_ ? std::nullopt : std::optional<std::string>("pods: no list yet"); }}};
    Result<std::unique_ptr<HttpServer>> server = start_health_server(std::move(options));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override { ready_ = true; }

  static std::string get(const std::string& path) { return ask(server_->port(), path); }

  static inline std::unique_ptr<HttpServer> server_;
  static inline std::atomic<bool> ready_{true};
};

TEST_F(HealthServerTest, serves_metrics_as_prometheus_reads_them) {
  const std::string answer = get("/metrics");
  EXPECT_EQ(first_line(answer), "HTTP/1.1 200 OK");
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), std::string::npos) << answer;
  EXPECT_EQ(body(answer), "widgets_total 3\n");
}

TEST_F(HealthServerTest, is_healthy_and_ready_while_no_check_fails) {
  EXPECT_EQ(first_line(get("/healthz")), "HTTP/1.1 200 OK");
  EXPECT_EQ(body(get("/healthz")), "ok\n");
  EXPECT_EQ(first_line(get("/readyz")), "HTTP/1.1 200 OK");
  EXPECT_EQ(body(get("/readyz")), "[+] crd: ok\n[+] caches: ok\n");
}

TEST_F(HealthServerTest, what_is_not_ready_says_why_and_stays_healthy) {
  ready_ = false;
  EXPECT_EQ(first_line(get("/readyz")), "HTTP/1.1 503 Service Unavailable");
  EXPECT_EQ(body(get("/readyz")), "[+] crd: ok\n[-] caches: pods: no list yet\n");
  EXPECT_EQ(first_line(get("/healthz")), "HTTP/1.1 200 OK");
}

TEST_F(HealthServerTest, an_unknown_path_is_answered_with_the_known_ones) {
  const std::string answer = get("/nothing");
  EXPECT_EQ(first_line(answer), "HTTP/1.1 404 Not Found");
  EXPECT_NE(body(answer).find("/readyz"), std::string::npos);
}

TEST_F(HealthServerTest, head_has_no_body) {
  const std::string answer = ask(server_->port(), "/metrics", "HEAD");
  EXPECT_EQ(first_line(answer), "HTTP/1.1 200 OK");
  EXPECT_NE(answer.find("Content-Length: 16\r\n"), std::string::npos) << answer;
  EXPECT_EQ(body(answer), "");
}

TEST_F(HealthServerTest, takes_nothing) {
  EXPECT_EQ(first_line(ask(server_->port(), "/healthz", "POST")), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_EQ(first_line(ask(server_->port(), "/healthz", "DELETE")), "HTTP/1.1 405 Method Not Allowed");
}

// The kubelet restarts an operator that does not answer /healthz in time.
TEST_F(HealthServerTest, answers_while_many_peers_say_half_a_request) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> slow;
  for (int i = 0; i < 400; ++i) {
    slow.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(slow.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::send(slow.back(), "GET /he", 7, MSG_NOSIGNAL), 7);
  }
  EXPECT_EQ(first_line(get("/healthz")), "HTTP/1.1 200 OK");
  // This took less than the time-out of a slow request: no answer waited for one.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kHttpRequestTime);
  for (const int fd : slow) ::close(fd);
}

TEST_F(HealthServerTest, a_port_in_use_is_named_with_the_reason) {
  HealthServerOptions options;
  options.port = server_->port();
  const Result<std::unique_ptr<HttpServer>> second = start_health_server(std::move(options));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(second.error().message, "port " + std::to_string(server_->port()) +
                                        " for metrics and health checks cannot be listened on: Address already in "
                                        "use; choose another one");
}

TEST(HealthServer, an_invalid_port_is_refused) {
  for (const int port : {-1, 65536}) {
    HealthServerOptions options;
    options.port = port;
    const Result<std::unique_ptr<HttpServer>> server = start_health_server(std::move(options));
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.error().code, ErrorCode::kInvalid);
    EXPECT_NE(server.error().message.find("expected 0 to 65535"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::control
