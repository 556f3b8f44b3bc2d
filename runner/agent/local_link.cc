#include "runner/agent/local_link.h"

#include <boost/asio/write.hpp>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

LocalLink::LocalLink(asio::io_context& loop, int fd, Handlers handlers)
    : socket_(loop, asio::local::stream_protocol(), fd), handlers_(std::move(handlers)) {
  error_code ignored;  // cannot fail on an open socket
  socket_.non_blocking(true, ignored);
}

void LocalLink::start() {
  // Waits for readiness instead of using async_read: bytes stay in the socket until they are handled, so that drain()
  // gets all of them.
  socket_.async_wait(asio::socket_base::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && self->read_available()) self->start();
  });
}

// False when nothing more will come. (The end of the worker process is noticed by reaping it.)
bool LocalLink::read_available() {
  error_code error;
  while (socket_.is_open()) {
    const size_t size = socket_.read_some(asio::buffer(chunk_), error);
    if (error) return error == asio::error::would_block;
    handle(std::string_view(chunk_.data(), size));
  }
  return false;
}

void LocalLink::handle(std::string_view bytes) {
  splitter_.append(bytes);
  while (socket_.is_open()) {
    const Result<std::optional<std::string>> line = splitter_.next_line();
    if (line.ok() && !line->has_value()) return;
    const Result<WorkerMessage> message = line.ok() ? decode_worker_message(**line) : line.error();
    if (!message.ok()) {
      close();
      return handlers_.on_bad_line(message.error());
    }
    handlers_.on_message(*message);
  }
}

void LocalLink::send(const AgentMessage& message) {
  if (!socket_.is_open()) return;
  queue_.push_back(encode(message) + "\n");
  if (!writing_) write_more();
}

void LocalLink::write_more() {
  writing_ = true;
  asio::async_write(socket_, asio::buffer(queue_.front()), [self = shared_from_this()](error_code error, size_t) {
    self->writing_ = false;
    if (error || !self->socket_.is_open()) return;
    self->queue_.pop_front();
    if (!self->queue_.empty()) self->write_more();
  });
}

void LocalLink::drain() { read_available(); }

void LocalLink::close() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace lockstep
