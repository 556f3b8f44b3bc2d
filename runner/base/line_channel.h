// Lines over a file descriptor: the transport between an agent and its workers and, between nodes, between agents and
// the coordinator.
//
// LineSplitter cuts a byte stream into lines; pure. LineChannel owns one end of a stream socket or pipe and blocks.
// Threads: LineChannel::write_line may be called from any thread (a mutex keeps lines whole); read_line from one
// thread at a time; shutdown from any thread, it wakes the reader.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/mutex.h"
#include "runner/base/result.h"

namespace lockstep {

// Far more than any message needs (a store value is at most a few MB of hex), and little enough for the agent's memory.
inline constexpr size_t kLineBytesMax = size_t{64} << 20;

// Collects bytes and returns whole lines, without their '\n'.
class LineSplitter {
 public:
  explicit LineSplitter(size_t line_bytes_max = kLineBytesMax) : line_bytes_max_(line_bytes_max) {}

  void append(std::string_view bytes);
  // The next whole line; nullopt when more bytes are needed. kCorrupt when a line is longer than the limit.
  Result<std::optional<std::string>> next_line();
  // True when a whole line has arrived: next_line() then returns it, or an error if it is too long.
  [[nodiscard]] bool has_line() const { return buffer_.find('\n', scanned_) != std::string::npos; }
  // The bytes after the last newline, which next_line() has seen.
  [[nodiscard]] std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  // The same, taken out; to be called at the end of a stream.
  std::string flush_rest();

 private:
  size_t line_bytes_max_;
  std::string buffer_;
  size_t begin_ = 0;    // first byte not yet returned
  size_t scanned_ = 0;  // there is no newline in [begin_, scanned_)
};

class LineChannel {
 public:
  // Takes ownership of `fd`, which must be in blocking mode, and closes it in the destructor.
  explicit LineChannel(int fd, size_t line_bytes_max = kLineBytesMax) : fd_(fd), splitter_(line_bytes_max) {}
  ~LineChannel();
  LineChannel(const LineChannel&) = delete;
  LineChannel& operator=(const LineChannel&) = delete;

  // Writes `line` and a newline, whole. `line` holds no newline. kGone when the peer is gone (never a SIGPIPE),
  // kUnavailable for other errors of the system, kInvalid when the line is above the limit.
  Status write_line(std::string_view line);

  // The next line; nullopt when the peer has closed its end. Bytes after the last newline are dropped then: the peer
  // died in the middle of a line. kCorrupt for a line above the limit, kUnavailable for errors.
  Result<std::optional<std::string>> read_line();

  // Waits until there are bytes to read or the peer has closed its end; false when `time` has passed first.
  Result<bool> wait_readable(std::chrono::milliseconds time);

  // Ends both directions: a blocked read_line returns nullopt, the peer sees the end. Sockets only.
  void shutdown();

 private:
  const int fd_;
  Mutex write_mutex_;
  LineSplitter splitter_;
};

}  // namespace lockstep
