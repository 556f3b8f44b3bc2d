// StopSignals: SIGTERM and Ctrl-C as two flags that the training loop reads, and the way out when it cannot.
//
// The first signal asks: the step is finished, a checkpoint written (exit 143, 130 for Ctrl-C). A second Ctrl-C leaves
// at once. While nothing would be lost (start-up, forming, before the first new step) the first one leaves at once too.
// What is half-written then is a temporary that nobody reads (§6).
// Threads: handlers may run on any thread; all state is lock-free atomics. One per process: signals are.
#pragma once

namespace lockstep {

class StopSignals {
 public:
  // Installs the handlers; nothing has been asked for yet. Until ask_from_now_on() a signal ends the process right in
  // the handler.
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the exit code asked for: 130 or 143. SIGTERM outranks Ctrl-C.
  [[nodiscard]] int requested() const;

  // There is something to lose: the first signal asks.
  void ask_from_now_on();
};

}  // namespace lockstep
