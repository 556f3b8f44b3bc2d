// A process whose device is broken ends at once, with its exit code and without destructors. Destructors would give
// memory back to the device and take communicators down, which throws again or hangs: the process would end by SIGABRT,
// or hang until it is killed. Threads: any.
#pragma once

#include <functional>

#include "runner/contract/exit_code.h"

namespace lockstep {

// Flushes what was printed, and ends the process.
[[noreturn]] void leave_at_once(ExitCode code);

// While it lives, a device fault that nobody can catch (a destructor throws while another exception is on its way) is
// told to `say` and ends the process as leave_at_once does. All else that is not caught aborts, as always. One at a
// time.
class UncaughtDeviceFaults {
 public:
  explicit UncaughtDeviceFaults(std::function<void(const Failure&)> say);
  ~UncaughtDeviceFaults();
  UncaughtDeviceFaults(const UncaughtDeviceFaults&) = delete;
  UncaughtDeviceFaults& operator=(const UncaughtDeviceFaults&) = delete;
};

}  // namespace lockstep
