// The list of flags of a workload: one declaration per flag, from which parsing, --help, args.txt, start table, hash
// and the ranks' comparison are made.
//
// Role: text ↔ RunConfig, one flag at a time. Threads: pure; the table is a value.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"

namespace lockstep {

struct WorkloadTask;  // workload_flags.h

// Who must know of a value. Each includes the one before it.
enum class FlagScope {
  kThisProcess,  // may differ between ranks: place, device, paths
  kAllRanks,     // steers the loop: ranks that differ would hang, or evaluate different things
  kMaths,        // changes the trained parameters: part of config_hash
};

enum class NamesPath { kNo, kFile, kFolder };

struct Flag {
  std::string name;  // the guide's spelling, underscores, no dashes in front
  std::vector<std::string> aliases;
  std::string group;    // heading in --help
  std::string expects;  // "an integer from 1 to 65535"; stands in --help and in errors
  std::string help;
  FlagScope scope = FlagScope::kThisProcess;
  bool is_bool = false;
  std::vector<std::string> words;         // all values that it may have, where they are few
  NamesPath names_path = NamesPath::kNo;  // for completion in a shell
  // What the flag needs to have an effect, where this configuration lacks it: "--use_amp"; else "". Without
  // its need a flag is no part of the maths, and a remark says so when it was given. Empty: it always has one.
  std::function<std::string(const RunConfig& config)> missing_need;
  // What an evaluation finds depends on it: part of the maths where the plateau schedule acts on evaluations.
  bool changes_evaluations = false;
  // How a value stands in config_hash and in the ranks' comparison, where that is not its text: a data set by its name
  // and not by its path. Empty: its text.
  std::function<std::string(const std::string& value)> identity;
  // Reads the text into the config; false when it is not what `expects` says.
  std::function<bool(std::string_view text, RunConfig& config)> set;
  // The effective value as canonical text; set(get(config)) gives the same config.
  std::function<std::string(const RunConfig& config)> get;
};

// The workload's own flags and those that every workload has, sorted by group as --help shows them. Null: the latter.
std::vector<Flag> flag_table(const WorkloadFlags* workload);
// Those of a task: its own, what every task has (--checkpoint, --out, --device, --threads), and the workload's that it
// takes. `workload` must have `task`.
std::vector<Flag> task_flag_table(const WorkloadFlags& workload, const WorkloadTask& task);
// Where it is not known yet which workload is meant: the flags of all of them. Several may have the same name.
std::vector<Flag> flags_of_all(const WorkloadList& workloads);

// By name or alias, as spelt with underscores; null when there is none. Borrowed from `table`.
const Flag* find_flag(const std::vector<Flag>& table, std::string_view name);

// The flag's name nearest to `name` by edit distance, or empty when nothing is near.
std::string nearest_flag(const std::vector<Flag>& table, std::string_view name);

// `where` ends the message: " (train.yaml:3)", or empty for the command line.
Status set_flag(const Flag& flag, std::string_view text, const std::string& where, RunConfig& config);

// true|false|yes|no|on|off|1|0 in any case.
bool parse_bool_word(std::string_view text, bool& value);

// "true"|"false"
std::string bool_text(bool value);

}  // namespace lockstep
