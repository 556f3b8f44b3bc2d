#include "runner/cli/command_shape.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <sstream>
#include <utility>

#include "runner/cli/torchrun_flags.h"
#include "runner/config/flag_table.h"
#include "runner/config/workload_flags.h"

namespace lockstep {
namespace {

// "TEXT:{safetensors,pt}" → safetensors, pt
std::vector<std::string> words_of_type(const std::string& type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  std::vector<std::string> words;
  if (open == std::string::npos || close == std::string::npos) return words;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

Takes takes_of_type(const std::string& type) {
  if (type.find("FILE") != std::string::npos) return Takes::kFile;
  const bool is_folder = type.find("FOLDER") != std::string::npos || type.find("DIR") != std::string::npos;
  return is_folder ? Takes::kFolder : Takes::kWord;
}

OptionShape option_shape(const CLI::Option& option) {
  OptionShape shape{.help = option.get_description()};
  for (const std::string& name : option.get_lnames()) shape.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) shape.names.push_back("-" + name);
  const std::string type = option.get_type_name();
  shape.words = words_of_type(type);
  // An option with an optional value accepts it only after "=".
  shape.takes = option.get_items_expected_min() == 0 ? Takes::kNothing : takes_of_type(type);
  return shape;
}

OptionShape flag_shape(const Flag& flag) {
  OptionShape shape{.names = {"--" + flag.name}, .words = flag.words, .help = flag.help, .takes_dashes = true};
  for (const std::string& alias : flag.aliases) shape.names.push_back("--" + alias);
  shape.takes = flag.is_bool                            ? Takes::kNothing
                : flag.names_path == NamesPath::kFile   ? Takes::kFile
                : flag.names_path == NamesPath::kFolder ? Takes::kFolder
                                                        : Takes::kWord;
  return shape;
}

}  // namespace

CommandShape shape_of(const CLI::App& app) {
  CommandShape shape{.name = app.get_name(), .help = app.get_description()};
  for (const CLI::App* const subcommand : app.get_subcommands({})) shape.subcommands.push_back(shape_of(*subcommand));
  for (const CLI::Option* const option : app.get_options()) {
    if (option->nonpositional()) {
      shape.options.push_back(option_shape(*option));
      continue;
    }
    shape.positional = takes_of_type(option->get_type_name() + option->get_name(true));
    shape.positional_words = words_of_type(option->get_type_name());
  }
  return shape;
}

namespace {

CommandShape shape_of_flags(std::string name, std::string help, const std::vector<Flag>& flags) {
  CommandShape shape{.name = std::move(name), .help = std::move(help)};
  for (const Flag& flag : flags) {
    shape.options.push_back(flag_shape(flag));
    // The parser accepts --no_no_time, too, but completion does not offer it.
    if (flag.is_bool && !flag.name.starts_with("no_"))
      shape.options.push_back({.names = {"--no_" + flag.name},
                               .takes = Takes::kNothing,
                               .help = "not: " + flag.help,
                               .takes_dashes = true});
  }
  shape.options.push_back({.names = {"--config"}, .takes = Takes::kFile, .help = "a YAML file of flags"});
  shape.options.push_back({.names = {"--plugin"}, .takes = Takes::kFile, .help = "a model of your own"});
  shape.options.push_back({.names = {"--help", "-h"}, .takes = Takes::kNothing, .help = "all flags"});
  return shape;
}

}  // namespace

CommandShape run_shape(const WorkloadList& workloads) {
  CommandShape run = shape_of_flags("run", "", flag_table(nullptr));
  run.options.push_back({.names = {"--filename", "--file", "-f"}, .takes = Takes::kFile, .help = "a TrainJob's file"});
  run.options.push_back({.names = {"--mount"}, .takes = Takes::kWord, .help = "with -f: POD_PATH=LOCAL_PATH"});
  for (const WorkloadFlags& workload : workloads) {
    run.subcommands.push_back(shape_of_flags(workload.name, workload.summary, flag_table(&workload)));
  }
  return run;
}

CommandShape launch_shape() {
  CommandShape launch = shape_of_flags("launch", "", launch_flag_table());
  std::erase_if(launch.options, [](const OptionShape& option) {
    return option.names.front() == "--config" || option.names.front() == "--plugin";
  });
  for (const TorchrunFlag& flag : torchrun_flags()) {
    if (flag.meaning == TorchrunMeaning::kOurFlag || flag.help.empty()) continue;
    OptionShape option{.names = {"--" + std::string(flag.name)},
                       .takes = Takes::kNothing,
                       .help = std::string(flag.help),
                       .takes_dashes = true};
    if (flag.letter != 0) option.names.push_back(std::string("-") + flag.letter);
    if (flag.takes_value) option.takes = flag.meaning == TorchrunMeaning::kLogDir ? Takes::kFolder : Takes::kWord;
    launch.options.push_back(std::move(option));
  }
  launch.options.push_back({.names = {"--no_zygote"}, .takes = Takes::kNothing, .help = "start each rank anew"});
  launch.options.push_back({.names = {"--spares"}, .takes = Takes::kWord, .help = "processes forked ahead"});
  launch.positional = Takes::kFile;
  return launch;
}

CommandShape tasks_shape(const WorkloadFlags& workload) {
  CommandShape tasks{.name = workload.name, .help = workload.summary};
  for (const WorkloadTask& task : workload.tasks) {
    tasks.subcommands.push_back(shape_of_flags(task.name, task.summary, task_flag_table(workload, task)));
  }
  return tasks;
}

}  // namespace lockstep
