// RunConfig: every effective value of one training run, parsed from the command line and an optional YAML file.
//
// Role: the parsed command line of `lockstep run` and `lockstep-worker`. Links no torch, so that the agent refuses a
// bad command line before it starts a worker. One list of flags (flag_table.cc, and each
// model's *_flags.cc) declares name, range, help, whether the value changes the maths (config_hash covers those) and
// whether all ranks must have the same value; the defaults are the initialisers below. args.txt, --help, the start
// table, the hash and the comparison between ranks all come from that list. Threads: plain values.
#pragma once

#include <any>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/launch/launch_options.h"

namespace lockstep {

struct WorkloadFlags;
using WorkloadList = std::vector<WorkloadFlags>;  // workload_flags.h

enum class BatchScope { kTotal, kPerDevice };
enum class LrScaling { kNone, kLinear, kSqrt, kBatch };
enum class LrScheduleKind { kConstant, kExponential, kCosine, kPlateau, kNoam };
enum class OptimizerKind { kAdam, kAdamw };
enum class Precision { kFp32, kTf32, kBf16, kFp16 };

// Options of the log for Weights & Biases (telemetry/wandb_log.h).
struct WandbOptions {
  bool is_used = false;
  std::string project = "lockstep";
  std::string name;    // the run's name; empty: the name of its folder
  std::string entity;  // a user or a team; empty: the account's default
};

struct TrainingOptions {
  uint64_t seed = 42;
  int64_t num_epochs = 200;
  int64_t max_steps = 0;  // 0 = num_epochs decides
  int64_t batch_size = 128;
  BatchScope batch_scope = BatchScope::kTotal;
  int64_t grad_accum_steps = 1;
  double lr = 1e-3;
  LrScaling lr_scaling = LrScaling::kNone;
  LrScheduleKind lr_schedule = LrScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  int64_t warmup_epochs = 0;      // if not 0, used instead of warmup_steps
  int64_t lr_decay_steps = 1000;  // --lr_decay_step
  double lr_decay_rate = 0.95;
  double min_lr = 0.0;
  double plateau_factor = 0.5;
  int64_t plateau_patience = 3;  // evaluations
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.98;
  double adam_eps = 1e-8;
  double weight_decay = 0.0;
  double clip_grad_norm = 0.0;  // 0 = off
  Precision precision = Precision::kFp32;
  bool use_amp = false;  // --use_amp; --precision given explicitly wins
  bool precision_given = false;
  std::vector<double> ema_decays;  // --ema_decay: one moving average of the weights for each
  int64_t drift_check_every = 0;   // steps; 0 = off
  int64_t max_skipped_steps = 10;  // in a row
  bool deterministic = false;
  int64_t early_stop_patience = 0;    // evaluations; 0 = off
  double early_stop_min_delta = 0.0;  // an improvement that is not larger does not count

  // These change no maths.
  bool verbose = false;            // the start table shows every flag
  int64_t log_every = 10;          // steps
  int64_t eval_every = 20;         // epochs; 0 = only at the end
  int64_t checkpoint_every = 200;  // steps; 0 = only at the end and when stopped
  int64_t keep_last = 3;
  int64_t keep_every = 0;  // steps; 0 = none kept for good
  bool keep_best = true;
  std::string resume;           // --resume PATH: start from this checkpoint, whichever run wrote it
  std::string state_dict_path;  // --state_dict_path: weights only
  int64_t weights_epochs = 0;   // epochs that those weights were trained for, from their file's name; 0: unknown
  bool inference_only = false;
  int64_t num_workers = 3;  // threads of each rank that fetch batches; 0: the training thread does
  bool tensorboard = true;
  WandbOptions wandb;
  std::string train_dir = "default";  // a path (has '/') is taken as it is, else <data name>_<train_dir>
};

// The options of `lockstep WORKLOAD TASK`. Empty in a run.
struct TaskOptions {
  std::string name;        // the word after the workload
  std::string checkpoint;  // --checkpoint: a run's folder, a step folder, or a file of weights
  std::string out;         // --out: a file; empty: standard output
  std::any options;        // the task's own (WorkloadTask::set_defaults says which type)
};

// Where a flag's value comes from. kUser: the command line or a YAML file.
enum class FlagSource { kDefault, kPreset, kUser };

// One flag with its effective value, for args.txt, the start table, the hash and the comparison between ranks.
struct FlagValue {
  std::string name;      // the guide's spelling, no dashes
  std::string value;     // as text, canonical
  std::string identity;  // the value in config_hash and the comparison: for a data set its name, not its path
  FlagSource source = FlagSource::kDefault;
  bool changes_maths = false;      // part of config_hash
  bool same_on_all_ranks = false;  // compared before a group forms; differing values would hang or diverge the run
};

struct RunConfig {
  std::string workload;  // its name, the word after `lockstep run`
  std::string preset;    // --preset; empty: the workload's first preset, if it has any
  LaunchOptions launch;
  TrainingOptions training;
  std::any options;  // the workload's own (WorkloadFlags::set_defaults says which type)
  TaskOptions task;
  std::vector<FlagValue> flags;  // sorted by name
  std::string train_dir_flag;    // the flag that gave train_dir: "train_dir", or a workload's own name for it; or empty
  std::string data_name;         // name of the data set, for the output folder: "ml-100k"
  std::vector<std::string> notes;  // remarks for the start table: flags without effect, values that follow from others

