#include "runner/config/run_config.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>  // App needs its definitions
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"
#include "runner/base/sha256.h"
#include "runner/base/shell_word.h"
#include "runner/config/flag_table.h"
#include "runner/config/flags_yaml.h"
#include "runner/config/plugin_line.h"
#include "runner/config/task_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {
namespace {

// Larger than the limit of parse_flags_yaml, so that a file that is too large gets that function's message.
constexpr std::streamsize kYamlReadMax = 1024 * 1024;

// A flag as it was given, before its value is parsed.
struct GivenText {
  std::string text;
  std::string where;  // " (file:line)", empty for the command line
  bool by_preset = false;
};
using GivenFlags = std::map<std::string, GivenText>;  // by the table's name

// For "no_x" the boolean flag x; null when there is a flag that is itself called "no_x".
const Flag* find_negated(const std::vector<Flag>& table, std::string_view name) {
  if (!name.starts_with("no_") || find_flag(table, name) != nullptr) return nullptr;
  const Flag* flag = find_flag(table, name.substr(3));
  return flag != nullptr && flag->is_bool ? flag : nullptr;
}

Error unknown_flag(const std::vector<Flag>& table, const std::string& name, const std::string& where) {
  std::string message = "unknown flag --" + name + where;
  const std::string nearest = nearest_flag(table, name);
  if (!nearest.empty()) message += "; did you mean --" + nearest + "?";
  return invalid(message + " (--help lists all)");
}

Result<std::string> negated_value(const Flag& flag, const std::string& text, const std::string& where) {
  bool value = false;
  if (!parse_bool_word(text, value)) {
    return invalid("--no_" + flag.name + ": found \"" + text + "\", expected true or false" + where);
  }
  return bool_text(!value);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The first word that is neither a flag nor the value of one: the workload's name. Flags may come before it
// (torch.distributed.launch adds one there), so the flags of all workloads are known here.
std::string workload_word(const std::vector<std::string>& arguments, const WorkloadList& workloads) {
  const std::vector<Flag> all = flags_of_all(workloads);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("-")) return word;
    if (!word.starts_with("--") || word.find('=') != std::string::npos) continue;
    const std::string name = with_underscores(word.substr(2));
    const Flag* flag = find_flag(all, name);
    const bool takes_value = is_line_argument(name) || (flag != nullptr && !flag->is_bool);
    // A boolean may have a value or none: "--use_amp true WORKLOAD", "--use_amp WORKLOAD".
    bool ignored = false;
    const bool has_next = i + 1 < arguments.size();
    const bool is_bool = !takes_value && has_next && parse_bool_word(arguments[i + 1], ignored);
    if ((takes_value && has_next && !arguments[i + 1].starts_with("--")) || is_bool) ++i;
  }
  return {};
}

// Reads the words of a command line: dashes may stand for underscores, --no_x for x=false, and a boolean needs no
// value.
class LineReader {
 public:
  // `word`: the workload's or the task's name, the only word that is not a flag.
  LineReader(const std::vector<Flag>& table, const std::string& word, const std::vector<std::string>& arguments)
      : table_(table), word_(word), arguments_(arguments) {}

  // Of a flag that is given twice the last value counts.
  Result<GivenFlags> run() {
    while (at_ < arguments_.size()) {
      const std::string& word = arguments_[at_++];
      if (word.starts_with("--") && word.size() > 2) {
        TRY(read_flag(word));
      } else if (word.starts_with("-") || std::exchange(word_seen_, true)) {
        return unexpected(word);
      }
    }
    return std::move(given_);
  }
  // Of --config; empty: not given.
  [[nodiscard]] const std::string& config_file() const { return config_file_; }

 private:
  [[nodiscard]] Error unexpected(const std::string& word) const {
    std::string message = "unexpected argument \"" + word + "\"";
    const std::string nearest = nearest_flag(table_, word.substr(std::min(word.find_first_not_of('-'), word.size())));
    if (word.starts_with("-") && !nearest.empty()) message += "; did you mean --" + nearest + "?";
    return invalid(message);
  }

