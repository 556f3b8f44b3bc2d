// `lockstep completion bash|zsh|fish` and what its scripts ask: `lockstep __complete WORD… CURRENT`.
//
// The scripts know nothing of our commands: at each key they ask this program, which knows its own flags. A new command
// is one line in kCommands (completion.cc). Threads: one.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/cli/command_shape.h"

namespace lockstep {

// All commands of `lockstep`, with all that may follow each.
CommandShape lockstep_shape();

// Their names.
std::vector<std::string> command_names();

struct Candidate {
  std::string text;
  std::string help;
};

struct Completion {
  std::vector<Candidate> candidates;
  Takes rest = Takes::kNothing;  // kFile, kFolder: the shell completes paths besides
};

// `words`: what stands between the program's name and the word at the cursor, which begins with `current`. Pure.
Completion complete(const CommandShape& root, const std::vector<std::string>& words, const std::string& current);

// A candidate a line, "text<tab>help", and a last line :none, :file or :folder.
std::string to_lines(const Completion& completion);

// `args`: what stands after `lockstep completion`. Exit codes: 0, 2.
int completion_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

// `args`: what stands after `lockstep __complete`.
int complete_command(const std::vector<std::string>& args, std::ostream& out);

}  // namespace lockstep
