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

// CLI11's "TEXT:{safetensors,pt}" → safetensors, pt
std::vector<std::string> words_of_type(const std::string& type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  std::vector<std::string> words;
  if (open == std::string::npos || close == std::string::npos) return words;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

OptionShape flag_shape(const Flag& flag) {
  OptionShape shape{
      .names = {"--" + flag.name}, .takes_value = !flag.is_bool, .words = flag.words, .takes_dashes = true};
  for (const std::string& alias : flag.aliases) shape.names.push_back("--" + alias);
  return shape;
}

CommandShape shape_of_flags(std::string name, const std::vector<Flag>& flags) {
  CommandShape shape{.name = std::move(name)};
  for (const Flag& flag : flags) {
    shape.options.push_back(flag_shape(flag));
    // The parser accepts --no_no_time, too, but completion does not offer it.
    if (flag.is_bool && !flag.name.starts_with("no_")) {
      shape.options.push_back({.names = {"--no_" + flag.name}, .takes_value = false, .takes_dashes = true});
    }
  }
  shape.options.push_back({.names = {"--help", "-h"}, .takes_value = false});
  return shape;
}

CommandShape shape_of_model_flags(std::string name, const std::vector<Flag>& flags) {
  CommandShape shape = shape_of_flags(std::move(name), flags);
  shape.options.insert(shape.options.end(), {{.names = {"--config"}}, {.names = {"--plugin"}}});
  return shape;
}

}  // namespace

CommandShape shape_of(const CLI::App& app) {
  CommandShape shape{.name = app.get_name()};
  for (const CLI::App* const subcommand : app.get_subcommands({})) shape.subcommands.push_back(shape_of(*subcommand));
  for (const CLI::Option* const option : app.get_options()) {
    if (!option->nonpositional()) continue;
    OptionShape& added = shape.options.emplace_back();
    // An option with an optional value accepts it only after "=".
    added.takes_value = option->get_items_expected_min() > 0;
    added.words = words_of_type(option->get_type_name());
    for (const std::string& name : option->get_lnames()) added.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) added.names.push_back("-" + name);
  }
  return shape;
}

CommandShape shape_of_names(const std::vector<std::string>& subcommands) {
  CommandShape shape;
  for (const std::string& name : subcommands) shape.subcommands.push_back({.name = name});
  return shape;
}

CommandShape run_shape(const WorkloadList& workloads) {
  CommandShape run = shape_of_model_flags("run", flag_table(nullptr));
  run.options.insert(run.options.end(), {{.names = {"--filename", "--file", "-f"}}, {.names = {"--mount"}}});
  for (const WorkloadFlags& workload : workloads) {
    run.subcommands.push_back(shape_of_model_flags(workload.name, flag_table(&workload)));
  }
  return run;
}

CommandShape launch_shape() {
  CommandShape launch = shape_of_flags("launch", launch_flag_table());
  for (const TorchrunFlag& flag : torchrun_flags()) {
    if (flag.meaning == TorchrunMeaning::kOurFlag || flag.help.empty()) continue;
    OptionShape option{.names = {"--" + std::string(flag.name)}, .takes_value = flag.takes_value, .takes_dashes = true};
    if (flag.letter != 0) option.names.push_back(std::string("-") + flag.letter);
    launch.options.push_back(std::move(option));
  }
  launch.options.push_back({.names = {"--recover"}, .takes_value = false, .takes_dashes = true});
  launch.options.push_back({.names = {"--no_zygote"}, .takes_value = false, .takes_dashes = true});
  launch.options.push_back({.names = {"--spares"}});
  return launch;
}

CommandShape tasks_shape(const WorkloadFlags& workload) {
  CommandShape tasks{.name = workload.name};
  for (const WorkloadTask& task : workload.tasks) {
    tasks.subcommands.push_back(shape_of_model_flags(task.name, task_flag_table(workload, task)));
  }
  return tasks;
}

}  // namespace lockstep