  Status read_flag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name =
        with_underscores(word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);

    const Flag* negated = find_negated(table_, name);
    const Flag* flag = negated != nullptr ? negated : find_flag(table_, name);
    if (flag == nullptr && !is_line_argument(name)) return unknown_flag(table_, name, "");
    const bool is_bool = flag != nullptr && flag->is_bool;
    if (!value && at_ < arguments_.size() && takes_next(is_bool)) value = arguments_[at_++];
    if (value && value->empty()) {  // for example `--data_dir "$UNSET"`
      return invalid("--" + name + " needs a value (" + expected_of(flag, name) +
                     "), found an empty one; leave the flag out for its default");
    }
    if (!value && !is_bool) {
      const std::string found = at_ < arguments_.size() ? arguments_[at_] : "the end of the command line";
      return invalid("--" + name + " needs a value (" + expected_of(flag, name) + "), found " + found);
    }
    if (negated != nullptr) {
      TRY_ASSIGN(value, negated_value(*flag, value.value_or("true"), ""));
    }
    if (flag != nullptr) given_[flag->name] = GivenText{value.value_or("true"), ""};
    if (name == "config") config_file_ = *value;
    return {};
  }

  // `flag`: null for --config and --plugin.
  static std::string expected_of(const Flag* flag, const std::string& name) {
    if (flag != nullptr) return flag->expects;
    return name == "config" ? "a YAML file" : "the file of a model of your own";
  }

  // True when the next word is the value of the flag before it.
  [[nodiscard]] bool takes_next(bool is_bool) const {
    const std::string& next = arguments_[at_];
    if (is_bool) return !next.starts_with("-") && (word_seen_ || next != word_);
    return !next.starts_with("--");
  }

  const std::vector<Flag>& table_;
  const std::string& word_;
  const std::vector<std::string>& arguments_;
  size_t at_ = 0;
  bool word_seen_ = false;
  GivenFlags given_;
  std::string config_file_;
};

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name + " [flags]\n";
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string names = option->get_name(is_positional, true);
    for (size_t at = 0; (at = names.find(',', at)) != std::string::npos; at += 2) names.replace(at, 1, ", ");
    return names;
  }
};

// Prints the help of a command with these flags.
std::unique_ptr<CLI::App> help_of(const std::vector<Flag>& table, const RunConfig& defaults) {
  auto app = std::make_unique<CLI::App>(
      "Trains a model. Dashes may stand for underscores; booleans take --x, --x=false, "
      "--x false, --no_x.");
  app->formatter(std::make_shared<HelpFormatter>());
  app->add_option("--config", "a YAML file of flags, name: value; the command line wins")->type_name("FILE.yaml");
  app->add_option("--plugin", "a model of your own: a shared object (docs/your-own-model.md)")->type_name("FILE.so");
  for (const Flag& flag : table) {
    std::string names = "--" + flag.name;
    for (const std::string& alias : flag.aliases) names += ",--" + alias;
    CLI::Option* option = app->add_option(names, flag.help)->group(flag.group)->type_name("{" + flag.expects + "}");
    const std::string value = flag.get(defaults);
    if (!value.empty()) option->default_str(value);
  }
  app->set_help_flag("-h,--help", "print this and stop");
  return app;
}

Result<const WorkloadFlags*> checked_workload(const std::string& word, const WorkloadList& workloads) {
  const std::string known = "known: " + workload_names(workloads);
  if (word.empty()) return invalid("no workload given: expected `lockstep run WORKLOAD …`; " + known);
  if (const WorkloadFlags* workload = find_workload(workloads, word)) return workload;
  std::vector<std::string> names;
  for (const WorkloadFlags& workload : workloads) names.push_back(workload.name);
  const std::string nearest = nearest_name(word, names);
  return invalid("unknown workload \"" + word + "\"; " +
                 (nearest.empty() ? known + "; a model of your own needs --plugin FILE.so on the command line"
                                  : "did you mean \"" + nearest + "\"?"));
}

