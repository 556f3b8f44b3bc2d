// `lockstep launch [flags] [--] PROGRAM …`: any program as the ranks of a run, with torchrun's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/agent/program_command.h"
#include "runner/base/environment.h"
#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"

namespace lockstep {

inline constexpr int kSparesMax = 64;

// What --nproc was given as; a number stands in the launch options.
enum class NprocWord { kNumber, kAuto, kGpu };

// What a command line of `lockstep launch` says, and torchrun's PET_ variables, where it leaves something out.
struct LaunchLine {
  std::vector<std::string> flags;  // for the agents of --local_nodes
  ProgramCommand command;          // its words as they were given, with the interpreter in front where it was left out
  RunConfig config;                // its launch options
  std::optional<NprocWord> nproc;  // unset: not given
  bool is_standalone = false;      // --standalone
  std::vector<std::string> ignored;  // torchrun's flags and variables that have no meaning here
  std::vector<std::string> remarks;  // on others that have none, with what to do
};

// Pure, but for a look at the program's file. Errors (kInvalid): a flag that is not known, a value that is not
// what the flag expects, no program, a launcher as the program (with the line to type instead).
Result<LaunchLine> parse_launch_line(const std::vector<std::string>& arguments, const Environment& environment);

// Where what programs import is kept between runs; empty where that is not known.
std::string remember_folder(const Environment& environment);

// `arguments`: those after `lockstep launch`. As run_command.
int launch_command(FileSystem& fs, const std::vector<std::string>& arguments);

}  // namespace lockstep
