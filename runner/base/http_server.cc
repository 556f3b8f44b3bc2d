#include "runner/base/http_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <csignal>
#include <exception>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "runner/base/tcp_listener.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// Allows what an SVG file contains itself: inline styles, and pictures and fonts as data: URLs.
constexpr const char* kNoScripts =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:";
constexpr std::chrono::milliseconds kAcceptPause{50};  // with all connections in use, or no file descriptor left
constexpr std::chrono::seconds kLingerTime{1};         // for a client to read the end of the answer
constexpr size_t kReadMax = 16 * 1024;                 // bytes of a request held at a time

class Connection;
// In the order in which they were accepted.
using Connections = std::list<Connection*>;

// Owned by its pending asynchronous operations (shared_from_this); destroyed when the last of them has ended.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const HttpServer::Options& options, Connections& all)
      : stream_(std::move(socket)), options_(options), all_(all), entry_(all.insert(all.end(), this)) {
    parser_.header_limit(kHttpRequestMax);
    parser_.body_limit(options.body_max);
  }
  ~Connection() { all_.erase(entry_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start() {
    stream_.expires_after(kHttpRequestTime);  // for the whole request, however slowly it comes
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](error_code error, size_t) { self->on_request(error); });
  }

  [[nodiscard]] Clock::duration age(Clock::time_point now) const { return now - began_; }

  // Pending operations end with an error.
  void close() {
    stream_.close();
    is_closed_ = true;
  }
  [[nodiscard]] bool is_closed() const { return is_closed_; }

 private:
  void on_request(error_code error) {
    if (!error) return answer(answer_of_handler(), parser_.get().method() == http::verb::head);
    if (error == http::error::body_limit) {
      return answer({413, kTextType, "the body is longer than " + std::to_string(options_.body_max) + " bytes\n"},
                    false);
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return answer({431, kTextType, "the request is longer than " + std::to_string(kHttpRequestMax) + " bytes\n"},
                    false);
    }
    const bool is_malformed = error.category() == make_error_code(http::error::bad_method).category();
    if (is_malformed && error != http::error::end_of_stream && error != http::error::partial_message) {
      return answer({400, kTextType, "this is not an HTTP request: " + error.message() + "\n"}, false);
    }
    // The client is gone, was too slow, or its connection was closed for another: there is nobody to answer.
  }

  HttpAnswer answer_of_handler() {
    auto& message = parser_.get();
    const http::verb method = message.method();
    if (method != http::verb::get && method != http::verb::head && method != http::verb::post) {
      return {405, kTextType, "found " + std::string(message.method_string()) + ", expected GET, HEAD or POST\n"};
    }
    HttpRequest request{.method = method == http::verb::post ? "POST" : "GET",
                        .path = std::string(message.target()),
                        .query = "",
                        .authorization = std::string(message[http::field::authorization]),
                        .body = std::move(message.body())};
    if (const size_t mark = request.path.find('?'); mark != std::string::npos) {
      request.query = request.path.substr(mark + 1);
      request.path.resize(mark);
    }
    try {
      return options_.handler(request);
    } catch (const std::exception& e) {
      return {500, kTextType, std::string(e.what()) + "\n"};
    }
  }

  void answer(HttpAnswer content, bool is_head) {
    message_.emplace(static_cast<http::status>(content.code), 11);
    message_->set(http::field::content_type, content.type);
    message_->set(http::field::cache_control, "no-store");
    message_->set("X-Content-Type-Options", "nosniff");
    if (content.runs_no_scripts) message_->set("Content-Security-Policy", kNoScripts);
    message_->set(http::field::connection, "close");
    if (content.code == 405) message_->set(http::field::allow, "GET, HEAD, POST");
    message_->content_length(content.body.size());
    if (!is_head) message_->body() = std::move(content.body);
    stream_.expires_after(kHttpRequestTime);
    http::async_write(stream_, *message_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return;
      error_code ignored;
      self->stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
      self->stream_.expires_after(kLingerTime);
      self->linger();
    });
  }

  // Reads and drops what the client still sends. Closing a socket with unread bytes would reset the connection, and the
  // client could lose the answer.
  void linger() {
    stream_.async_read_some(asio::buffer(discarded_), [self = shared_from_this()](error_code error, size_t) {
      if (!error) self->linger();
    });
  }

  beast::tcp_stream stream_;
  const HttpServer::Options& options_;
  Connections& all_;
  const Connections::iterator entry_;
  const Clock::time_point began_ = Clock::now();
  beast::flat_buffer buffer_{kReadMax};
  http::request_parser<http::string_body> parser_;
  std::optional<http::response<http::string_body>> message_;
  std::array<char, 1024> discarded_{};
  bool is_closed_ = false;
};

// Blocks all signals in a thread that is started while this lives, so that the program's other threads handle them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

struct HttpServer::Impl {
  explicit Impl(Options given) : options(std::move(given)) {}
  ~Impl() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void await_connection() {
    acceptor.async_wait(Tcp::acceptor::wait_read, [this](error_code error) {
      if (!error) accept();
    });
  }

  void accept() {
    if (connections.size() >= kHttpConnectionsMax && !make_room()) return pause();
    // Not Asio's accept, which does not set SOCK_CLOEXEC at once: a worker that is started meanwhile would inherit the
    // connection.
    const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      const bool is_short_of_files = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (!is_short_of_files) return await_connection();
      make_room();
      return pause();
    }
    Tcp::socket socket(loop);
    error_code error;
    socket.assign(acceptor.local_endpoint().protocol(), fd, error);
    if (error) {
      ::close(fd);
    } else {
      std::make_shared<Connection>(std::move(socket), options, connections)->start();
    }
    await_connection();
  }

  // Closes the oldest connection; false when it is younger than kHttpGraceTime. The object is destroyed when its
  // operation has ended, in the loop's next round.
  bool make_room() {
    for (Connection* const connection : connections) {
      if (connection->is_closed()) continue;
      if (connection->age(Clock::now()) < kHttpGraceTime) return false;
      connection->close();
      return true;
    }
    return false;
  }

  void pause() {
    timer.expires_after(kAcceptPause);
    timer.async_wait([this](error_code) { await_connection(); });
  }

  const Options options;
  Connections connections;  // declared before the loop, which owns the connections, so that it outlives them
  asio::io_context loop{1};
  Tcp::acceptor acceptor{loop};
  asio::steady_timer timer{loop};
  int port = 0;
  std::thread thread;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (const error_code error = open_listener(impl->acceptor, impl->options.port, impl->options.is_loopback)) {
    const bool is_taken = error == asio::error::address_in_use;
    return Error{is_taken ? ErrorCode::kConflict : ErrorCode::kUnavailable, error.message()};
  }
  error_code ignored;
  impl->acceptor.non_blocking(true, ignored);
  impl->port = impl->acceptor.local_endpoint(ignored).port();
  impl->await_connection();
  const SignalsBlocked blocked;
  impl->thread = std::thread([server = impl.get()] { server->loop.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port; }

}  // namespace lockstep