RunConfig default_config(const WorkloadFlags& workload) {
  RunConfig config;
  config.workload = workload.name;
  workload.set_defaults(config);
  return config;
}

Result<std::string> read_yaml_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Error{ErrorCode::kNotFound, "--config " + path + ": cannot be opened; expected a YAML file of flags"};
  std::string text(static_cast<size_t>(kYamlReadMax), '\0');
  file.read(text.data(), kYamlReadMax);
  if (file.bad()) return Error{ErrorCode::kUnavailable, "--config " + path + ": cannot be read"};
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

Status collect_yaml(const std::vector<Flag>& table, const std::string& path, GivenFlags& given) {
  TRY_ASSIGN(const std::string text, read_yaml_file(path));
  TRY_ASSIGN(const std::vector<YamlFlag> entries, parse_flags_yaml(text, path));
  for (const YamlFlag& entry : entries) {
    const std::string where = " (" + path + ":" + std::to_string(entry.line) + ")";
    if (entry.name == "config") return invalid("config: a file of flags cannot name another" + where);
    if (entry.name == "plugin") {
      return invalid("plugin: belongs on the command line (--plugin FILE): it says which workloads there are" + where);
    }
    const Flag* negated = find_negated(table, entry.name);
    const Flag* flag = negated != nullptr ? negated : find_flag(table, entry.name);
    if (flag == nullptr) return unknown_flag(table, entry.name, where);
    std::string value = entry.value;
    if (negated != nullptr) {
      TRY_ASSIGN(value, negated_value(*flag, entry.value, where));
    }
    // The YAML parser refuses two equal keys; x together with no_x, or with its alias, is refused here.
    if (!given.emplace(flag->name, GivenText{value, where}).second) {
      return invalid("--" + flag->name + " is given twice" + where);
    }
  }
  return {};
}

// The flags of the command line and of the file of --config. `word`: as LineReader's.
Result<GivenFlags> given_flags(const std::vector<Flag>& table, const std::string& word,
                               const std::vector<std::string>& arguments) {
  LineReader reader(table, word, arguments);
  TRY_ASSIGN(GivenFlags of_line, reader.run());
  GivenFlags given;
  if (!reader.config_file().empty()) TRY(collect_yaml(table, reader.config_file(), given));
  for (auto& [name, text] : of_line) given[name] = std::move(text);
  return given;
}

// `trained`: values for flags that were not given; may be null.
Status set_flags(const std::vector<Flag>& table, const GivenFlags& given, const TrainedFlags* trained,
                 RunConfig& config) {
  for (const Flag& flag : table) {
    const auto it = given.find(flag.name);
    if (it != given.end()) {
      TRY(set_flag(flag, it->second.text, it->second.where, config));
      continue;
    }
    if (trained == nullptr) continue;
    const auto value = trained->values.find(flag.name);
    if (value != trained->values.end()) TRY(set_flag(flag, value->second, " (" + trained->where + ")", config));
  }
  return {};
}

RunConfig default_task_config(const WorkloadFlags& workload, const WorkloadTask& task) {
  RunConfig config = default_config(workload);
  config.task.name = task.name;
  task.set_defaults(config);
  return config;
}

Status check_local_nodes(const LaunchOptions& launch) {
  if (!launch.local_nodes) return {};
  const std::string given = "--local_nodes " + std::to_string(*launch.local_nodes);
  if (launch.node_rank || !launch.coordinator.empty()) {
    return invalid(given + " starts all nodes itself: leave out " +
                   (launch.node_rank ? "--node_rank" : "--coordinator"));
  }
  if (launch.nnodes && *launch.nnodes != *launch.local_nodes) {
    return invalid(given + " contradicts --nnodes with " + std::to_string(*launch.nnodes) +
                   " nodes: leave --nnodes out, or give --nnodes MIN:" + std::to_string(*launch.local_nodes));
  }
  return {};
}

