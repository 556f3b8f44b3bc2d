#include "runner/agent/line_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <boost/asio/write.hpp>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// TCP keepalive: idle time before the first probe, time between probes, and their number. Heartbeats find a silent peer
// earlier; keepalive closes connections that have no heartbeats.
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;

std::string why_closed(const error_code& error) {
  return error == asio::error::eof ? "the other side closed the connection" : error.message();
}

}  // namespace

LineSocket::LineSocket(asio::io_context& loop, Socket socket, Limits limits)
    : loop_(loop), socket_(std::move(socket)), limits_(limits), splitter_(limits.line_bytes_max), flush_timer_(loop) {
  error_code ignored;  // cannot fail on an open socket
  socket_.non_blocking(true, ignored);
}

void LineSocket::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  wait_readable();
}

void LineSocket::set_line_bytes_max(size_t bytes) {
  const std::string rest = splitter_.flush_rest();
  splitter_ = LineSplitter(bytes);
  splitter_.append(rest);
}

void LineSocket::wait_readable() {
  socket_.async_wait(asio::socket_base::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && self->socket_.is_open() && self->read_some()) self->wait_readable();
  });
}

// Reads once, so that a peer that sends without pause does not starve the others. False at the end.
bool LineSocket::read_some() {
  // On the stack and not a member, because a coordinator has thousands of these objects.
  std::array<char, 65536> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): read_some fills what is used
  error_code error;
  const size_t size = socket_.read_some(asio::buffer(chunk), error);
  if (error == asio::error::would_block) return true;
  if (error) {
    fail(why_closed(error));
    return false;
  }
  if (closing_) return true;
  splitter_.append(std::string_view(chunk.data(), size));
  return handle_lines();
}

void LineSocket::drain() {
  error_code ignored;
  while (socket_.is_open() && socket_.available(ignored) > 0 && read_some()) continue;
}

bool LineSocket::handle_lines() {
  while (socket_.is_open() && !closing_) {
    const Result<std::optional<std::string>> line = splitter_.next_line();
    if (!line.ok()) {
      fail(line.error().message);
      return false;
    }
    if (!line->has_value()) return true;
    handlers_.on_line(**line);
  }
  return socket_.is_open();
}

void LineSocket::send(const std::string& line) {
  if (!socket_.is_open() || closing_) return;
  queued_bytes_ += line.size() + 1;
  queue_.push_back(line + "\n");
  if (queued_bytes_ > limits_.queue_bytes_max) {
    // Posted, so that on_closed is not called from inside send().
    asio::post(loop_, [self = shared_from_this()] {
      self->fail("it takes no data: more than " + std::to_string(self->limits_.queue_bytes_max) + " bytes wait for it");
    });
    return;
  }
  if (!writing_) write_more();
}

void LineSocket::write_more() {
  writing_ = true;
  asio::async_write(socket_, asio::buffer(queue_.front()), [self = shared_from_this()](error_code error, size_t) {
    self->writing_ = false;
    if (!self->socket_.is_open()) return;
    if (error) {
      self->drain();  // the peer's last words
      return self->fail(why_closed(error));
    }
    self->queued_bytes_ -= self->queue_.front().size();
    self->queue_.pop_front();
    if (!self->queue_.empty()) return self->write_more();
    if (self->closing_) self->say_end();
  });
}

void LineSocket::fail(const std::string& why) {
  if (!socket_.is_open()) return;
  const bool tell = !closing_;
  close();
  // Moved out first, because the handler may destroy the object that holds it.
  const auto on_closed = std::move(handlers_.on_closed);
  if (tell && on_closed) on_closed(why);
}

void LineSocket::close() {
  error_code ignored;
  flush_timer_.cancel();
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
}

void LineSocket::close_after_sending() {
  if (!socket_.is_open() || closing_) return;
  closing_ = true;
  flush_timer_.expires_after(kFlushTimeout);
  flush_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->close();
  });
  if (queue_.empty()) say_end();
}

// Shuts down sending and waits for the peer to close. Closing while bytes of the peer are unread would reset the
// connection, and the peer might not get our last line.
void LineSocket::say_end() {
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

void close_on_exec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

void prepare_tcp(asio::ip::tcp::socket& socket) {
  const int fd = socket.native_handle();
  close_on_exec(fd);
  error_code ignored;  // these options are improvements; the connection works without them
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveIdleSeconds, sizeof(kKeepAliveIdleSeconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveIntervalSeconds, sizeof(kKeepAliveIntervalSeconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveProbes, sizeof(kKeepAliveProbes));
}

asio::ip::address plain_address(const asio::ip::address& address) {
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return is_mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()) : address;
}

std::string address_text(const asio::ip::address& address) { return plain_address(address).to_string(); }

}  // namespace lockstep
