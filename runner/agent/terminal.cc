#include "runner/agent/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::string_view kClearLine = "\r\033[K";
constexpr int kColumnsWhenUnknown = 80;

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

int columns_of_terminal(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsWhenUnknown;
  return size.ws_col;
}

}  // namespace

Terminal::Terminal(TerminalOptions options, int stdout_fd, int stderr_fd)
    : options_(options), stdout_fd_(stdout_fd), stderr_fd_(stderr_fd) {}

void Terminal::out_line(const std::string& line) {
  hide_progress();
  write_all(stdout_fd_, line + "\n");
}

void Terminal::err_line(const std::string& line) {
  hide_progress();
  write_all(stderr_fd_, line + "\n");
}

void Terminal::show_progress(const ProgressView& view, TimePoint now) {
  if (last_shown_ && now - *last_shown_ < interval()) return;
  if (!options_.live) {
    // The first plain line comes after one interval: before it there is nothing to tell.
    if (last_shown_) print_plain(view);
    last_shown_ = now;
    return;
  }
  last_shown_ = now;
  // One column stays free: a full line would wrap on some terminals.
  const ProgressStyle style{.columns = columns_of_terminal(stdout_fd_) - 1, .color = true, .unicode = options_.unicode};
  write_all(stdout_fd_, std::string(kClearLine) + render_progress_line(view, style));
  live_line_shown_ = true;
}

std::chrono::milliseconds Terminal::interval() const {
  return options_.live ? kRedrawInterval : std::chrono::milliseconds(kPlainInterval);
}

void Terminal::hide_progress() {
  if (live_line_shown_) write_all(stdout_fd_, kClearLine);
  live_line_shown_ = false;
}

void Terminal::print_plain(const ProgressView& view) {
  std::string line = render_plain_line(view);
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