// Checks combinations of the flags that every workload has.
Status check_together(const RunConfig& config) {
  const LaunchOptions& launch = config.launch;
  if (config.training.train_dir.empty()) return invalid("--train_dir: found nothing, expected a name or a path");
  if (launch.multi_gpu == false && launch.nproc.value_or(1) > 1) {
    return invalid("--multi_gpu false means one rank, but --nproc is " + std::to_string(*launch.nproc) +
                   ": give one of them");
  }
  if (launch.min_nodes && launch.nnodes && *launch.min_nodes > *launch.nnodes) {
    return invalid("--nnodes " + std::to_string(*launch.min_nodes) + ":" + std::to_string(*launch.nnodes) + ": MIN " +
                   std::to_string(*launch.min_nodes) + " is above MAX " + std::to_string(*launch.nnodes));
  }
  TRY(check_local_nodes(launch));
  if (launch.node_rank && launch.nnodes && *launch.node_rank >= *launch.nnodes) {
    return invalid("--node_rank " + std::to_string(*launch.node_rank) + " with --nnodes " +
                   std::to_string(*launch.nnodes) + ": nodes are counted from 0");
  }
  if (!config.training.resume.empty() && !config.training.state_dict_path.empty()) {
    return invalid("--resume continues a whole run, --state_dict_path starts one from weights: give one of them");
  }
  return {};
}

// Adds the values of the chosen preset to `given`, for flags that were not given.
Status add_preset(const std::vector<Flag>& table, const WorkloadFlags& workload, RunConfig& config, GivenFlags& given) {
  for (const auto& [flag, preset] : workload.presets_by_flag) {
    if (given.contains(flag)) given.try_emplace(workload.preset_flag, GivenText{preset, " (--" + flag + ")", true});
  }
  const auto chosen = given.find(workload.preset_flag);
  if (chosen == given.end()) return {};
  const std::string name = chosen->second.text;
  TRY(set_flag(*find_flag(table, workload.preset_flag), name, chosen->second.where, config));
  const auto preset = std::find_if(workload.presets.begin(), workload.presets.end(),
                                   [&name](const Preset& p) { return p.name == name; });
  LOCKSTEP_CHECK(preset != workload.presets.end(), "the flag takes the names of presets");
  const std::string where = " (--" + workload.preset_flag + " " + name + ")";
  for (const auto& [name, value] : preset->values) given.try_emplace(name, GivenText{value, where, true});
  return {};
}

// In the original program the decay flags without --lr_schedule meant exponential decay.
void infer_schedule(const GivenFlags& given, RunConfig& config) {
  if (given.contains("lr_schedule")) return;
  if (given.contains("lr_decay_rate") || given.contains("lr_decay_step")) {
    config.training.lr_schedule = LrScheduleKind::kExponential;
  }
}

// The scope of a flag under this configuration, where it depends on another flag.
FlagScope effective_scope(const Flag& flag, const RunConfig& config) {
  const TrainingOptions& training = config.training;
  if (flag.needs && !flag.needs(config).empty()) return FlagScope::kThisProcess;
  // With a total batch, the number of accumulation steps does not change the result.
  if (flag.name == "grad_accum_steps" && training.batch_scope == BatchScope::kTotal) return FlagScope::kAllRanks;
  // The plateau schedule derives learning rates from evaluations.
  if (flag.changes_evaluations && training.lr_schedule == LrScheduleKind::kPlateau) return FlagScope::kMaths;
  return flag.scope;
}

std::vector<FlagValue> effective_values(const std::vector<Flag>& table, const RunConfig& config,
                                        const GivenFlags& given) {
  std::vector<FlagValue> values;
  for (const Flag& flag : table) {
    const FlagScope scope = effective_scope(flag, config);
    std::string value = flag.get(config);
    std::string identity = flag.identity ? flag.identity(value) : value;
    const auto it = given.find(flag.name);
    values.push_back({.name = flag.name,
                      .value = std::move(value),
                      .identity = std::move(identity),
                      .source = it == given.end()      ? FlagSource::kDefault
                                : it->second.by_preset ? FlagSource::kPreset
                                                       : FlagSource::kUser,
                      .changes_maths = scope == FlagScope::kMaths,
                      .same_on_all_ranks = scope != FlagScope::kThisProcess});
  }
  std::sort(values.begin(), values.end(), [](const FlagValue& a, const FlagValue& b) { return a.name < b.name; });
  return values;
}

