// How a process ends whose device is broken: at once, with its exit code and without destructors. Those give memory
// back to the device and take its communicators down, which throws again or hangs: the end would be a SIGABRT, or a
// kill. Threads: any.
#pragma once

#include <functional>

#include "runner/contract/exit_code.h"

namespace lockstep {

// What was printed is printed; nothing else of this process runs any more.
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
