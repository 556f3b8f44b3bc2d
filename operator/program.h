// OperatorProgram: the operator put together: access, caches, election, controller, HTTP.
//
// Caches are filled from the start, also while another replica leads, so that a takeover begins to work at once. Losing
// the Lease ends the process: another operator may already be writing.
// Threads: the table is in operator/README.md. `run` is called once, on the thread that has blocked the signals.
#pragma once

#include <memory>

#include "operator/options.h"
#include "runner/base/environment.h"
#include "runner/base/log.h"

namespace lockstep {

class OperatorProgram {
 public:
  // kInvalid, kNotFound: configuration, exit code 2; kUnavailable: no API server, a taken port.
  static Result<std::unique_ptr<OperatorProgram>> make(const OperatorOptions& options, const Environment& environment,
                                                       Logger logger);
  ~OperatorProgram();
  OperatorProgram(const OperatorProgram&) = delete;
  OperatorProgram& operator=(const OperatorProgram&) = delete;

  // Works until SIGTERM, SIGINT or the end of its leadership; returns the exit code. Those signals, SIGUSR1 and SIGUSR2
  // must be blocked in all threads.
  int run();

 private:
  struct Impl;
  explicit OperatorProgram(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
