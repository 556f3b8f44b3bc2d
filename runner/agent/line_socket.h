// LineSocket: one stream connection of the agent (TCP or Unix), line by line, on its event loop.
//
// Role: lines in, to `on_line`; lines out, queued, never blocking the agent. Both directions have a limit: a longer
// line or a longer queue ends the connection. Threads: the event loop's only. Ownership: shared with the operations in
// flight; no handler is called after close(), so handlers may refer to whoever calls it.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "runner/base/line_channel.h"

namespace lockstep {

// What was sent before a close may take this long to leave.
inline constexpr std::chrono::seconds kFlushTimeout{1};

class LineSocket : public std::enable_shared_from_this<LineSocket> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  struct Handlers {
    std::function<void(const std::string& line)> on_line;
    std::function<void(const std::string& why)> on_closed;  // by the peer, an error or a limit; once
  };
  struct Limits {
    size_t line_bytes_max = 0;
    size_t queue_bytes_max = 0;  // sent and not yet taken by the kernel
  };

  LineSocket(boost::asio::io_context& loop, Socket socket, Limits limits);

  // Begins to read; call once.
  void start(Handlers handlers);
  // For the lines after the one that is being handled.
  void set_line_bytes_max(size_t bytes);
  void send(const std::string& line);
  void close();
  // Nothing is read any more; what was sent leaves, for at most kFlushTimeout.
  void close_after_sending();

  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  [[nodiscard]] size_t unsent_bytes() const { return queued_bytes_; }

 private:
  void wait_readable();
  bool read_some();
  bool take_lines();
  void write_more();
  void say_end();
  void fail(const std::string& why);

  boost::asio::io_context& loop_;
  Socket socket_;
  Limits limits_;
  Handlers handlers_;
  LineSplitter splitter_;
  std::deque<std::string> queue_;
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool closing_ = false;
  boost::asio::steady_timer flush_timer_;
};

// Not inherited by workers; sent at once, not collected; a peer that is gone is noticed though nobody sends.
void prepare_tcp(boost::asio::ip::tcp::socket& socket);
void close_on_exec(int fd);

// "10.0.0.7", "fd00::1"; an IPv4 address inside IPv6 as IPv4.
std::string address_text(const boost::asio::ip::address& address);

}  // namespace lockstep
