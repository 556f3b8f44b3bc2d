// What the kernel says about the threads of a process that hangs: who sleeps where.
// Threads: any; it reads /proc, which may take milliseconds.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep {

inline constexpr size_t kThreadsShownMax = 64;

// One line per thread: "thread 4711 lockstep-worker: S (sleeping), in futex_wait_queue, system call 202 (futex)". What
// the kernel does not tell is left out. Empty when the process is gone. `proc`: "/proc", or a test's.
std::vector<std::string> thread_states(const std::string& proc, pid_t pid);

// Has the process a handler for `signal`, which it would die of otherwise, and may it run? A stopped one answers
// nothing.
bool handles_signal(const std::string& proc, pid_t pid, int signal);

}  // namespace lockstep
