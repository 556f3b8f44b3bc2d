#include "runner/cli/completion.h"

#include <algorithm>
#include <utility>

#include "operator/manifest/commands.h"
#include "runner/base/nearest.h"
#include "runner/cli/bench_command.h"
#include "runner/cli/chaos_command.h"
#include "runner/cli/ckpt_command.h"
#include "runner/cli/completion_scripts.h"
#include "runner/cli/demo_command.h"
#include "runner/cli/doctor_command.h"
#include "runner/cli/workloads_command.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

CommandShape completion_shape() {
  CommandShape shape;
  for (const CompletionScript& script : kCompletionScripts) {
    shape.subcommands.push_back({.name = script.shell, .help = "the script for this shell"});
  }
  return shape;
}

CommandShape validate_shape() {
  CLI::App app;
  manifest::ValidateArguments validate;
  manifest::add_validate_options(app, validate);
  return shape_of(app);
}

CommandShape render_shape() {
  CLI::App app;
  manifest::RenderArguments render;
  manifest::add_render_options(app, render);
  return shape_of(app);
}

CommandShape nothing() { return {}; }

struct Command {
  const char* name;
  const char* help;
  CommandShape (*shape)();
};
constexpr Command kCommands[] = {
    {"run", "start the ranks of this machine and train", [] { return run_shape(all_workload_flags()); }},
    {"launch", "start any program as the ranks of a run", launch_shape},
    {"workloads", "list what can be trained", workloads_shape},
    {"demo", "a short run with its result, and what to try next", demo_shape},
    {"bench", "the speed-up by more ranks", bench_shape},
    {"doctor", "check whether this machine can train", doctor_shape},
    {"validate", "say what is wrong with a TrainJob's file", validate_shape},
    {"render", "print the pods that the operator would make of a TrainJob's file", render_shape},
    {"ckpt", "look at, check, convert and remove old checkpoints", ckpt_shape},
    {"chaos", "kill or stop a part of a run on this machine", chaos_shape},
    {"completion", "completion for bash, zsh or fish", completion_shape},
    {"version", "say which version this is", nothing},
    {"help", "list the commands", nothing},
};

const CommandShape* find_subcommand(const CommandShape& shape, const std::string& name) {
  const auto it = std::find_if(shape.subcommands.begin(), shape.subcommands.end(),
                               [&name](const CommandShape& subcommand) { return subcommand.name == name; });
  return it == shape.subcommands.end() ? nullptr : &*it;
}

// A flag's name with dashes instead of underscores.
std::string dashed(const std::string& name) {
  std::string text = name;
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// The option of a word like "--lr" or "--lr=0.1"; null when there is none.
const OptionShape* find_option(const CommandShape& shape, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (const OptionShape& option : shape.options) {
    for (const std::string& known : option.names) {
      if (name == known || (option.takes_dashes && name == dashed(known))) return &option;
    }
  }
  return nullptr;
}

// Only the first clause of the help text (up to ';'), to keep the list of candidates short.
std::string short_help(const std::string& help) { return help.substr(0, help.find(';')); }

void add_values(const OptionShape& option, const std::string& before, const std::string& current,
                Completion& completion) {
  for (const std::string& word : option.words) {
    if (word.starts_with(current)) completion.candidates.push_back({before + word, ""});
  }
  if (option.words.empty() && option.takes != Takes::kWord) completion.rest = option.takes;
}

void add_options(const CommandShape& shape, const std::string& current, Completion& completion) {
  const bool with_dashes = current.find('-', std::min<size_t>(current.size(), 2)) != std::string::npos;
  for (const OptionShape& option : shape.options) {
    for (const std::string& name : option.names) {
      const std::string text = with_dashes && option.takes_dashes ? dashed(name) : name;
      if (text.starts_with(current)) completion.candidates.push_back({text, short_help(option.help)});
    }
  }
}

}  // namespace

