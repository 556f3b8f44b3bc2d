// `lockstep completion bash|zsh|fish`, and `lockstep __complete WORD… CURRENT`, which its scripts call.
//
// The scripts do not contain our commands: at each Tab they call this program, which knows its own flags. A new command
// is one line in kCommands (completion.cc). Threads: one.
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

struct Candidate {
  std::string text;
  std::string help;
};

struct Completion {
  std::vector<Candidate> candidates;
  Takes rest = Takes::kNothing;  // kFile, kFolder: the shell completes paths, too
};

// `words`: those between the program's name and the word at the cursor. `current`: the beginning of that word. Pure.
Completion complete(const CommandShape& root, const std::vector<std::string>& words, const std::string& current);

// One line per candidate, "text<tab>help", and a last line :none, :file or :folder.
std::string to_lines(const Completion& completion);

// `args`: those after `lockstep completion`. Exit codes: 0, 2.
int completion_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

// `args`: those after `lockstep __complete`.
int complete_command(const std::vector<std::string>& args, std::ostream& out);

}  // namespace lockstep