  // sha256 (hex) over the workload and the flags that change the maths.
  [[nodiscard]] std::string config_hash() const;
  // The flags that change the maths as a JSON object {name: identity}, for state.json.
  [[nodiscard]] Json maths_flags() const;
  // The flags that must be the same on all ranks, in the same form; a superset of maths_flags().
  [[nodiscard]] Json shared_flags() const;
};

// The options of this type, which are those of the task or of the workload. Throws std::bad_any_cast if both have
// another.
template <typename Options>
const Options& options_of(const RunConfig& config) {
  const auto* const of_task = std::any_cast<Options>(&config.task.options);
  return of_task != nullptr ? *of_task : std::any_cast<const Options&>(config.options);
}
template <typename Options>
Options& options_of(RunConfig& config) {
  auto* const of_task = std::any_cast<Options>(&config.task.options);
  return of_task != nullptr ? *of_task : std::any_cast<Options&>(config.options);
}

// `arguments`: those after `lockstep run` or `lockstep-worker`: WORKLOAD [flags]. Reads the file of --config and
// nothing else, not even the environment. Precedence: the command line (the last one when a flag is given twice), the
// file of --config, the preset, the default.
// Errors (kInvalid; kNotFound for the file of --config): unknown workload or flag (names the nearest), wrong type, out
// of range, values that contradict each other, errors of the workload's own check, bad YAML (file:line), a file of
// --state_dict_path whose name has an epoch that is not a number.
// Dashes are accepted for underscores; booleans take --x, --x=true|false, --x true|false, --no_x.
Result<RunConfig> parse_run_config(const std::vector<std::string>& arguments, const WorkloadList& workloads);

// True when --help or -h is among the arguments. The program then prints run_help and exits; parse_run_config accepts
// neither.
bool wants_help(const std::vector<std::string>& arguments);

// The text of `lockstep run WORKLOAD --help`; that of `lockstep run --help` when `workload` is not in the list.
std::string run_help(const std::string& workload, const WorkloadList& workloads);

// True when the flag was given on the command line, in the file, or by a preset.
bool is_given(const RunConfig& config, std::string_view name);

// The guide's args.txt: one line "name,value" per flag, sorted by name.
std::string args_txt(const RunConfig& config);

// A shell command that continues this run: `lockstep run` and these arguments without --resume, because the run's own
// checkpoints are newer than the one that --resume names.
std::string resume_command_of(const std::vector<std::string>& arguments);

// The folder for everything that the run writes, without a final '/'. The caller passes LOCKSTEP_CHECKPOINT_DIR and
// LOCKSTEP_JOB. With both, as in a TrainJob's pods: checkpoint_dir/job. With checkpoint_dir alone, as in the image:
// checkpoint_dir, unless train_dir was given. Else train_dir if it contains a '/', else <data name>_<train_dir>.
std::string output_folder(const RunConfig& config, const std::string& checkpoint_dir, const std::string& job);

}  // namespace lockstep
