// `lockstep launch [flags] [--] PROGRAM …`: any program as the ranks of a run, with torchrun's command line.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/contract/world.h"

namespace lockstep {

// What a command line of `lockstep launch` says.
struct LaunchLine {
  std::vector<std::string> flags;    // those that are ours, for the agents of --local_nodes
  std::vector<std::string> program;  // as it was given, with the interpreter in front where it was left out
  RunConfig config;                  // its launch options
  std::string run_id = "none";       // --rdzv_id
  bool uses_zygote = true;           // --no_zygote
  std::vector<std::string> ignored;  // torchrun's flags that have no meaning here, with their dashes
};

// Pure, but for a look whether the program is a file. Errors (kInvalid): a flag that is not known, a value that is not
// what the flag expects, no program, a launcher as the program (with the line to type instead).
Result<LaunchLine> parse_launch_line(const std::vector<std::string>& arguments, const Environment& environment);

// `arguments`: those after `lockstep launch`. As run_command.
int launch_command(const std::vector<std::string>& arguments);

}  // namespace lockstep
