// Starts `lockstep run` on this machine as a process of its own, for `lockstep demo` and `lockstep bench`, and says
// what it has to run on. Threads: the caller's, which must be the process's only one.
#pragma once

#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"
#include "runner/launch/launch_options.h"

namespace lockstep {

// The environment without the variables of a launcher, a pod or another run, so that the run uses only this machine and
// writes into --train_dir, even in a shell within a pod or a Slurm allocation.
Environment environment_of_own_run(const Environment& environment);

struct OwnRun {
  std::vector<std::string> arguments;  // those after `lockstep run`
  Environment environment;
  bool is_run = true;  // false: `arguments` are those after `lockstep`
  int stdout_fd = -1;  // -1: the caller's
  int stderr_fd = -1;  // -1: the caller's
};

// Runs it to its end and returns its exit code. SIGINT, SIGTERM and SIGHUP of this process are forwarded to it, and it
// is killed if this process dies. kUnavailable: it cannot be started.
Result<int> run_to_end(const OwnRun& run);

struct OwnMachine {
  int gpus = 0;          // GPUs that a run would use; 0: it trains on the CPU
  std::string gpu_name;  // name of the first GPU; empty: not known
  int cores = 1;         // cores that this process may use (usable_cores)
};
// Loads the driver's libraries, unless --device cpu asks for none.
OwnMachine inspect_own_machine(const Environment& environment, DeviceChoice device);

// A command line for a shell: `program` (as the user called this program) and these words, quoted.
std::string command_line_of(const std::string& program, const std::vector<std::string>& words);

// The name by which the user can call this program: argv[0] if it is a path, else "lockstep".
std::string program_for_people(const std::string& argv_0);

}  // namespace lockstep