Json flags_object(const RunConfig& config, bool FlagValue::*selected) {
  Json object = Json::object();
  for (const FlagValue& flag : config.flags) {
    if (flag.*selected) object[flag.name] = flag.identity;
  }
  return object;
}

std::vector<std::string> notes_of(const std::vector<Flag>& table, const WorkloadFlags& workload,
                                  const RunConfig& config, const GivenFlags& given) {
  std::vector<std::string> lines;
  const auto chosen = given.find(workload.preset_flag);
  if (chosen != given.end() && chosen->second.by_preset) {
    for (const auto& [flag, preset] : workload.presets_by_flag) {
      if (!given.contains(flag)) continue;
      lines.push_back("--" + workload.preset_flag + " " + preset + ": because --" + flag + " was given");
      break;
    }
  }
  for (const Flag& flag : table) {
    const std::string need = flag.needs ? flag.needs(config) : std::string();
    const auto it = given.find(flag.name);
    if (!need.empty() && it != given.end() && !it->second.by_preset) {
      lines.push_back("--" + flag.name + ": without effect, it needs " + need);
    }
  }
  if (config.training.lr_schedule == LrScheduleKind::kExponential && !is_given(config, "lr_schedule")) {
    lines.emplace_back("--lr_schedule exponential: because --lr_decay_rate or --lr_decay_step was given");
  }
  if (config.training.use_amp && config.training.precision_given) {
    lines.emplace_back("--use_amp: overridden by --precision");
  }
  return lines;
}

// "  NAME  what it is" and its flags below, in lines that fit a terminal.
std::string presets_help(const WorkloadFlags& workload) {
  constexpr size_t kWidth = 80;
  if (workload.presets.empty()) return {};
  std::string text = "Presets (--" + workload.preset_flag + " NAME; a flag that is given wins):\n";
  for (const Preset& preset : workload.presets) {
    text += "  " + preset.name + "  " + preset.summary + "\n";
    const std::string indent(preset.name.size() + 3, ' ');  // each word begins with a space
    std::string line;
    for (const auto& [name, value] : preset.values) {
      const std::string word = " --" + name + " " + value;
      if (indent.size() + line.size() + word.size() > kWidth) text += indent + std::exchange(line, "") + "\n";
      line += word;
    }
    if (!line.empty()) text += indent + line + "\n";
  }
  return text + "\n";
}

}  // namespace

bool is_given(const RunConfig& config, std::string_view name) {
  return std::any_of(config.flags.begin(), config.flags.end(), [name](const FlagValue& flag) {
    return flag.name == name && flag.source != FlagSource::kDefault;
  });
}

const WorkloadFlags* find_workload(const WorkloadList& workloads, std::string_view name) {
  const auto it = std::find_if(workloads.begin(), workloads.end(),
                               [name](const WorkloadFlags& workload) { return workload.name == name; });
  return it == workloads.end() ? nullptr : &*it;
}

Result<SettledRun> settled_run(FileSystem& fs, const RunConfig& config, std::vector<std::string> arguments,
                               const WorkloadList& workloads) {
  SettledRun run{.config = config, .arguments = std::move(arguments), .remark = {}};
  const WorkloadFlags* workload = find_workload(workloads, config.workload);
  if (workload == nullptr || !workload->settle) return run;
  TRY_ASSIGN(std::optional<WorkloadFlags::Settled> settled, workload->settle(fs, config));
  if (!settled) return run;
  run.arguments.insert(run.arguments.end(), settled->arguments.begin(), settled->arguments.end());
  TRY_ASSIGN(run.config, parse_run_config(run.arguments, workloads));
  run.remark = std::move(settled->remark);
  return run;
}

