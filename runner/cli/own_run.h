// A run on this machine alone, as a process of its own: what `lockstep demo` and `lockstep bench` start.
// Threads: the caller's, which must be the process's only one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/contract/world.h"

namespace lockstep {

// Without what a launcher, a pod or another run of ours put there: such a run begins on this machine alone and writes
// into --train_dir, also in a shell within a pod or an allocation.
Environment environment_of_own_run(const Environment& environment);

struct OwnRun {
  std::vector<std::string> arguments;  // what stands after `lockstep run`
  Environment environment;
  bool is_run = true;  // false: what stands after `lockstep`
  int stdout_fd = -1;  // -1: the caller's
  int stderr_fd = -1;  // -1: the caller's
};

// Runs it to its end; its exit code. SIGINT and SIGTERM of this process are passed on to it, and it dies with this
// process. `on_tick` is called a few times a second meanwhile. kUnavailable: it cannot be started.
Result<int> run_to_end(
    const OwnRun& run, const std::function<void()>& on_tick = [] {});

// A command line of ours for a shell: `program` (as the user called it) in the place of "lockstep", then these words.
std::string command_line_of(const std::string& program, const std::vector<std::string>& words);

// By which name the user reaches this program: argv[0] where it is a path, else "lockstep".
std::string program_for_people(const std::string& argv_0);

}  // namespace lockstep
