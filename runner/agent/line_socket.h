// LineSocket: one stream connection of the agent (to a worker, another node, a client), line by line, on its event
// loop.
//
// Role: passes incoming lines to `on_line`; queues outgoing lines, so that the agent never blocks. Both directions have
// a limit: a longer line or a longer queue ends the connection. Threads: the event loop's only. Ownership: shared with
// its pending operations; no handler is called after close(), so handlers may refer to the object that calls close().
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

// Longest time that lines sent before close_after_sending() may take to be sent.
inline constexpr std::chrono::seconds kFlushTimeout{1};

class LineSocket : public std::enable_shared_from_this<LineSocket> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  struct Handlers {
    std::function<void(const std::string& line)> on_line;
    std::function<void(const std::string& why)> on_closed;  // the peer, an error or a limit closed it; called once
  };
  struct Limits {
    size_t line_bytes_max = 0;
    size_t queue_bytes_max = 0;  // most bytes that wait to be written to the socket
  };

  LineSocket(boost::asio::io_context& loop, Socket socket, Limits limits);

  // Starts reading; call once.
  void start(Handlers handlers);
  // Takes effect for lines after the one that is being handled.
  void set_line_bytes_max(size_t bytes);
  void send(const std::string& line);
  // Handles what the peer has sent so far. For a peer that has ended, before close().
  void drain();
  void close();
  // Stops reading, sends what is queued for at most kFlushTimeout, and closes.
  void close_after_sending();

  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  [[nodiscard]] size_t unsent_bytes() const { return queued_bytes_; }

 private:
  void wait_readable();
  bool read_some();
  bool handle_lines();
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

// Sets close-on-exec (workers do not inherit the socket), TCP_NODELAY, and keepalive (a dead peer is noticed even when
// nothing is sent).
void prepare_tcp(boost::asio::ip::tcp::socket& socket);
void close_on_exec(int fd);

// Converts an IPv4-mapped IPv6 address to IPv4, so that equal addresses compare equal.
boost::asio::ip::address plain_address(const boost::asio::ip::address& address);
// "10.0.0.7", "fd00::1"; an IPv4-mapped IPv6 address as IPv4.
std::string address_text(const boost::asio::ip::address& address);

}  // namespace lockstep
