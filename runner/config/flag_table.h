// The list of flags of a workload. Each flag is declared once; parsing, --help, args.txt, the start table, the hash and
// the comparison between ranks are derived from that.
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

// How far a flag's value has an effect. Each scope includes the one before it.
enum class FlagScope {
  kThisProcess,  // may differ between ranks: addresses, device, paths
  kAllRanks,     // controls the loop: ranks with different values would hang or evaluate different things
  // Changes the trained parameters: part of config_hash, with its default, too. So a new flag of this scope makes runs
  // refuse the checkpoints of before it.
  kMaths,
};

struct Flag {
  std::string name;  // the guide's spelling, underscores, no dashes in front
  std::vector<std::string> aliases;
  std::string group;    // heading in --help
  std::string expects;  // "an integer from 1 to 65535"; for --help and errors
  std::string help;
  FlagScope scope = FlagScope::kThisProcess;
  bool is_bool = false;
  std::vector<std::string> words;  // the allowed values, for a choice; else empty
  bool is_train_dir = false;       // --train_dir, or a workload's own name for it
  // Returns what the flag needs to have an effect and `config` lacks, for example "--use_amp"; "" when it lacks
  // nothing. A flag without effect is not part of the maths, and the start table says so if it was given. No function:
  // the flag always has an effect.
  std::function<std::string(const RunConfig& config)> needs;
  // True when the figures of an evaluation depend on it. It is then part of the maths under the plateau schedule, which
  // derives the learning rate from evaluations.
  bool changes_evaluations = false;
  // The form of a value in config_hash and in the comparison between ranks: for a data set its name instead of its
  // path. No function: the value's text.
  std::function<std::string(const std::string& value)> identity;
  // Reads the text into the config; false when it is not what `expects` says.
  std::function<bool(std::string_view text, RunConfig& config)> set;
  // The effective value as canonical text; set(get(config)) gives the same config.
  std::function<std::string(const RunConfig& config)> get;
};

// The workload's own flags and those that every workload has, sorted by group as in --help. Null: only the latter.
std::vector<Flag> flag_table(const WorkloadFlags* workload);
// The flags of `lockstep launch`: who runs where, without those that speak of a model of ours.
std::vector<Flag> launch_flag_table();
// The flags of a task: its own, those of every task (--checkpoint, --out, --device, --threads), and the workload's
// flags that it uses. `task` must be one of `workload`.
std::vector<Flag> task_flag_table(const WorkloadFlags& workload, const WorkloadTask& task);
// The flags of all workloads, for use before it is known which one is meant. Several may have the same name.
std::vector<Flag> flags_of_all(const WorkloadList& workloads);

// Checks what the author of a plugin may get wrong: two flags of a run or of a task with a name in common, a name that
// the command line itself uses, a task that names a flag which the workload lacks. Calls the workload's add_flags,
// which may throw (FlagTableBuilder). Error: kInvalid.
Status check_flag_names(const WorkloadFlags& workload);

// Finds a flag by name or alias, spelt with underscores; null when there is none. The result points into `table`.
const Flag* find_flag(const std::vector<Flag>& table, std::string_view name);

// The flag's name nearest to `name` by edit distance; empty when none is near.
std::string nearest_flag(const std::vector<Flag>& table, std::string_view name);

// `where`: the end of an error's message, " (train.yaml:3)"; empty for the command line.
Status set_flag(const Flag& flag, std::string_view text, const std::string& where, RunConfig& config);

// true|false|yes|no|on|off|1|0 in any case.
bool parse_bool_word(std::string_view text, bool& value);

// "true"|"false"
std::string bool_text(bool value);

}  // namespace lockstep
