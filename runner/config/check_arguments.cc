#include "runner/config/check_arguments.h"

#include <algorithm>
#include <string_view>

#include "runner/base/nearest.h"
#include "runner/config/flag_table.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/launch/world.h"

namespace lockstep {
namespace {

// "--lr-decay=3" → "lr_decay"; "" for a word that is not a flag.
std::string flag_name(std::string_view word) {
  if (!word.starts_with("--")) return {};
  std::string name(word.substr(2, word.find('=') == std::string_view::npos ? word.npos : word.find('=') - 2));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The flag's name in the table, for an alias or --no_x, too.
std::string table_name(const std::vector<Flag>& table, const std::string& name) {
  const Flag* flag = find_flag(table, name);
  if (flag == nullptr && name.starts_with("no_")) flag = find_flag(table, name.substr(3));
  return flag == nullptr ? name : flag->name;
}

// The last argument that gives the flag, which is the one that takes effect.
std::optional<size_t> index_of_flag(const std::vector<Flag>& table, const std::vector<std::string>& arguments,
                                    const std::string& name) {
  for (size_t i = arguments.size(); i-- > 0;) {
    const std::string given = flag_name(arguments[i]);
    if (!given.empty() && table_name(table, given) == table_name(table, name)) return i;
  }
  return std::nullopt;
}

// The first flag or quoted word of a message that is among the arguments.
std::optional<size_t> index_in_message(const std::vector<Flag>& table, const std::vector<std::string>& arguments,
                                       const std::string& message) {
  for (size_t at = message.find("--"); at != std::string::npos; at = message.find("--", at + 2)) {
    const size_t end =
        message.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", at);
    const auto index =
        index_of_flag(table, arguments, flag_name(message.substr(at, end == std::string::npos ? end : end - at)));
    if (index) return index;
  }
  const size_t open = message.find('"');
  const size_t close = open == std::string::npos ? open : message.find('"', open + 1);
  if (close == std::string::npos) return std::nullopt;
  const auto word = std::find(arguments.begin(), arguments.end(), message.substr(open + 1, close - open - 1));
  if (word == arguments.end()) return std::nullopt;
  return static_cast<size_t>(word - arguments.begin());
}

std::optional<ArgumentProblem> check_environment(const Environment& environment, const LaunchOptions& launch) {
  const Status status = check_agent_environment(environment, launch);
  if (status.ok()) return std::nullopt;
  return ArgumentProblem{.index = std::nullopt, .message = status.error().message, .is_of_environment = true};
}

}  // namespace

std::optional<ArgumentProblem> check_arguments(const AgentCommand& command, const WorkloadList& workloads) {
  const std::vector<std::string>& arguments = command.arguments;
  if (arguments.empty()) return std::nullopt;
  if (arguments.front() != "run") {
    std::string message = "is \"" + arguments.front() + "\", expected run WORKLOAD [flags]";
    if (!nearest_name(arguments.front(), {"run"}).empty()) message += "; did you mean run?";
    return ArgumentProblem{.index = 0, .message = message};
  }
  const std::vector<Flag> table = flags_of_all(workloads);
  for (const char* name : {"config", "plugin"}) {
    if (index_of_flag(table, arguments, name)) return check_environment(command.environment, {});
  }
  const Result<RunConfig> config = parse_run_config({arguments.begin() + 1, arguments.end()}, workloads);
  if (!config.ok()) {
    return ArgumentProblem{.index = index_in_message(table, arguments, config.error().message),
                           .message = config.error().message};
  }
  const TrainingOptions& training = config->training;
  if (training.batch_scope != BatchScope::kTotal || training.batch_size >= command.ranks) {
    return check_environment(command.environment, config->launch);
  }
  return ArgumentProblem{.index = index_of_flag(table, arguments, "batch_size"),
                         .message = "--batch_size " + std::to_string(training.batch_size) + " is smaller than the " +
                                    std::to_string(command.ranks) + " ranks it is shared by"};
}

}  // namespace lockstep
