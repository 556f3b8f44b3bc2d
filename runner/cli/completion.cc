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
  std::vector<std::string> shells;
  for (const CompletionScript& script : kCompletionScripts) shells.emplace_back(script.shell);
  return shape_of_names(shells);
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

struct Command {
  const char* name;
  CommandShape (*shape)();
};
constexpr Command kCommands[] = {
    {"run", [] { return run_shape(all_workload_flags()); }},
    {"launch", launch_shape},
    {"workloads", workloads_shape},
    {"demo", demo_shape},
    {"bench", bench_shape},
    {"doctor", doctor_shape},
    {"validate", validate_shape},
    {"render", render_shape},
    {"ckpt", ckpt_shape},
    {"chaos", chaos_shape},
    {"completion", completion_shape},
    {"version", [] { return CommandShape(); }},
    {"help", [] { return CommandShape(); }},
};

// A flag's name with dashes instead of underscores.
std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
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

std::vector<std::string> option_names(const CommandShape& shape, const std::string& current) {
  const bool with_dashes = current.find('-', std::min<size_t>(current.size(), 2)) != std::string::npos;
  std::vector<std::string> names;
  for (const OptionShape& option : shape.options) {
    for (const std::string& name : option.names) {
      names.push_back(with_dashes && option.takes_dashes ? dashed(name) : name);
    }
  }
  return names;
}

std::vector<std::string> all_candidates(const CommandShape& root, const std::vector<std::string>& words,
                                        const std::string& current) {
  const CommandShape* shape = &root;
  const OptionShape* awaits_value = nullptr;  // the option whose value is the next word
  for (const std::string& word : words) {
    if (std::exchange(awaits_value, nullptr) != nullptr) continue;
    if (word.starts_with("-")) {
      const OptionShape* const option = find_option(*shape, word);
      const bool is_open = option != nullptr && option->takes_value && word.find('=') == std::string::npos;
      if (is_open) awaits_value = option;
      continue;
    }
    const auto subcommand = std::find_if(shape->subcommands.begin(), shape->subcommands.end(),
                                         [&word](const CommandShape& known) { return known.name == word; });
    if (subcommand != shape->subcommands.end()) shape = &*subcommand;
  }
  if (awaits_value != nullptr) return awaits_value->words;
  std::vector<std::string> candidates;
  const size_t equals = current.find('=');
  if (current.starts_with("-") && equals != std::string::npos) {
    const OptionShape* const option = find_option(*shape, current);
    if (option == nullptr) return candidates;
    for (const std::string& word : option->words) candidates.push_back(current.substr(0, equals + 1) + word);
    return candidates;
  }
  if (current.starts_with("-")) return option_names(*shape, current);
  for (const CommandShape& subcommand : shape->subcommands) candidates.push_back(subcommand.name);
  return candidates;
}

}  // namespace

CommandShape lockstep_shape() {
  CommandShape root;
  for (const Command& command : kCommands) {
    root.subcommands.push_back(command.shape());
    root.subcommands.back().name = command.name;
  }
  for (const WorkloadFlags& workload : all_workload_flags()) {
    if (!workload.tasks.empty()) root.subcommands.push_back(tasks_shape(workload));
  }
  return root;
}

std::vector<std::string> command_names() { return complete(lockstep_shape(), {}, ""); }

std::vector<std::string> complete(const CommandShape& root, const std::vector<std::string>& words,
                                  const std::string& current) {
  std::vector<std::string> candidates = all_candidates(root, words, current);
  std::erase_if(candidates, [&current](const std::string& candidate) { return !candidate.starts_with(current); });
  return candidates;
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
  for (const CompletionScript& script : kCompletionScripts) {
    if (word != script.shell || args.size() != 1) continue;
    out << script.text;
    return 0;
  }
  const std::string nearest = nearest_name(word, complete(completion_shape(), {}, ""));
  err << "lockstep completion: found " << (word.empty() ? "nothing" : "\"" + word + "\"")
      << (args.size() > 1 ? " and more" : "") << ", expected one of bash, zsh, fish"
      << (nearest.empty() || nearest == word ? "" : "; did you mean \"" + nearest + "\"?") << "\n";
  return code_of(ExitCode::kUsage);
}

int complete_command(const std::vector<std::string>& args, std::ostream& out) {
  const std::vector<std::string> words(args.begin(), args.empty() ? args.end() : args.end() - 1);
  for (const std::string& candidate : complete(lockstep_shape(), words, args.empty() ? "" : args.back())) {
    out << candidate << "\n";
  }
  return 0;
}

}  // namespace lockstep
