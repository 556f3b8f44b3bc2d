// StopSignals: handles SIGTERM and Ctrl-C, and SIGHUP (a closed terminal) like SIGTERM unless it is ignored (nohup).
// The training loop polls requested().
//
// After the first signal the loop finishes its step, writes a checkpoint and exits (143, or 130 for Ctrl-C). A second
// Ctrl-C ends the process at once. So does the first signal as long as nothing would be lost (start-up, forming, before
// the first new step). A file that is half-written then is a temporary one, which nobody reads.
// Threads: handlers may run on any thread; all state is lock-free atomics. At most one per process, as signal handlers
// are process-wide.
#pragma once

namespace lockstep {

class StopSignals {
 public:
  // Installs the handlers and clears earlier requests. Until defer_from_now_on() a signal ends the process in its
  // handler.
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the exit code asked for: 130 or 143. SIGTERM outranks Ctrl-C.
  [[nodiscard]] int requested() const;

  // From now on this rank has a state to save: the first signal only sets requested().
  void defer_from_now_on();
};

}  // namespace lockstep
