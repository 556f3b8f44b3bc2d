#include "runner/config/flag_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>

#include "runner/base/nearest.h"
#include "runner/config/flag_table_builder.h"
#include "runner/config/workload_flags.h"

namespace lockstep {
namespace {

// Field accessors: `IN(training.lr)` is a function that returns that member of a config, const or not.
#define IN(member) \
  [](auto& config) -> auto& { return config.member; }

void add_training_flags(FlagTableBuilder& table) {
  table.group("Training");
  Flag& seed = table.custom("seed", kMaths, "an integer of at least 0", "seed of every random draw");
  seed.set = [](std::string_view text, RunConfig& config) { return parse_whole(text, config.training.seed); };
  seed.get = [](const RunConfig& config) { return std::to_string(config.training.seed); };
  table.integer(
      "num_workers", kThisProcess, 0, 4096, IN(training.num_workers),
      "threads of each rank that prepare the next batches; 0: the training thread prepares each batch itself");
  table.integer("num_epochs", kAllRanks, 0, kCountMax, IN(training.num_epochs), "passes over the data").aliases = {
      "epochs"};
  table.integer("max_steps", kAllRanks, 0, std::numeric_limits<int64_t>::max(), IN(training.max_steps),
                "stop after this many optimizer steps; 0: --num_epochs decides");
  table.integer("batch_size", kMaths, 1, kCountMax, IN(training.batch_size), "samples per step, see --batch_scope");
  table.choice("batch_scope", kMaths, {"total", "per_device"}, IN(training.batch_scope),
               "--batch_size is the total over all ranks and accumulation steps, or of one device");
  table
      .integer("grad_accum_steps", kMaths, 1, 1'000'000, IN(training.grad_accum_steps),
               "micro-batches per optimizer step")
      .aliases = {"gradient_accumulation_steps"};
  table.real("lr", kMaths, 0.0, 1e6, false, IN(training.lr), "learning rate").aliases = {"learning_rate"};
  table.choice("lr_scaling", kMaths, {"none", "linear", "sqrt", "batch"}, IN(training.lr_scaling),
               "learning rate times the number of ranks, or its root, or the global batch over 256");
  table.choice("lr_schedule", kMaths, {"constant", "exponential", "cosine", "plateau", "noam"},
               IN(training.lr_schedule), "course of the learning rate after warm-up");
  table.integer("warmup_steps", kMaths, 0, kCountMax, IN(training.warmup_steps), "steps of linear warm-up");
  table.integer("warmup_epochs", kMaths, 0, kCountMax, IN(training.warmup_epochs),
                "epochs of linear warm-up, in place of --warmup_steps");
  table.integer("lr_decay_step", kMaths, 1, kCountMax, IN(training.lr_decay_steps),
                "steps over which exponential decay multiplies by --lr_decay_rate");
  table.real("lr_decay_rate", kMaths, 0.0, 1.0, false, IN(training.lr_decay_rate),
             "factor of exponential decay; given without --lr_schedule it means exponential");
  table.real("min_lr", kMaths, 0.0, 1e6, false, IN(training.min_lr), "lowest learning rate of the schedule");
  table.real("plateau_factor", kMaths, 0.0, 1.0, true, IN(training.plateau_factor), "factor of the plateau schedule");
  table.integer("plateau_patience", kMaths, 0, kCountMax, IN(training.plateau_patience),
                "evaluations without improvement before the factor applies");
  table.choice("optimizer", kMaths, {"adam", "adamw"}, IN(training.optimizer),
               "Adam with --weight_decay in the gradient (L2), or apart from it (AdamW)");
  table.real("adam_beta1", kMaths, 0.0, 1.0, true, IN(training.adam_beta1), "Adam: decay of the first moment");
  table.real("adam_beta2", kMaths, 0.0, 1.0, true, IN(training.adam_beta2), "Adam: decay of the second moment");
  table.real("adam_eps", kMaths, 0.0, 1.0, false, IN(training.adam_eps), "Adam: added to the denominator");
  table.real("weight_decay", kMaths, 0.0, 1e6, false, IN(training.weight_decay), "weight decay");
  table.real("clip_grad_norm", kMaths, 0.0, 1e9, false, IN(training.clip_grad_norm), "largest gradient norm; 0: off")
      .aliases = {"max_grad_norm"};
  Flag& precision = table.choice("precision", kMaths, {"fp32", "tf32", "bf16", "fp16"}, IN(training.precision),
                                 "arithmetic; given explicitly it wins over --use_amp");
  precision.set = [set = precision.set](std::string_view text, RunConfig& config) {
    if (!set(text, config)) return false;
    config.training.precision_given = true;
    return true;
  };
  table.boolean("use_amp", kMaths, IN(training.use_amp),
                "mixed precision on a GPU: bf16 from compute capability 8.0, fp16 below; nothing on CPU");
  Flag& ema = table.custom("ema_decay", kMaths, "numbers from 0 to below 1 with commas between them, as 0.9999,0.9996",
                           "moving averages of the weights, the first of which is evaluated; 0: none");
  ema.set = [](std::string_view text, RunConfig& config) {
    std::vector<double> decays;
    for (bool is_last = false; !is_last;) {
      const size_t end = std::min(text.find(','), text.size());
      double decay = 0.0;
      if (!parse_whole(text.substr(0, end), decay) || !(decay >= 0.0 && decay < 1.0)) return false;
      if (std::find(decays.begin(), decays.end(), decay) != decays.end()) return false;
      decays.push_back(decay);
      is_last = end == text.size();
      text.remove_prefix(is_last ? end : end + 1);
    }
    const bool is_off = decays.size() == 1 && decays.front() == 0.0;
    if (!is_off && std::find(decays.begin(), decays.end(), 0.0) != decays.end()) return false;
    config.training.ema_decays = is_off ? std::vector<double>() : decays;
    return true;
  };
  ema.get = [](const RunConfig& config) {
    std::string text;
    for (const double decay : config.training.ema_decays) text += (text.empty() ? "" : ",") + number_text(decay);
    return text.empty() ? "0" : text;
  };
  table
      .integer("early_stop_patience", kAllRanks, 0, kCountMax, IN(training.early_stop_patience),
               "stop after this many evaluations without improvement; 0: off")
      .aliases = {"early_stopping_patience"};
  Flag& min_delta = table.real("early_stop_min_delta", kAllRanks, 0.0, 1e9, false, IN(training.early_stop_min_delta),
                               "least improvement that counts for --early_stop_patience");
  min_delta.aliases = {"early_stopping_min_delta"};
  min_delta.needs = [](const RunConfig& config) {
    return config.training.early_stop_patience > 0 ? "" : "--early_stop_patience";
  };
  table.integer("max_skipped_steps", kAllRanks, 0, kCountMax, IN(training.max_skipped_steps),
                "steps in a row that may be skipped for a loss or gradient that is not finite");
  table.boolean("deterministic", kAllRanks, IN(training.deterministic), "the same bits on every repetition on CUDA");
  table.integer("drift_check_every", kAllRanks, 0, kCountMax, IN(training.drift_check_every),
                "steps between comparisons of the ranks' parameters; 0: off");
}

void add_evaluation_flags(FlagTableBuilder& table) {
  table.group("Evaluation, logs, checkpoints");
  Flag& train_dir = table.text("train_dir", kThisProcess, "a name or a path", IN(training.train_dir),
                               "output folder <data set>_<train_dir>; with a '/' it is the folder itself");
  train_dir.is_train_dir = true;
  Flag& eval_every = table.integer("eval_every", kAllRanks, 0, kCountMax, IN(training.eval_every),
                                   "epochs between evaluations; 0: only at the end");
  eval_every.aliases = {"eval_step"};
  eval_every.changes_evaluations = true;
  table.boolean("inference_only", kAllRanks, IN(training.inference_only), "evaluate and stop");
  table.text("state_dict_path", kAllRanks, "a file", IN(training.state_dict_path),
             "start from these weights: .safetensors, .pt or .pth");
  table.text(
      "resume", kAllRanks, "a checkpoint folder or a file", IN(training.resume),
      "continue from this checkpoint, whichever run wrote it, or from a .pt or .pth file with an optimizer's state");
  table
      .integer("log_every", kAllRanks, 1, kCountMax, IN(training.log_every),
               "steps between lines in metrics.jsonl and TensorBoard")
      .aliases = {"log_interval"};
  table.boolean("verbose", kThisProcess, IN(training.verbose),
                "the table at the start shows every flag, not only what was given and what follows from it");
  table.boolean("tensorboard", kThisProcess, IN(training.tensorboard), "write TensorBoard event files");
  table.boolean(
      "use_wandb", kThisProcess, IN(training.wandb.is_used),
      "write the figures for Weights & Biases too, in wandb/ of the run's folder; scripts/wandb_sync.py sends "
      "them");
  table.text("wandb_project", kThisProcess, "a name", IN(training.wandb.project), "the project there");
  table.text("wandb_name", kThisProcess, "a name", IN(training.wandb.name),
             "the run's name there; empty: that of its folder");
  table.text("wandb_entity", kThisProcess, "a name", IN(training.wandb.entity),
             "the user or team there; empty: that of the login");
  table.integer("checkpoint_every", kAllRanks, 0, kCountMax, IN(training.checkpoint_every),
                "steps between checkpoints; 0: only when the run ends or is stopped");
  table.integer("keep_last", kThisProcess, 1, kCountMax, IN(training.keep_last), "newest checkpoints kept");
  table.integer("keep_every", kThisProcess, 0, kCountMax, IN(training.keep_every),
                "checkpoints at multiples of this step are kept for good; 0: none");
  table.boolean("keep_best", kThisProcess, IN(training.keep_best), "keep the best checkpoint");
}

void add_preset_flag(FlagTableBuilder& table, const WorkloadFlags& workload) {
  if (workload.presets.empty() || workload.preset_flag != "preset") return;
  std::vector<std::string> names;
  std::string expects;
  for (const Preset& preset : workload.presets) {
    const bool is_last = names.size() + 1 == workload.presets.size();
    expects += (names.empty() ? "" : is_last ? " or " : ", ") + preset.name;
    names.push_back(preset.name);
  }
  table.group("Preset");
  Flag& flag = table.custom("preset", kMaths, expects.c_str(),
                            "values that belong together, listed below; a flag that is given wins over them");
  flag.words = names;
  flag.set = [names = std::move(names)](std::string_view text, RunConfig& config) {
    if (std::find(names.begin(), names.end(), text) == names.end()) return false;
    config.preset = std::string(text);
    return true;
  };
  flag.get = [first = workload.presets.front().name](const RunConfig& config) {
    return config.preset.empty() ? first : config.preset;
  };
}

void add_multi_gpu_flag(FlagTableBuilder& table) {
  Flag& flag = table.custom("multi_gpu", kThisProcess, "true, false or auto", "false: one rank; auto: see --nproc");
  flag.aliases = {"use_multi_gpu"};
  flag.is_bool = true;
  flag.set = [](std::string_view text, RunConfig& config) {
    bool value = false;
    if (text == "auto") {
      config.launch.multi_gpu.reset();
      return true;
    }
    if (!parse_bool_word(text, value)) return false;
    config.launch.multi_gpu = value;
    return true;
  };
  flag.get = [](const RunConfig& config) {
    return config.launch.multi_gpu ? bool_text(*config.launch.multi_gpu) : std::string("auto");
  };
}

void add_coordinator_flag(FlagTableBuilder& table) {
  Flag& flag = table.custom("coordinator", kThisProcess, "HOST:PORT", "where node 0's agent listens");
  flag.set = [](std::string_view text, RunConfig& config) {
    const size_t colon = text.rfind(':');
    int port = 0;
    if (colon == std::string_view::npos || colon == 0 || !parse_whole(text.substr(colon + 1), port)) return false;
    if (port < 1 || port > 65535 || text.find_first_of(" \t\r\n") != std::string_view::npos) return false;
    config.launch.coordinator = std::string(text);
    return true;
  };
  flag.get = [](const RunConfig& config) { return config.launch.coordinator; };
}

// N, or MIN:MAX for a job that may shrink and grow.
void add_nnodes_flag(FlagTableBuilder& table) {
  constexpr int kNodesMax = 1'000'000;
  Flag& flag = table.custom("nnodes", kThisProcess, "an integer from 1 to 1000000, or MIN:MAX, or auto",
                            "nodes; MIN:MAX: go on with as few as MIN when some are lost");
  flag.set = [](std::string_view text, RunConfig& config) {
    LaunchOptions& launch = config.launch;
    const size_t colon = text.find(':');
    int min = 0;
    int max = 0;
    const bool is_auto = text == "auto";
    if (!is_auto && (!parse_whole(text.substr(colon == std::string_view::npos ? 0 : colon + 1), max) || max < 1)) {
      return false;
    }
    if (colon != std::string_view::npos && (!parse_whole(text.substr(0, colon), min) || min < 1)) return false;
    if (max > kNodesMax || min > kNodesMax) return false;
    launch.nnodes = is_auto ? std::nullopt : std::optional<int>(max);
    launch.min_nodes = min == 0 ? std::nullopt : std::optional<int>(min);
    return true;
  };
  flag.get = [](const RunConfig& config) {
    const LaunchOptions& launch = config.launch;
    if (!launch.nnodes) return std::string("auto");
    return (launch.min_nodes ? std::to_string(*launch.min_nodes) + ":" : "") + std::to_string(*launch.nnodes);
  };
}

void add_launch_flags(FlagTableBuilder& table) {
  table.group("Ranks and devices");
  table
      .optional_integer("nproc", kThisProcess, 1, 4096, IN(launch.nproc),
                        "ranks on this node; auto: one per GPU that is visible, else 1")
      .aliases = {"nproc_per_node"};
  add_multi_gpu_flag(table);
  table.boolean("ddp", kThisProcess, IN(launch.ddp), "expect several ranks: an error when nothing sets their number");
  add_nnodes_flag(table);
  table.optional_integer("node_rank", kThisProcess, 0, 999'999, IN(launch.node_rank), "which node this is");
  add_coordinator_flag(table);
  table.optional_integer("local_nodes", kThisProcess, 1, 64, IN(launch.local_nodes),
                         "start this many nodes on this machine, each with its own agent, as on a cluster");
  table.text("master_addr", kThisProcess, "a host", IN(launch.master_addr), "host of rank 0; wins over MASTER_ADDR");
  table.optional_integer("master_port", kThisProcess, 1, 65535, IN(launch.master_port),
                         "port of rank 0's store; wins over MASTER_PORT (29500)");
  Flag& local_rank = table.optional_integer("local_rank", kThisProcess, 0, 4095, IN(launch.local_rank),
                                            "from torch.distributed.launch; must agree with LOCAL_RANK");
  local_rank.expects += " or -1";  // the default of older Python programs
  local_rank.set = [set = local_rank.set](std::string_view text, RunConfig& config) {
    return set(text == "-1" ? std::string_view("auto") : text, config);
  };
  table.choice("backend", kAllRanks, {"auto", "nccl", "gloo"}, IN(launch.backend), "collectives");
  table.choice("device", kThisProcess, {"auto", "cuda", "cpu"}, IN(launch.device), "where to train");
  table.integer("threads", kThisProcess, 0, 4096, IN(launch.threads),
                "threads per rank; 0: available cores (affinity, cgroup) / ranks on this node");
  table.integer("status_port", kThisProcess, 0, 65535, IN(launch.status_port),
                "HTTP port of /metrics, /status, /healthz; 0: none");
  table.integer("rendezvous_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.rendezvous_timeout_seconds),
                "how long to wait for all ranks");
  table.integer("collective_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.collective_timeout_seconds),
                "how long a collective may take");
  table.integer("rejoin_timeout_seconds", kThisProcess, 0, 86'400, IN(launch.rejoin_timeout_seconds),
                "how long a lost node is waited for before going on with fewer");
  table.integer("stall_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.stall_timeout_seconds),
                "a rank that shows no progress for this long (while others wait to form a group: less) is killed and "
                "restarted");
  table.integer("heartbeat_timeout_seconds", kThisProcess, 2, 3'600, IN(launch.heartbeat_timeout_seconds),
                "a node or worker that is silent for this long counts as lost");
  table.integer("max_restarts", kThisProcess, 0, 1'000'000, IN(launch.max_restarts),
                "how many times dead workers are restarted");
}

// Flags that only `lockstep launch` has.
void add_program_flags(FlagTableBuilder& table) {
  table
      .optional_integer("stop_timeout", kThisProcess, 0, 86'400, IN(launch.stop_timeout_seconds),
                        "seconds that ranks have to save and end after SIGTERM, before they are killed; auto: "
                        "LOCKSTEP_STOP_TIMEOUT_SECONDS, else TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 60")
      .aliases = {"shutdown_timeout"};
}

void add_task_flags(FlagTableBuilder& table) {
  table.group("Checkpoint and result");
  table.text(
      "checkpoint", kThisProcess, "a folder or a file", IN(task.checkpoint),
      "weights: a run's folder (its newest checkpoint), a step folder in it, or a file .safetensors, .pt or .pth "
      "(required)");
  table.text("out", kThisProcess, "a file", IN(task.out),
             "write the result to this file, which appears when it is complete, instead of to standard output");
  table.choice("device", kThisProcess, {"auto", "cuda", "cpu"}, IN(launch.device), "where to compute");
  table.integer("threads", kThisProcess, 0, 4096, IN(launch.threads),
                "threads; 0: all available cores (affinity, cgroup)");
}

#undef IN

// Options of the command line that are in no table: of runs and tasks, and of `lockstep run -f` (cli/trainjob_run.cc).
constexpr std::array kTakenNames = {"config", "plugin", "help", "h", "workload"};
constexpr std::array kTakenInRuns = {"file", "filename", "mount"};

// Every flag of the table has names of its own.
Status check_names(const std::vector<Flag>& table, bool is_run) {
  std::map<std::string, std::string> flags;  // by name and by alias; "" for an option that is in no table
  for (const char* name : kTakenNames) flags.emplace(name, "");
  for (const char* name : kTakenInRuns) {
    if (is_run) flags.emplace(name, "");
  }
  for (const Flag& flag : table) {
    std::vector<std::string> names = flag.aliases;
    names.push_back(flag.name);
    for (const std::string& name : names) {
      const bool is_word =
          std::all_of(name.begin(), name.end(), [](unsigned char c) { return c == '_' || std::isalnum(c); });
      if (name.empty() || !is_word) {
        return invalid("the flag \"" + name + "\": expected a name of letters, digits and _");
      }
      const auto [it, is_new] = flags.emplace(name, flag.name);
      if (is_new) continue;
      if (it->second.empty())
        return invalid("the flag --" + name + ": lockstep itself takes that name; choose another");
      const std::string other = it->second == name ? flag.name : it->second;
      return invalid("the flag --" + name + " is there twice" +
                     (other == name ? std::string() : ", once as another name of --" + other) +
                     "; choose another name");
    }
  }
  return {};
}

}  // namespace

std::vector<Flag> flag_table(const WorkloadFlags* workload) {
  FlagTableBuilder table;
  if (workload != nullptr) {
    add_preset_flag(table, *workload);
    workload->add_flags(table);
  }
  add_training_flags(table);
  add_evaluation_flags(table);
  add_launch_flags(table);
  return table.take();
}

std::vector<Flag> launch_flag_table() {
  constexpr std::array kOfOurModels = {
      "multi_gpu", "ddp", "local_rank", "backend", "device", "threads", "collective_timeout_seconds"};
  FlagTableBuilder table;
  add_launch_flags(table);
  add_program_flags(table);
  std::vector<Flag> flags = table.take();
  std::erase_if(flags, [&](const Flag& flag) {
    return std::find(kOfOurModels.begin(), kOfOurModels.end(), flag.name) != kOfOurModels.end();
  });
  return flags;
}

std::vector<Flag> task_flag_table(const WorkloadFlags& workload, const WorkloadTask& task) {
  FlagTableBuilder table;
  task.add_flags(table);
  add_task_flags(table);
  std::vector<Flag> all = table.take();
  for (Flag& flag : flag_table(&workload)) {
    const auto& names = task.workload_flags;
    if (std::find(names.begin(), names.end(), flag.name) != names.end()) all.push_back(std::move(flag));
  }
  return all;
}

Status check_flag_names(const WorkloadFlags& workload) {
  const std::vector<Flag> table = flag_table(&workload);
  TRY(check_names(table, /*is_run=*/true));
  for (const WorkloadTask& task : workload.tasks) {
    for (const std::string& name : task.workload_flags) {
      if (find_flag(table, name) == nullptr) {
        return invalid("the task " + task.name + " uses the workload's flag --" + name + ", which it does not have");
      }
    }
    const Status names = check_names(task_flag_table(workload, task), /*is_run=*/false);
    if (!names.ok()) return names.error().with_context("the task " + task.name);
  }
  return {};
}

std::vector<Flag> flags_of_all(const WorkloadList& workloads) {
  std::vector<Flag> all;
  for (const WorkloadFlags& workload : workloads) {
    FlagTableBuilder table;
    add_preset_flag(table, workload);
    workload.add_flags(table);
    for (Flag& flag : table.take()) all.push_back(std::move(flag));
  }
  for (Flag& flag : flag_table(nullptr)) all.push_back(std::move(flag));
  return all;
}

const Flag* find_flag(const std::vector<Flag>& table, std::string_view name) {
  for (const Flag& flag : table) {
    if (flag.name == name || std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end()) {
      return &flag;
    }
  }
  return nullptr;
}

std::string nearest_flag(const std::vector<Flag>& table, std::string_view name) {
  constexpr size_t kNameMax = 64;  // no flag is longer; the limit bounds the time for hostile input
  if (name.size() > kNameMax) return {};
  std::string nearest;
  // At most two letters or a third of them may differ, because a more distant suggestion would mislead.
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  const auto consider = [&](const std::string& candidate) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  };
  for (const Flag& flag : table) {
    consider(flag.name);
    for (const std::string& alias : flag.aliases) consider(alias);
    if (flag.is_bool) consider("no_" + flag.name);
  }
  consider("config");
  consider("plugin");
  return nearest;
}

Status set_flag(const Flag& flag, std::string_view text, const std::string& where, RunConfig& config) {
  if (flag.set(text, config)) return {};
  const std::string found = text.empty() ? "nothing" : "\"" + std::string(text) + "\"";
  return Error{ErrorCode::kInvalid, "--" + flag.name + ": found " + found + ", expected " + flag.expects + where};
}

bool parse_bool_word(std::string_view text, bool& value) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const std::string_view word : {"true", "yes", "on", "1"}) {
    if (lower == word) return value = true, true;
  }
  for (const std::string_view word : {"false", "no", "off", "0"}) {
    if (lower == word) return value = false, true;
  }
  return false;
}

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string();
}

Flag& FlagTableBuilder::train_dir_path(const char* name) {
  Flag& flag = add(name, FlagScope::kThisProcess, "a folder", "output folder, as a path in --train_dir");
  flag.is_train_dir = true;
  flag.set = [](std::string_view text, RunConfig& config) {
    if (text.find_first_of(std::string_view("\n\r\0", 3)) != std::string_view::npos) return false;
    if (text.empty()) return true;
    const bool is_path = text.find('/') != std::string_view::npos;
    config.training.train_dir = (is_path ? "" : "./") + std::string(text);
    return true;
  };
  flag.get = [](const RunConfig& config) {
    const std::string& folder = config.training.train_dir;
    return folder.find('/') == std::string::npos ? std::string() : folder;
  };
  return flag;
}

std::string range_text(int64_t min, int64_t max) {
  if (max == std::numeric_limits<int64_t>::max()) return "of at least " + std::to_string(min);
  return "from " + std::to_string(min) + " to " + std::to_string(max);
}

std::string bool_text(bool value) { return value ? "true" : "false"; }

}  // namespace lockstep