const WorkloadTask* find_task(const WorkloadFlags* workload, std::string_view name) {
  if (workload == nullptr) return nullptr;
  const auto it = std::find_if(workload->tasks.begin(), workload->tasks.end(),
                               [name](const WorkloadTask& task) { return task.name == name; });
  return it == workload->tasks.end() ? nullptr : &*it;
}

std::string workload_names(const WorkloadList& workloads) { return joined(workloads, ", ", &WorkloadFlags::name); }

bool wants_help(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

std::string run_help(const std::string& word, const WorkloadList& workloads) {
  const WorkloadFlags* workload = find_workload(workloads, word);
  const auto help = help_of(flag_table(workload), workload == nullptr ? RunConfig{} : default_config(*workload));
  std::string footer;
  if (workload == nullptr) {
    footer = "Workloads (lockstep run WORKLOAD --help: its own flags, too):\n";
    for (const WorkloadFlags& w : workloads) footer += "  " + w.name + "  " + w.summary + "\n";
    footer += "\n";
  } else {
    footer = presets_help(*workload) + (workload->example.empty() ? "" : "Example: " + workload->example + "\n\n");
  }
  help->footer(footer +
               "A TrainJob's file can replace the flags: lockstep run -f trainjob.yaml (lockstep run -f --help)\n"
               "Exit codes: lockstep --help, or README.md");
  help->name("lockstep run " + (workload == nullptr ? "WORKLOAD" : workload->name));
  return help->help();
}

Result<RunConfig> parse_run_config(const std::vector<std::string>& arguments, const WorkloadList& workloads) {
  TRY_ASSIGN(const WorkloadFlags* workload, checked_workload(workload_word(arguments, workloads), workloads));
  const std::vector<Flag> table = flag_table(workload);
  RunConfig config = default_config(*workload);
  TRY_ASSIGN(GivenFlags given, given_flags(table, workload->name, arguments));
  TRY(add_preset(table, *workload, config, given));
  TRY(set_flags(table, given, nullptr, config));
  infer_schedule(given, config);
  config.flags = effective_values(table, config, given);
  for (const Flag& flag : table) {
    if (flag.is_train_dir && given.contains(flag.name)) config.train_dir_flag = flag.name;
  }
  TRY(workload->check(config));
  TRY(check_together(config));
  if (!config.training.state_dict_path.empty() && workload->epochs_of_weights) {
    TRY_ASSIGN(config.training.weights_epochs, workload->epochs_of_weights(config.training.state_dict_path));
  }
  config.data_name = workload->data_name(config);
  config.notes = notes_of(table, *workload, config, given);
  return config;
}

bool names_task(const std::vector<std::string>& arguments, const WorkloadList& workloads) {
  return arguments.size() >= 2 && find_task(find_workload(workloads, arguments[0]), arguments[1]) != nullptr;
}

std::string task_help(const WorkloadFlags& workload, const WorkloadTask& task) {
  const auto help = help_of(task_flag_table(workload, task), default_task_config(workload, task));
  help->description("What it does: " + task.summary + ".\n" +
                    "Flags of data and model come from the checkpoint; those that are given win.");
  std::string examples = "Examples:\n";
  for (const std::string& example : task.examples) examples += "  " + example + "\n";
  help->footer(examples + "\nThe result goes to standard output, remarks to standard error.\n" +
               "Exit codes: lockstep --help, or README.md");
  help->name("lockstep " + workload.name + " " + task.name);
  return help->help();
}

Result<RunConfig> parse_task_config(const std::vector<std::string>& arguments, const WorkloadList& workloads,
                                    const TrainedFlags* trained) {
  LOCKSTEP_CHECK(names_task(arguments, workloads), "arguments that name a task");
  const WorkloadFlags& workload = *find_workload(workloads, arguments[0]);
  const WorkloadTask& task = *find_task(&workload, arguments[1]);
  const std::vector<Flag> table = task_flag_table(workload, task);
  // The task's name is at the place that the workload's name has in a run.
  const std::vector<std::string> from_task(arguments.begin() + 1, arguments.end());
  RunConfig config = default_task_config(workload, task);
  TRY_ASSIGN(const GivenFlags given, given_flags(table, task.name, from_task));
  TRY(set_flags(table, given, trained, config));
  config.flags = effective_values(table, config, given);
  TRY(task.check(config));
  if (config.task.checkpoint.empty()) {
    return invalid("--checkpoint is required: a run's folder, a step folder in it, or a file of weights");
  }
  if (trained == nullptr) return config;
  TRY(workload.check(config));
  config.data_name = workload.data_name(config);
  config.notes = notes_of(table, workload, config, given);
  return config;
}

TrainedFlags flags_of_checkpoint(const WorkloadFlags& workload, const WorkloadTask& task, const Json& maths_flags,
                                 const std::string& args_txt, std::string where) {
  TrainedFlags trained{.values = {}, .identities = {}, .where = std::move(where)};
  std::map<std::string, std::string> args;
  std::istringstream lines(args_txt);
  for (std::string text; std::getline(lines, text);) {
    const size_t comma = text.find(',');
    if (comma != std::string::npos) args[text.substr(0, comma)] = text.substr(comma + 1);
  }
  const std::vector<Flag> table = flag_table(&workload);
  for (const std::string& name : task.workload_flags) {
    const Flag* const found = find_flag(table, name);
    LOCKSTEP_CHECK(found != nullptr, "a task names a flag that its workload lacks");
    const Flag& flag = *found;
    const auto arg = args.find(flag.name);
    const bool is_known = maths_flags.contains(flag.name) && maths_flags.at(flag.name).is_string();
    if (is_known) {
      const auto identity = maths_flags.at(flag.name).get<std::string>();
      // Only args.txt has the path of a data set.
      const bool is_same = flag.identity && arg != args.end() && flag.identity(arg->second) == identity;
      trained.values[flag.name] = is_same ? arg->second : identity;
      trained.identities[flag.name] = identity;
    } else if (arg != args.end()) {
      trained.values[flag.name] = arg->second;
    }
  }
  return trained;
}

std::vector<std::string> remarks_on_other_flags(const RunConfig& config, const TrainedFlags& trained) {
  std::vector<std::string> remarks;
  for (const FlagValue& value : config.flags) {
    const auto it = trained.identities.find(value.name);
    if (it == trained.identities.end() || value.source == FlagSource::kDefault) continue;
    const std::string& before = it->second;
    if (before != value.identity) {
      remarks.push_back("--" + value.name + " is " + value.identity + " here and was " + before +
                        " when the weights were trained");
    }
  }
  return remarks;
}

std::string RunConfig::config_hash() const {
  return sha256_hex(dump_line(Json{{"workload", workload}, {"flags", maths_flags()}}));
}

Json RunConfig::maths_flags() const { return flags_object(*this, &FlagValue::changes_maths); }

Json RunConfig::shared_flags() const { return flags_object(*this, &FlagValue::same_on_all_ranks); }

std::string args_txt(const RunConfig& config) {
  std::string text;
  for (const FlagValue& flag : config.flags) text += flag.name + "," + flag.value + "\n";
  return text;
}

std::string resume_command_of(const std::vector<std::string>& arguments) {
  std::string command = "lockstep run";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--resume") {
      ++i;
    } else if (!arguments[i].starts_with("--resume=")) {
      command += " " + shell_word(arguments[i]);
    }
  }
  return command;
}

std::string output_folder(const RunConfig& config, const std::string& checkpoint_dir, const std::string& job) {
  const auto without_slashes = [](std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  };
  if (!checkpoint_dir.empty() && !job.empty()) return without_slashes(checkpoint_dir) + "/" + job;
  if (!checkpoint_dir.empty() && config.train_dir_flag.empty()) return without_slashes(checkpoint_dir);
  const std::string& train_dir = config.training.train_dir;
  if (train_dir.find('/') != std::string::npos) return without_slashes(train_dir);
  return config.data_name + "_" + train_dir;
}

}  // namespace lockstep
