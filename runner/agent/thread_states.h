// What the kernel reports about the threads of a hung process: where each of them sleeps.
// Threads: any; it reads /proc, which may take milliseconds.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep {

inline constexpr size_t kThreadsShownMax = 64;

// One line per thread: "thread 4711 lockstep-worker: S (sleeping), in futex_wait_queue, system call 202 (futex)",
// without the parts that the kernel does not give. Empty when the process is gone. `proc`: "/proc", or another folder
// in tests.
std::vector<std::string> thread_states(const std::string& proc, pid_t pid);

// True when the process has a handler for `signal`, so that the signal does not kill it, and is not stopped, so that
// the handler can run.
bool handles_signal(const std::string& proc, pid_t pid, int signal);

}  // namespace lockstep