CommandShape lockstep_shape() {
  CommandShape root{.name = "lockstep"};
  for (const Command& command : kCommands) {
    CommandShape shape = command.shape();
    shape.name = command.name;
    shape.help = command.help;
    root.subcommands.push_back(std::move(shape));
  }
  for (const WorkloadFlags& workload : all_workload_flags()) {
    if (!workload.tasks.empty()) root.subcommands.push_back(tasks_shape(workload));
  }
  return root;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  for (const WorkloadFlags& workload : all_workload_flags()) {
    if (!workload.tasks.empty()) names.push_back(workload.name);
  }
  return names;
}

Completion complete(const CommandShape& root, const std::vector<std::string>& words, const std::string& current) {
  const CommandShape* shape = &root;
  const OptionShape* awaits_value = nullptr;  // the option whose value is the next word
  for (const std::string& word : words) {
    if (std::exchange(awaits_value, nullptr) != nullptr) continue;
    if (word.starts_with("-")) {
      const OptionShape* const option = find_option(*shape, word);
      const bool is_open = option != nullptr && option->takes != Takes::kNothing;
      if (is_open && word.find('=') == std::string::npos) awaits_value = option;
    } else if (const CommandShape* const subcommand = find_subcommand(*shape, word)) {
      shape = subcommand;
    }
  }
  Completion completion;
  if (awaits_value != nullptr) {
    add_values(*awaits_value, "", current, completion);
    return completion;
  }
  const size_t equals = current.find('=');
  if (current.starts_with("-") && equals != std::string::npos) {
    const OptionShape* const option = find_option(*shape, current);
    if (option != nullptr) add_values(*option, current.substr(0, equals + 1), current.substr(equals + 1), completion);
    return completion;
  }
  const bool has_other_words =
      !shape->subcommands.empty() || !shape->positional_words.empty() || shape->positional != Takes::kNothing;
  if (current.starts_with("-") || (current.empty() && !has_other_words)) {
    add_options(*shape, current, completion);
    return completion;
  }
  for (const CommandShape& subcommand : shape->subcommands) {
    if (subcommand.name.starts_with(current)) completion.candidates.push_back({subcommand.name, subcommand.help});
  }
  for (const std::string& word : shape->positional_words) {
    if (word.starts_with(current)) completion.candidates.push_back({word, ""});
  }
  if (shape->subcommands.empty() && shape->positional != Takes::kWord) completion.rest = shape->positional;
  return completion;
}

std::string to_lines(const Completion& completion) {
  std::string lines;
  for (const Candidate& candidate : completion.candidates) {
    lines.append(candidate.text).append("\t").append(candidate.help).append("\n");
  }
  const bool is_path = completion.rest == Takes::kFile || completion.rest == Takes::kFolder;
  return lines.append(!is_path ? ":none" : completion.rest == Takes::kFile ? ":file" : ":folder").append("\n");
}

int completion_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  constexpr const char* kUsage =
      "lockstep completion bash|zsh|fish prints a script for that shell. To use it:\n"
      "  bash   source <(lockstep completion bash)               in ~/.bashrc\n"
      "  zsh    source <(lockstep completion zsh)                in ~/.zshrc, after compinit\n"
      "  fish   lockstep completion fish | source                in ~/.config/fish/config.fish\n";
  const std::string word = args.empty() ? "" : args.front();
  if (word == "--help" || word == "-h") {
    out << kUsage;
    return 0;
  }
  std::vector<std::string> shells;
  for (const CompletionScript& script : kCompletionScripts) {
    shells.emplace_back(script.shell);
    if (word != script.shell || args.size() != 1) continue;
    out << script.text;
    return 0;
  }
  const std::string nearest = nearest_name(word, shells);
  err << "lockstep completion: found " << (word.empty() ? "nothing" : "\"" + word + "\"")
      << (args.size() > 1 ? " and more" : "") << ", expected one of bash, zsh, fish"
      << (nearest.empty() || nearest == word ? "" : "; did you mean \"" + nearest + "\"?") << "\n";
  return code_of(ExitCode::kUsage);
}

int complete_command(const std::vector<std::string>& args, std::ostream& out) {
  const std::vector<std::string> words(args.begin(), args.empty() ? args.end() : args.end() - 1);
  out << to_lines(complete(lockstep_shape(), words, args.empty() ? "" : args.back()));
  return 0;
}

}  // namespace lockstep
