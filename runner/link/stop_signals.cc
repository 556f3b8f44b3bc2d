#include "runner/link/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "runner/base/fork.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// Globals, because a signal handler has no argument through which it could reach an object.
std::atomic<int> g_interrupts{0};
std::atomic<int> g_terminates{0};
std::atomic<bool> g_leave_at_once{true};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_interrupt(int /*signal*/) {
  const int before = g_interrupts.fetch_add(1);
  if (before > 0 || g_leave_at_once.load()) _exit(code_of(ExitCode::kInterrupted));
}

void on_terminate(int /*signal*/) {
  g_terminates.fetch_add(1);
  if (g_leave_at_once.load()) _exit(code_of(ExitCode::kTerminated));
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // the loop polls requested(); no system call has to be interrupted for it
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  g_interrupts.store(0);
  g_terminates.store(0);
  g_leave_at_once.store(true);
  install(SIGINT, on_interrupt);
  install(SIGTERM, on_terminate);
  if (!ignores_hangup()) install(SIGHUP, on_terminate);
}

int StopSignals::requested() const {
  if (g_terminates.load() > 0) return code_of(ExitCode::kTerminated);
  if (g_interrupts.load() > 0) return code_of(ExitCode::kInterrupted);
  return 0;
}

void StopSignals::defer_from_now_on() { g_leave_at_once.store(false); }

}  // namespace lockstep
