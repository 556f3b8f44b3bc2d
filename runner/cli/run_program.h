// Runs another program to its end, for the few things that are easier said to a tool than to the kernel.
// Threads: any. Blocks; SIGCHLD's default or a handler that reaps only its own children must be in place.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct ProgramRun {
  std::vector<std::string> command;  // looked for on PATH
  int network_namespace_fd = -1;     // of the namespace in which it runs; -1: ours
};

struct ProgramEnd {
  std::string said;  // on standard output and error, in the order of time, without newlines at the end
  int code = 0;      // as a shell has it: 134 where SIGABRT ended it
};

// kNotFound: no such program; kUnavailable: it cannot be started.
Result<ProgramEnd> end_of_program(const ProgramRun& run);

// kNotFound: no such program; kUnavailable: it ended with another code than 0; the message holds what it said.
Status run_program(const ProgramRun& run);

}  // namespace lockstep
