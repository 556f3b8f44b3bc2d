// Runs another program to its end, for the few things that are easier with a tool (`ip`) than with system calls.
// Threads: any. Blocks; SIGCHLD's default or a handler that reaps only its own children must be in place.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct ProgramRun {
  std::vector<std::string> command;  // looked for on PATH
  int network_namespace_fd = -1;     // the network namespace in which it runs; -1: ours
};

struct ProgramEnd {
  std::string said;  // its standard output and error, interleaved, without newlines at the end
  int code = 0;      // exit code as in a shell: 134 when SIGABRT ended it
};

// kNotFound: no such program; kUnavailable: it cannot be started.
Result<ProgramEnd> end_of_program(const ProgramRun& run);

// kNotFound: no such program; kUnavailable: its exit code was not 0; the message is its output.
Status run_program(const ProgramRun& run);

}  // namespace lockstep
