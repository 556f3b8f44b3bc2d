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

struct OptionShape {
  std::vector<std::string> names;  // "--nproc", "--nproc_per_node"
  bool takes_value = true;
  std::vector<std::string> words;  // all allowed values, if known
  bool takes_dashes = false;       // dashes may stand for underscores in its names
};

struct CommandShape {
  std::string name;
  std::vector<CommandShape> subcommands;
  std::vector<OptionShape> options;
};

CommandShape shape_of(const CLI::App& app);
// A command whose subcommands have nothing of their own.
CommandShape shape_of_names(const std::vector<std::string>& subcommands);

// `lockstep run`: the workloads, each with its flags.
CommandShape run_shape(const WorkloadList& workloads);
// `lockstep launch`.
CommandShape launch_shape();
// `lockstep WORKLOAD`: its tasks, each with its flags.
CommandShape tasks_shape(const WorkloadFlags& workload);

}  // namespace lockstep
