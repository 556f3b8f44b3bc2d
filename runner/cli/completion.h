// `lockstep completion bash|zsh|fish`, and `lockstep __complete WORD… CURRENT`, which its scripts call.
//
// The scripts do not contain our commands: at each Tab they call this program, which knows its own flags, and offer
// what it prints, one candidate per line; where it prints nothing they complete paths. A new command is one line in
// kCommands (completion.cc). Threads: one.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/cli/command_shape.h"

namespace lockstep {

// All commands of `lockstep` with their options.
CommandShape lockstep_shape();

// The names of all commands.
std::vector<std::string> command_names();

// What may stand at the cursor: commands, flags, values of flags that are words. `words`: those between the program's
// name and the word at the cursor. `current`: the beginning of that word. Pure.
std::vector<std::string> complete(const CommandShape& root, const std::vector<std::string>& words,
                                  const std::string& current);

// `args`: those after `lockstep completion`. Exit codes: 0, 2.
int completion_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

// `args`: those after `lockstep __complete`.
int complete_command(const std::vector<std::string>& args, std::ostream& out);

}  // namespace lockstep
