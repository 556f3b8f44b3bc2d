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

// kNotFound: no such program; kUnavailable: it ended with another code than 0; the message holds what it said.
Status run_program(const ProgramRun& run);

}  // namespace lockstep
