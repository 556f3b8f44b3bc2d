#include "runner/base/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// A sanitizer keeps freed memory, so that the memory in use says nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

constexpr std::chrono::seconds kPatience{30};
constexpr size_t kBodyMax = 64;

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    is_connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Until everything is sent or the server accepts no more.
  void send(const std::string& bytes) const {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t size = ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (size <= 0) return;
      done += static_cast<size_t>(size);
    }
  }
  // Until the server closes.
  [[nodiscard]] std::string read_all() const {
    std::string answer;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(size));
    }
    return answer;
  }
  [[nodiscard]] bool is_connected() const { return is_connected_; }

 private:
  int fd_;
  bool is_connected_ = false;
};

std::string first_line(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpServer::Options options{.port = 0, .body_max = kBodyMax};
    options.handler = [this](const HttpRequest& request) {
      ++asked_;
      if (request.path == "/throws") throw std::runtime_error("a handler's trouble");
      return HttpAnswer{200, "text/plain", request.method + " " + request.path + " " + request.body + "\n"};
    };
    Result<std::unique_ptr<HttpServer>> server = HttpServer::start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
  }

  [[nodiscard]] std::string ask(const std::string& bytes) const {
    const Client client(server_->port());
    client.send(bytes);
    return client.read_all();
  }
  [[nodiscard]] std::string get(const std::string& path) const { return ask("GET " + path + " HTTP/1.1\r\n\r\n"); }

  std::atomic<int> asked_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, hands_over_method_path_and_body) {
  EXPECT_TRUE(get("/status?x=1").ends_with("\r\n\r\nGET /status \n"));
  EXPECT_TRUE(ask("POST /nodes HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").ends_with("POST /nodes abc\n"));
  EXPECT_TRUE(
      ask("POST /nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").ends_with(" abc\n"));
  EXPECT_TRUE(ask("GET / HTTP/1.0\r\n\r\n").ends_with("GET / \n"));
}

