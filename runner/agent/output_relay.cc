#include "runner/agent/output_relay.h"

#include <array>
#include <string_view>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kOutputLineBytesMax = size_t{1} << 20;  // a longer line is cut into several

// What a terminal shows of a line: the text after its last '\r', but for those at its end. Blanks behind a '\r' wipe a
// line out.
std::string shown_of(std::string_view line) {
  const size_t last = line.find_last_not_of('\r');
  if (last == std::string_view::npos) return "";
  line = line.substr(0, last + 1);
  const size_t begin = line.rfind('\r');
  if (begin == std::string_view::npos) return std::string(line);
  line = line.substr(begin + 1);
  return line.find_first_not_of(' ') == std::string_view::npos ? "" : std::string(line);
}

}  // namespace

OutputRelay::OutputRelay(asio::io_context& loop, int fd, OnLine on_line, OnLine on_unfinished)
    : pipe_(loop, fd),
      on_line_(std::move(on_line)),
      on_unfinished_(std::move(on_unfinished)),
      splitter_(kOutputLineBytesMax) {
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
  relay_unfinished();
  return true;
}

void OutputRelay::relay_unfinished() {
  if (!on_unfinished_) return;
  std::string text = shown_of(splitter_.rest());
  if (text == unfinished_) return;
  unfinished_ = std::move(text);
  on_unfinished_(unfinished_);
}

void OutputRelay::relay_lines() {
  while (true) {
    const Result<std::optional<std::string>> line = splitter_.next_line();
    if (!line.ok()) return on_line_(shown_of(splitter_.flush_rest()));
    if (!line->has_value()) return;
    on_line_(shown_of(**line));
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
  if (const std::string rest = splitter_.flush_rest(); !rest.empty()) on_line_(shown_of(rest));
  relay_unfinished();
  pipe_.close(error);
}

}  // namespace lockstep
