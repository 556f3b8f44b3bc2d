#include "runner/agent/output_relay.h"

#include <array>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kOutputLineBytesMax = size_t{1} << 20;  // a longer line is cut into several

}  // namespace

OutputRelay::OutputRelay(asio::io_context& loop, int fd, OnLine on_line)
    : pipe_(loop, fd), on_line_(std::move(on_line)), splitter_(kOutputLineBytesMax) {
  error_code ignored;
  pipe_.non_blocking(true, ignored);
}

void OutputRelay::start() {
  pipe_.async_wait(asio::posix::descriptor_base::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && self->read_available()) self->start();
  });
}

// Reads once, so that a worker that prints without pause does not starve other work of the loop. False at the end.
bool OutputRelay::read_available() {
  if (!pipe_.is_open()) return false;
  std::array<char, 65536> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  error_code error;
  const size_t size = pipe_.read_some(asio::buffer(chunk), error);
  if (error) return error == asio::error::would_block;
  splitter_.append(std::string_view(chunk.data(), size));
  relay_lines();
  return true;
}

void OutputRelay::relay_lines() {
  while (true) {
    const Result<std::optional<std::string>> line = splitter_.next_line();
    if (!line.ok()) return on_line_(splitter_.take_rest());
    if (!line->has_value()) return;
    on_line_(**line);
  }
}

void OutputRelay::finish() {
  std::array<char, 65536> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  error_code error;
  while (pipe_.is_open() && !error) {
    const size_t size = pipe_.read_some(asio::buffer(chunk), error);
    splitter_.append(std::string_view(chunk.data(), size));
    relay_lines();
  }
  if (const std::string rest = splitter_.take_rest(); !rest.empty()) on_line_(rest);
  pipe_.close(error);
}

}  // namespace lockstep
