// Lines over a file descriptor: how an agent and a worker (and, between nodes, agents and the coordinator) talk.
//
// LineSplitter cuts a byte stream into lines; pure. LineChannel owns one end of a stream socket or pipe and blocks.
// Threads: LineChannel::write_line may be called from any thread (a mutex keeps lines whole); read_line from one
// thread at a time; shutdown from any thread, it wakes the reader.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep {

// Far above any message (a store value holds at most a few MB of hex), far below what would hurt the agent.
inline constexpr size_t kLineBytesMax = size_t{64} << 20;

// Collects bytes and gives back whole lines, without their '\n'.
class LineSplitter {
 public:
  explicit LineSplitter(size_t line_bytes_max = kLineBytesMax) : line_bytes_max_(line_bytes_max) {}

  void append(std::string_view bytes);
  // The next whole line; nullopt when more bytes are needed. kCorrupt when a line is longer than the limit.
  Result<std::optional<std::string>> next_line();
  // Is a whole line there (or one that is too long)?
  [[nodiscard]] bool has_line() const { return buffer_.find('\n', scanned_) != std::string::npos; }
  // What stands after the last newline; taken at the end of a stream.
  std::string take_rest();

 private:
  size_t line_bytes_max_;
  std::string buffer_;
  size_t begin_ = 0;    // first byte not yet given back
  size_t scanned_ = 0;  // no newline stands in [begin_, scanned_)
};

class LineChannel {
 public:
  // Takes over `fd` (blocking) and closes it at the end.
  explicit LineChannel(int fd, size_t line_bytes_max = kLineBytesMax) : fd_(fd), splitter_(line_bytes_max) {}
  ~LineChannel();
  LineChannel(const LineChannel&) = delete;
  LineChannel& operator=(const LineChannel&) = delete;

  // Writes `line` and a newline, whole. `line` holds no newline. kGone when the peer is gone (never a SIGPIPE),
  // kUnavailable for other errors of the system, kInvalid when the line is above the limit.
  Status write_line(std::string_view line);

  // The next line; nullopt when the peer has closed its end (bytes after the last newline are dropped then: a peer
  // that died in the middle of a line said nothing). kCorrupt for a line above the limit, kUnavailable for errors.
  Result<std::optional<std::string>> read_line();

  // Waits until read_line would not block for want of bytes (some are there, or the end): false when `time` is up
  // first.
  Result<bool> wait_readable(std::chrono::milliseconds time);

  // Ends both directions: a blocked read_line returns nullopt, the peer sees the end. Sockets only.
  void shutdown();

 private:
  const int fd_;
  std::mutex write_mutex_;
  LineSplitter splitter_;
};

}  // namespace lockstep
