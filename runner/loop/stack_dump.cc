#include "runner/loop/stack_dump.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

namespace lockstep {
namespace {

constexpr int kFramesMax = 64;

void write_text(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_signal(int /*signal*/) {
  const int saved = errno;
  std::array<void*, kFramesMax> frames{};
  const int count = ::backtrace(frames.data(), kFramesMax);
  write_text("stack of the training thread:\n");
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  errno = saved;
}

}  // namespace

void install_stack_dump() {
  // The first call loads libgcc, which allocates: not in a handler.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace lockstep
