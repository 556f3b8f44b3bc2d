#include "runner/link/stack_dump.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "runner/contract/stack_lines.h"

namespace lockstep {
namespace {

constexpr int kFramesMax = 64;

void write_line(std::string_view text) {
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  written = ::write(STDERR_FILENO, "\n", 1);
}

void on_signal(int /*signal*/) {
  const int saved = errno;
  std::array<void*, kFramesMax> frames{};
  const int count = ::backtrace(frames.data(), kFramesMax);
  write_line(kStackBegin);
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  write_line(kStackEnd);
  errno = saved;
}

}  // namespace

void install_stack_dump() {
  // The first call of backtrace() loads libgcc, which allocates memory. A signal handler must not, so it is called
  // here.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace lockstep
