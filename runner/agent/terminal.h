// Terminal: the agent's output: lines relayed from workers, its own lines, and one progress display.
//
// On a terminal the progress line is redrawn in place, at most every kRedrawInterval, and erased before any other line
// is printed. Elsewhere (a file, a pipe, NO_COLOR, CI, TERM=dumb) it is a plain line every kPlainInterval. A program
// that draws a line of its own (a progress bar) has the place of the progress line until it ends it. When the reader of
// the output stops reading (Ctrl-S, a pager, a blocked container log), writing must not block, because the same thread
// sends heartbeats. So output waits in memory, up to kUnreadBytesMax; beyond that the oldest lines are dropped, and a
// line says how many. Threads: one. Time is an argument. Errors of writing are ignored (a closed pipe must not end a
// training run).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "runner/agent/progress_line.h"
#include "runner/base/clock.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kRedrawInterval{200};
inline constexpr std::chrono::seconds kPlainInterval{10};
inline constexpr size_t kUnreadBytesMax = size_t{1} << 20;

struct TerminalOptions {
  bool live = false;  // stdout is a terminal that takes escape sequences, and the user wants them
  bool unicode = false;
};

class Terminal {
 public:
  // stdout_fd, stderr_fd: not owned; usually 1 and 2.
  Terminal(TerminalOptions options, int stdout_fd, int stderr_fd);

  void out_line(const std::string& line);  // to stdout
  void err_line(const std::string& line);  // to stderr

  // The line that `source` draws and has not ended; empty: none. Of several sources the one that began first is shown.
  void set_unfinished(int source, const std::string& text);
  // Shows the unfinished line, else `view` if there is one, when interval() has passed since the last time.
  void show_progress(const std::optional<ProgressView>& view, TimePoint now);
  // Erases the progress line.
  void hide_progress();

  // Writes waiting output as far as possible without blocking. To be called now and then.
  void write_waiting();
  // Writes waiting output, and blocks for at most `patience` while nobody reads.
  void flush(std::chrono::milliseconds patience);

  // The interval at which show_progress should be called.
  [[nodiscard]] std::chrono::milliseconds interval() const;

 private:
  struct Text {
    int fd;
    std::string bytes;
  };

  void print_plain(std::string line);  // prints nothing when it equals the last one
  void write(int fd, std::string bytes);
  bool write_some(std::chrono::milliseconds patience);

  TerminalOptions options_;
  int stdout_fd_;
  int stderr_fd_;
  std::deque<Text> waiting_;
  size_t waiting_bytes_ = 0;
  int64_t left_out_ = 0;  // texts dropped since a line reported the number
  bool live_line_shown_ = false;
  std::optional<TimePoint> last_shown_;
  std::string last_plain_;
  std::string unfinished_;
  int unfinished_of_ = 0;  // its source
};

// Whether stdout is a terminal on which a line may be redrawn, given what the environment says.
struct TerminalEnvironment {
  bool stdout_is_a_tty = false;
  bool no_color = false;  // NO_COLOR is set and not empty
  bool ci = false;        // CI is set and not empty
  std::string term;       // TERM
  std::string locale;     // the first of LC_ALL, LC_CTYPE, LANG that is not empty
};
TerminalOptions terminal_options(const TerminalEnvironment& environment);

}  // namespace lockstep
