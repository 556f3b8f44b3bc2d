// The shape of a command line, for completion. Derived from the parsers, so that it need not be written twice.
// Threads: plain values.
#pragma once

#include <string>
#include <vector>

#include "runner/config/run_config.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace lockstep {

enum class Takes { kNothing, kWord, kFile, kFolder };

struct OptionShape {
  std::vector<std::string> names;  // "--nproc", "--nproc_per_node"
  Takes takes = Takes::kWord;
  std::vector<std::string> words;  // all allowed values, if known
  std::string help;
  bool takes_dashes = false;  // dashes may stand for underscores in its names
};

struct CommandShape {
  std::string name;
  std::string help;
  std::vector<CommandShape> subcommands;
  std::vector<OptionShape> options;
  Takes positional = Takes::kNothing;  // the kind of its positional argument
  std::vector<std::string> positional_words;
};

// Recognises files, folders and lists of words by CLI11's type names: FILE…, FOLDER or DIR, {a,b}.
CommandShape shape_of(const CLI::App& app);

// `lockstep run`: the workloads, each with its flags.
CommandShape run_shape(const WorkloadList& workloads);
// `lockstep launch`.
CommandShape launch_shape();
// `lockstep WORKLOAD`: its tasks, each with its flags.
CommandShape tasks_shape(const WorkloadFlags& workload);

}  // namespace lockstep
