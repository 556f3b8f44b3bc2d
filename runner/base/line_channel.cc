#include "runner/base/line_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runner/base/mutex.h"

namespace lockstep {

void LineSplitter::append(std::string_view bytes) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  buffer_.append(bytes);
}

Result<std::optional<std::string>> LineSplitter::next_line() {
  const size_t newline = buffer_.find('\n', scanned_);
  const size_t end = newline == std::string::npos ? buffer_.size() : newline;
  if (end - begin_ > line_bytes_max_) {
    return Error{ErrorCode::kCorrupt, "a line is longer than " + std::to_string(line_bytes_max_) + " bytes"};
  }
  if (newline == std::string::npos) {
    scanned_ = buffer_.size();
    return std::optional<std::string>();
  }
  std::optional<std::string> line = buffer_.substr(begin_, newline - begin_);
  begin_ = scanned_ = newline + 1;
  return line;
}

std::string LineSplitter::flush_rest() {
  std::string rest = buffer_.substr(begin_);
  buffer_.clear();
  begin_ = scanned_ = 0;
  return rest;
}

LineChannel::~LineChannel() { ::close(fd_); }

Status LineChannel::write_line(std::string_view line) {
  if (line.size() > kLineBytesMax) {
    return Error{ErrorCode::kInvalid, "a line of " + std::to_string(line.size()) + " bytes is above the limit of " +
                                          std::to_string(kLineBytesMax)};
  }
  std::string bytes(line);
  bytes += '\n';
  const MutexLock lock(write_mutex_);
  size_t written = 0;
  while (written < bytes.size()) {
    ssize_t n = ::send(fd_, bytes.data() + written, bytes.size() - written, MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK) n = ::write(fd_, bytes.data() + written, bytes.size() - written);
    if (n < 0) {
      if (errno == EINTR) continue;
      const bool gone = errno == EPIPE || errno == ECONNRESET;
      return Error{gone ? ErrorCode::kGone : ErrorCode::kUnavailable,
                   std::string("cannot write a line: ") + std::strerror(errno)};
    }
    written += static_cast<size_t>(n);
  }
  return {};
}

Result<std::optional<std::string>> LineChannel::read_line() {
  std::array<char, 65536> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  while (true) {
    TRY_ASSIGN(std::optional<std::string> line, splitter_.next_line());
    if (line) return line;
    const ssize_t n = ::read(fd_, chunk.data(), chunk.size());
    if (n > 0) {
      splitter_.append(std::string_view(chunk.data(), static_cast<size_t>(n)));
    } else if (n == 0 || errno == ECONNRESET) {
      return std::optional<std::string>();
    } else if (errno != EINTR) {
      return Error{ErrorCode::kUnavailable, std::string("cannot read a line: ") + std::strerror(errno)};
    }
  }
}

Result<bool> LineChannel::wait_readable(std::chrono::milliseconds time) {
  if (splitter_.has_line()) return true;
  pollfd wanted{.fd = fd_, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&wanted, 1, static_cast<int>(time.count()));
  if (ready < 0 && errno != EINTR) {
    return Error{ErrorCode::kUnavailable, std::string("cannot wait for a line: ") + std::strerror(errno)};
  }
  return ready > 0;
}

void LineChannel::shutdown() { ::shutdown(fd_, SHUT_RDWR); }

}  // namespace lockstep