TEST_F(HttpServerTest, head_says_the_length_and_no_more) {
  const std::string answer = ask("HEAD /status HTTP/1.1\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 13\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST_F(HttpServerTest, a_path_is_taken_as_it_was_sent) {
  EXPECT_TRUE(get("/../../etc/passwd").ends_with("GET /../../etc/passwd \n"));
  EXPECT_TRUE(get("/%2e%2e/%00").ends_with("GET /%2e%2e/%00 \n"));
}

TEST_F(HttpServerTest, refuses_what_is_no_request_and_never_asks_the_handler) {
  const struct {
    std::string bytes;
    const char* first_line;
  } cases[] = {
      {std::string("GET /\0etc HTTP/1.1\r\n\r\n", 23), "HTTP/1.1 400 Bad Request"},
      {"GET / HTTP/9.9\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"G\x01T / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", "HTTP/1.1 400 Bad Request"},  // TLS to a port without
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 400 Bad Request"},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 400 Bad Request"},
      {"BREW / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
      {"DELETE /nodes HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
      {"OPTIONS * HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
      {"CONNECT a:1 HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
      {"GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"},
      {"GET / HTTP/1.1\r\nX: " + std::string(5'000'000, 'a') + "\r\n\r\n",
       "HTTP/1.1 431 Request Header Fields Too Large"},
      {"POST /nodes HTTP/1.1\r\nContent-Length: 4000000000\r\n\r\n" + std::string(5'000'000, 'x'),
       "HTTP/1.1 413 Payload Too Large"},
      {"POST /nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" + std::string(70'000, 'x'),
       "HTTP/1.1 413 Payload Too Large"},
  };
  for (const auto& c : cases) EXPECT_EQ(first_line(ask(c.bytes)), c.first_line) << c.bytes.substr(0, 60);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(first_line(get("/")), "HTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, says_which_methods_there_are) {
  EXPECT_NE(ask("PUT / HTTP/1.1\r\n\r\n").find("Allow: GET, HEAD, POST\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, a_handler_that_throws_costs_one_answer) {
  EXPECT_EQ(first_line(get("/throws")), "HTTP/1.1 500 Internal Server Error");
  EXPECT_EQ(first_line(get("/")), "HTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, answers_while_many_peers_say_half_a_request) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Client>> slow;
  for (size_t i = 0; i < 2 * kHttpConnectionsMax; ++i) {
    slow.push_back(std::make_unique<Client>(server_->port()));
    ASSERT_TRUE(slow.back()->is_connected());
    slow.back()->send("GET / HTTP/1.1\r\nX-Slow: ");
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first_line(get("/healthz")), "HTTP/1.1 200 OK");
    for (const auto& client : slow) client->send("a");  // each byte wakes a server that waits for the next one
  }
  // The slow clients' time was not over yet: nobody waited for them.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kHttpRequestTime);
}

TEST_F(HttpServerTest, peers_that_ask_and_do_not_read_keep_nobody_waiting) {
  std::vector<std::unique_ptr<Client>> mute;
  for (size_t i = 0; i < kHttpConnectionsMax; ++i) {
    mute.push_back(std::make_unique<Client>(server_->port()));
    mute.back()->send("GET / HTTP/1.1\r\n\r\n");
  }
  EXPECT_EQ(first_line(get("/healthz")), "HTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, answers_each_of_500_at_once) {
  std::atomic<int> answered{0};
  std::atomic<int> shut_out_too_soon{0};
  const auto begin = std::chrono::steady_clock::now();
  // With so many at once, a client that gets no CPU between its connection and its request may be dropped to make room,
  // but not within the grace time. It asks again, as a real client would.
  const auto ask_until_answered = [&] {
    while (std::chrono::steady_clock::now() - begin < kPatience) {
      const auto connecting = std::chrono::steady_clock::now();  // before the server sees it: the age is no less
      const std::string answer = get("/metrics");
      if (!answer.empty()) {
        answered += first_line(answer) == "HTTP/1.1 200 OK" ? 1 : 0;
        return;
      }
      shut_out_too_soon += std::chrono::steady_clock::now() - connecting < kHttpGraceTime ? 1 : 0;
    }
  };
  std::vector<std::thread> all;
  for (int i = 0; i < 500; ++i) all.emplace_back(ask_until_answered);
  for (std::thread& one : all) one.join();
  EXPECT_EQ(answered, 500);
  EXPECT_EQ(shut_out_too_soon, 0);
}

size_t resident_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(HttpServerTest, memory_stays_where_it_is_however_much_is_sent) {
  const std::string header = "GET / HTTP/1.1\r\nX: " + std::string(1'000'000, 'a');
  const std::string body = "POST / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n" + std::string(1'000'000, 'a');
  const auto round = [&] {
    for (int i = 0; i < 50; ++i) {
      static_cast<void>(ask(header));
      static_cast<void>(ask(body));
    }
  };
  round();
  const size_t before = resident_bytes();
  round();
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (size_t{8} << 20U));
  }
}

TEST_F(HttpServerTest, ends_at_once_whoever_is_connected) {
  const Client idle(server_->port());
  const Client half(server_->port());
  half.send("GET / HT");
  const auto begin = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kHttpRequestTime / 2);
  EXPECT_EQ(half.read_all(), "");
}

TEST_F(HttpServerTest, a_port_in_use_is_a_conflict) {
  const Result<std::unique_ptr<HttpServer>> second = HttpServer::start({.port = server_->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_EQ(second.error().message, "Address already in use");
}

TEST(HttpServer, goes_on_when_there_are_no_file_descriptors_left) {
  Result<std::unique_ptr<HttpServer>> server = HttpServer::start({.port = 0, .handler = [](const HttpRequest&) {
                                                                    return HttpAnswer{200, "text/plain", "ok"};
                                                                  }});
  ASSERT_TRUE(server.ok());
  const Client waiting((*server)->port());
  waiting.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(first_line(waiting.read_all()), "HTTP/1.1 200 OK");
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const int next_fd = ::dup(0);
  ::close(next_fd);
  {
    // The client's own descriptor is the last one that is left.
    const rlimit none_left{.rlim_cur = static_cast<rlim_t>(next_fd) + 1, .rlim_max = files.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
    const Client client((*server)->port());
    EXPECT_TRUE(client.is_connected());
    client.send("GET / HTTP/1.1\r\n\r\n");
    pollfd nothing{.fd = -1, .events = 0, .revents = 0};
    ::poll(&nothing, 1, 200);  // the server finds no free descriptor, several times
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
    EXPECT_EQ(first_line(client.read_all()), "HTTP/1.1 200 OK");
  }
}

}  // namespace
}  // namespace lockstep
