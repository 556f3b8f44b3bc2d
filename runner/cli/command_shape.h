// What may stand on a command line, for completion: taken from what parses it, never written a second time.
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
  std::vector<std::string> words;  // all that it may be, where that is known
  std::string help;
  bool takes_dashes = false;  // dashes may stand for underscores in its names
};

struct CommandShape {
  std::string name;
  std::string help;
  std::vector<CommandShape> subcommands;
  std::vector<OptionShape> options;
  Takes positional = Takes::kNothing;  // what stands there without a name
  std::vector<std::string> positional_words;
};

// A file, a folder and a list of words are known by CLI11's own type names: FILE…, FOLDER or DIR, {a,b}.
CommandShape shape_of(const CLI::App& app);

// `lockstep run`: the workloads, each with its flags.
CommandShape run_shape(const WorkloadList& workloads);
// `lockstep WORKLOAD`: its tasks, each with its flags.
CommandShape tasks_shape(const WorkloadFlags& workload);

}  // namespace lockstep
