// Runs another program to its end, and keeps what it printed.
// Threads: any. Blocks; SIGCHLD's default or a handler that reaps only its own children must be in place.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct ProgramEnd {
  std::string output;  // its standard output and error, interleaved, without newlines at the end
  int code = 0;        // exit code as in a shell: 134 when SIGABRT ended it
};

// The first word of `command` is looked for on PATH. kNotFound: no such program; kUnavailable: it cannot be started.
Result<ProgramEnd> end_of_program(std::vector<std::string> command);

}  // namespace lockstep
