// Ends a process whose device is broken, at once and without destructors. Destructors would free device memory and
// destroy communicators, which throws again or hangs: the process would end by SIGABRT, or hang until it is killed.
// Threads: any.
#pragma once

#include <functional>

#include "runner/contract/exit_code.h"

namespace lockstep {

// Flushes stdout and stderr, and ends the process with this exit code.
[[noreturn]] void leave_at_once(ExitCode code);

// While it lives, a device fault that cannot be caught (a destructor throws during stack unwinding, which calls
// std::terminate) is passed to `report`, and the process ends as by leave_at_once. Other uncaught exceptions abort the
// process as usual. At most one object at a time.
class UncaughtDeviceFaults {
 public:
  explicit UncaughtDeviceFaults(std::function<void(const Failure&)> report);
  ~UncaughtDeviceFaults();
  UncaughtDeviceFaults(const UncaughtDeviceFaults&) = delete;
  UncaughtDeviceFaults& operator=(const UncaughtDeviceFaults&) = delete;
};

}  // namespace lockstep
