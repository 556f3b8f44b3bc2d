#include "runner/agent/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "runner/base/utf8.h"

namespace lockstep {
namespace {

constexpr std::string_view kClearLine = "\r\033[K";
constexpr int kColumnsWhenUnknown = 80;

// When poll reports POLLOUT, a write of this size does not block.
constexpr size_t kPieceBytes = 1024;

int columns_of_terminal(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsWhenUnknown;
  return size.ws_col;
}

std::string first_characters(const std::string& text, int count) {
  size_t end = 0;
  for (int i = 0; i < count && end < text.size(); ++i) end += std::max<size_t>(1, code_point_at(text, end).bytes);
  return text.substr(0, end);
}

}  // namespace

Terminal::Terminal(TerminalOptions options, int stdout_fd, int stderr_fd)
    : options_(options), stdout_fd_(stdout_fd), stderr_fd_(stderr_fd) {}

void Terminal::out_line(const std::string& line) {
  hide_progress();
  write(stdout_fd_, line + "\n");
}

void Terminal::err_line(const std::string& line) {
  hide_progress();
  write(stderr_fd_, line + "\n");
}

void Terminal::set_unfinished(int source, const std::string& text) {
  if (unfinished_.empty()) unfinished_of_ = source;
  if (source == unfinished_of_) unfinished_ = text;
}

void Terminal::show_progress(const std::optional<ProgressView>& view, TimePoint now) {
  if (last_shown_ && now - *last_shown_ < interval()) return;
  if (!view && unfinished_.empty()) return;
  if (!options_.live) {
    // The first plain line is printed after one interval, because before that there is no progress.
    if (last_shown_) print_plain(unfinished_.empty() ? render_plain_line(*view) : unfinished_);
    last_shown_ = now;
    return;
  }
  last_shown_ = now;
  if (!waiting_.empty()) return;  // by the time it is written, it would be outdated
  // One column stays free, because some terminals wrap a full line.
  const ProgressStyle style{.columns = columns_of_terminal(stdout_fd_) - 1, .color = true, .unicode = options_.unicode};
  const std::string line =
      unfinished_.empty() ? render_progress_line(*view, style) : first_characters(unfinished_, style.columns);
  write(stdout_fd_, std::string(kClearLine) + line);
  live_line_shown_ = true;
}

std::chrono::milliseconds Terminal::interval() const {
  return options_.live ? kRedrawInterval : std::chrono::milliseconds(kPlainInterval);
}

void Terminal::hide_progress() {
  if (live_line_shown_) write(stdout_fd_, std::string(kClearLine));
  live_line_shown_ = false;
}

void Terminal::write(int fd, std::string bytes) {
  waiting_bytes_ += bytes.size();
  waiting_.push_back({fd, std::move(bytes)});
  write_waiting();
  // The first text is kept, because a part of it may have been written.
  while (waiting_bytes_ > kUnreadBytesMax && waiting_.size() > 1) {
    waiting_bytes_ -= waiting_[1].bytes.size();
    waiting_.erase(waiting_.begin() + 1);
    ++left_out_;
  }
}

void Terminal::write_waiting() {
  while (!waiting_.empty() && write_some(std::chrono::milliseconds(0))) continue;
}

void Terminal::flush(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!waiting_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (!write_some(std::max(left, std::chrono::milliseconds(0)))) return;
  }
}

// Writes the next piece of waiting output. False when nobody reads it.
bool Terminal::write_some(std::chrono::milliseconds patience) {
  Text& text = waiting_.front();
  pollfd room{.fd = text.fd, .events = POLLOUT, .revents = 0};
  const int ready = ::poll(&room, 1, static_cast<int>(patience.count()));
  if (ready <= 0) return ready < 0 && errno == EINTR;
  const ssize_t n = ::write(text.fd, text.bytes.data(), std::min(text.bytes.size(), kPieceBytes));
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  // A text whose write fails is dropped.
  const size_t done = n <= 0 ? text.bytes.size() : static_cast<size_t>(n);
  waiting_bytes_ -= done;
  text.bytes.erase(0, done);
  if (!text.bytes.empty()) return true;
  waiting_.pop_front();
  if (left_out_ > 0) {
    std::string remark =
        "lockstep: " + std::to_string(std::exchange(left_out_, 0)) + " lines were left out: nobody read the output\n";
    waiting_bytes_ += remark.size();
    waiting_.push_front({stderr_fd_, std::move(remark)});
  }
  return true;
}

void Terminal::print_plain(std::string line) {
  if (line == last_plain_) return;
  out_line(line);
  last_plain_ = std::move(line);
}

TerminalOptions terminal_options(const TerminalEnvironment& environment) {
  std::string locale = environment.locale;
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const bool live = environment.stdout_is_a_tty && !environment.no_color && !environment.ci &&
                    !environment.term.empty() && environment.term != "dumb";
  const bool unicode = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return TerminalOptions{.live = live, .unicode = unicode};
}

}  // namespace lockstep
