#include "runner/config/flag_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "runner/base/nearest.h"

namespace lockstep {
namespace {

constexpr FlagScope kThisProcess = FlagScope::kThisProcess;
constexpr FlagScope kAllRanks = FlagScope::kAllRanks;
constexpr FlagScope kMaths = FlagScope::kMaths;

// Limits that keep products (batch × length × width) inside 64 bits and typing errors visible.
constexpr int64_t kCountMax = 1'000'000'000;
constexpr int64_t kWidthMax = 65'536;

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The shortest text that reads back as the same number.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string();
}

std::string range_text(int64_t min, int64_t max) {
  if (max == std::numeric_limits<int64_t>::max()) return "of at least " + std::to_string(min);
  return "from " + std::to_string(min) + " to " + std::to_string(max);
}

// Builds a Flag around one field. `field`: RunConfig& → reference to the value.
class TableBuilder {
 public:
  void group(std::string name) { group_ = std::move(name); }

  // `Field` is called with RunConfig& and const RunConfig& alike.
  template <typename Field>
  Flag& integer(const char* name, FlagScope scope, int64_t min, int64_t max, Field field, const char* help) {
    Flag& flag = add(name, scope, "an integer " + range_text(min, max), help);
    using Value = std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>;
    flag.set = [=](std::string_view text, RunConfig& config) {
      int64_t value = 0;
      if (!parse_whole(text, value) || value < min || value > max) return false;
      field(config) = static_cast<Value>(value);
      return true;
    };
    flag.get = [=](const RunConfig& config) { return std::to_string(field(config)); };
    return flag;
  }

  // Unset stands as "auto".
  template <typename Field>
  Flag& optional_integer(const char* name, FlagScope scope, int64_t min, int64_t max, Field field, const char* help) {
    Flag& flag = add(name, scope, "an integer " + range_text(min, max) + ", or auto", help);
    using Value = typename std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>::value_type;
    flag.set = [=](std::string_view text, RunConfig& config) {
      int64_t value = 0;
      if (text == "auto") {
        field(config).reset();
        return true;
      }
      if (!parse_whole(text, value) || value < min || value > max) return false;
      field(config) = static_cast<Value>(value);
      return true;
    };
    flag.get = [=](const RunConfig& config) {
      return field(config) ? std::to_string(*field(config)) : std::string("auto");
    };
    return flag;
  }

  // Real numbers in [min, max], or [min, max) with `open`.
  template <typename Field>
  Flag& real(const char* name, FlagScope scope, double min, double max, bool open, Field field, const char* help) {
    const std::string upper = open ? " to below " : " to ";
    Flag& flag = add(name, scope, "a number from " + number_text(min) + upper + number_text(max), help);
    flag.set = [=](std::string_view text, RunConfig& config) {
      double value = 0.0;
      if (!parse_whole(text, value) || !std::isfinite(value)) return false;
      if (value < min || value > max || (open && value == max)) return false;
      field(config) = value + 0.0;  // -0 becomes 0: one canonical text
      return true;
    };
    flag.get = [=](const RunConfig& config) { return number_text(field(config)); };
    return flag;
  }

  template <typename Field>
  Flag& boolean(const char* name, FlagScope scope, Field field, const char* help) {
    Flag& flag = add(name, scope, "true or false", help);
    flag.is_bool = true;
    flag.set = [=](std::string_view text, RunConfig& config) {
      bool value = false;
      if (!parse_bool_word(text, value)) return false;
      field(config) = value;
      return true;
    };
    flag.get = [=](const RunConfig& config) { return bool_text(field(config)); };
    return flag;
  }

  // `words` in the order of the enumeration's values from 0.
  template <typename Field>
  Flag& choice(const char* name, FlagScope scope, std::vector<std::string> words, Field field, const char* help) {
    std::string expects = words.front();
    for (size_t i = 1; i < words.size(); ++i) expects += (i + 1 == words.size() ? " or " : ", ") + words[i];
    Flag& flag = add(name, scope, std::move(expects), help);
    flag.words = words;
    using Value = std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>;
    flag.set = [=](std::string_view text, RunConfig& config) {
      const auto it = std::find(words.begin(), words.end(), text);
      if (it == words.end()) return false;
      field(config) = static_cast<Value>(it - words.begin());
      return true;
    };
    flag.get = [=](const RunConfig& config) { return words[static_cast<size_t>(field(config))]; };
    return flag;
  }

  template <typename Field>
  Flag& text(const char* name, FlagScope scope, const char* expects, Field field, const char* help) {
    Flag& flag = add(name, scope, expects, help);
    flag.set = [=](std::string_view text, RunConfig& config) {
      // args.txt and the log are made of lines.
      if (text.find_first_of(std::string_view("\n\r\0", 3)) != std::string_view::npos) return false;
      field(config) = std::string(text);
      return true;
    };
    flag.get = [=](const RunConfig& config) { return std::string(field(config)); };
    return flag;
  }

  Flag& custom(const char* name, FlagScope scope, const char* expects, const char* help) {
    return add(name, scope, expects, help);
  }

  std::vector<Flag> take() { return std::move(flags_); }

 private:
  Flag& add(const char* name, FlagScope scope, std::string expects, const char* help) {
    Flag flag;
    flag.name = name;
    flag.group = group_;
    flag.expects = std::move(expects);
    flag.help = help;
    flag.scope = scope;
    return flags_.emplace_back(std::move(flag));
  }

  std::string group_;
  std::vector<Flag> flags_;
};

// Field accessors: `IN(training.lr)` is a function from a config to that member, const or not.
#define IN(member) \
  [](auto& config) -> auto& { return config.member; }

void add_data_flags(TableBuilder& table) {
  table.group("Data");
  table
      .text("dataset", kMaths, "a name or a path", IN(sasrec.dataset),
            "data set: a file, a folder, or a name looked for under --data_dir; generated: one made in memory; auto: "
            "the only one under --data_dir, or generated (required)")
      .names_path = NamesPath::kFile;
  table.text("data_dir", kThisProcess, "a folder", IN(sasrec.data_dir), "where data sets are looked for by name")
      .names_path = NamesPath::kFolder;
  table
      .text("train_dir", kThisProcess, "a name or a path", IN(sasrec.train_dir),
            "output folder <dataset>_<train_dir>; with a '/' it is the folder itself")
      .names_path = NamesPath::kFolder;
  table.optional_integer("min_count", kMaths, 0, kCountMax, IN(sasrec.min_count),
                         "drop users and items with fewer lines, counted once; auto: 5 with ratings or times, else 0");
  table.real("max_bad_lines", kAllRanks, 0.0, 1.0, false, IN(sasrec.max_bad_lines),
             "share of malformed lines above which the data set is refused");
  table.integer("num_workers", kThisProcess, 0, 4096, IN(training.num_workers),
                "accepted; batches are made in the training thread");
}

// --norm_first and --original are two words for one choice; the last one given decides, and both true is refused.
void add_form_flags(TableBuilder& table) {
  const auto add = [&table](const char* name, SasrecForm form, const char* help) {
    Flag& flag = table.custom(name, kMaths, "true or false", help);
    flag.is_bool = true;
    flag.set = [form](std::string_view text, RunConfig& config) {
      bool value = false;
      if (!parse_bool_word(text, value)) return false;
      if (value) config.sasrec.form = form;
      if (!value && config.sasrec.form == form) config.sasrec.form = SasrecForm::kPostNorm;
      return true;
    };
    flag.get = [form](const RunConfig& config) { return bool_text(config.sasrec.form == form); };
  };
  add("norm_first", SasrecForm::kPreNorm, "layer norm before attention and feed-forward instead of after");
  add("original", SasrecForm::kOriginal, "the form of the original SASRec code");
}

void add_model_flags(TableBuilder& table) {
  table.group("Model");
  table.text("variant", kMaths, "sasrec", IN(sasrec.variant), "model variant");
  add_form_flags(table);
  table.integer("maxlen", kMaths, 1, kWidthMax, IN(sasrec.maxlen), "longest sequence, in items");
  table.integer("hidden_units", kMaths, 1, kWidthMax, IN(sasrec.hidden_units), "width; divisible by --num_heads");
  table.integer("num_blocks", kMaths, 0, 1024, IN(sasrec.num_blocks), "attention blocks");
  table.integer("num_heads", kMaths, 1, kWidthMax, IN(sasrec.num_heads), "attention heads");
  table.real("dropout_rate", kMaths, 0.0, 1.0, true, IN(sasrec.dropout_rate), "dropout probability");
  table.real("l2_emb", kMaths, 0.0, 1e6, false, IN(sasrec.l2_emb), "weight of the squared item embeddings in the loss");

  table.group("TiSASRec and mHC (accepted; used by --variant tisasrec only)");
  const auto tisasrec = [](Flag& flag) { flag.only_tisasrec = true; };
  tisasrec(table.integer("time_span", kThisProcess, 1, kCountMax, IN(sasrec.tisasrec.time_span),
                         "longest time gap told apart, in --time_unit"));
  tisasrec(table.choice("time_unit", kThisProcess, {"second", "minute", "hour", "day"}, IN(sasrec.tisasrec.time_unit),
                        "unit of --time_span"));
  tisasrec(table.boolean("no_time", kThisProcess, IN(sasrec.tisasrec.no_time), "no time intervals"));
  tisasrec(table.boolean("no_mhc", kThisProcess, IN(sasrec.tisasrec.no_mhc), "plain residual connections"));
  tisasrec(table.integer("mhc_expansion_rate", kThisProcess, 1, 1024, IN(sasrec.tisasrec.mhc_expansion_rate),
                         "residual streams of mHC"));
  tisasrec(table.real("mhc_init_gate", kThisProcess, 0.0, 1e6, false, IN(sasrec.tisasrec.mhc_init_gate),
                      "initial gate of mHC"));
  tisasrec(table.integer("mhc_sinkhorn_iter", kThisProcess, 0, 10000, IN(sasrec.tisasrec.mhc_sinkhorn_iter),
                         "Sinkhorn iterations of mHC"));
  tisasrec(table.boolean("mhc_no_amp", kThisProcess, IN(sasrec.tisasrec.mhc_no_amp), "mHC in full precision"));
}

void add_training_flags(TableBuilder& table) {
  table.group("Training");
  Flag& seed = table.custom("seed", kMaths, "an integer of at least 0", "seed of every random draw");
  seed.set = [](std::string_view text, RunConfig& config) { return parse_whole(text, config.training.seed); };
  seed.get = [](const RunConfig& config) { return std::to_string(config.training.seed); };
  table.integer("num_epochs", kAllRanks, 0, kCountMax, IN(training.num_epochs), "passes over the data");
  table.integer("max_steps", kAllRanks, 0, std::numeric_limits<int64_t>::max(), IN(training.max_steps),
                "stop after this many optimizer steps; 0: --num_epochs decides");
  table.integer("batch_size", kMaths, 1, kCountMax, IN(training.batch_size), "samples per step, see --batch_scope");
  table.choice("batch_scope", kMaths, {"total", "per_device"}, IN(training.batch_scope),
               "--batch_size is the total over all ranks and accumulation steps, or of one device");
  table.integer("grad_accum_steps", kMaths, 1, 1'000'000, IN(training.grad_accum_steps),
                "micro-batches per optimizer step");
  table.real("lr", kMaths, 0.0, 1e6, false, IN(training.lr), "learning rate");
  table.choice("lr_scaling", kMaths, {"none", "linear", "sqrt"}, IN(training.lr_scaling),
               "learning rate times the number of ranks, or its root");
  table.choice("lr_schedule", kMaths, {"constant", "exponential", "cosine", "plateau", "noam"},
               IN(training.lr_schedule), "course of the learning rate after warm-up");
  table.integer("warmup_steps", kMaths, 0, kCountMax, IN(training.warmup_steps), "steps of linear warm-up");
  table.integer("lr_decay_step", kMaths, 1, kCountMax, IN(training.lr_decay_steps),
                "steps over which exponential decay multiplies by --lr_decay_rate");
  table.real("lr_decay_rate", kMaths, 0.0, 1.0, false, IN(training.lr_decay_rate),
             "factor of exponential decay; given without --lr_schedule it means exponential");
  table.real("min_lr", kMaths, 0.0, 1e6, false, IN(training.min_lr), "the schedule goes no lower");
  table.real("plateau_factor", kMaths, 0.0, 1.0, true, IN(training.plateau_factor), "factor of the plateau schedule");
  table.integer("plateau_patience", kMaths, 0, kCountMax, IN(training.plateau_patience),
                "evaluations without improvement before the factor applies");
  table.real("adam_beta1", kMaths, 0.0, 1.0, true, IN(training.adam_beta1), "Adam: decay of the first moment");
  table.real("adam_beta2", kMaths, 0.0, 1.0, true, IN(training.adam_beta2), "Adam: decay of the second moment");
  table.real("adam_eps", kMaths, 0.0, 1.0, false, IN(training.adam_eps), "Adam: added to the denominator");
  table.real("weight_decay", kMaths, 0.0, 1e6, false, IN(training.weight_decay), "weight decay");
  table.real("clip_grad_norm", kMaths, 0.0, 1e9, false, IN(training.clip_grad_norm), "largest gradient norm; 0: off");
  Flag& precision = table.choice("precision", kMaths, {"fp32", "tf32", "bf16", "fp16"}, IN(training.precision),
                                 "arithmetic; given explicitly it wins over --use_amp");
  precision.set = [set = precision.set](std::string_view text, RunConfig& config) {
    if (!set(text, config)) return false;
    config.training.precision_given = true;
    return true;
  };
  table.boolean("use_amp", kMaths, IN(training.use_amp),
                "mixed precision on a GPU: bf16 from compute capability 8.0, fp16 below; nothing on CPU");
  table.real("ema_decay", kMaths, 0.0, 1.0, true, IN(training.ema_decay), "moving average of the weights; 0: off");
  table.integer("early_stop_patience", kAllRanks, 0, kCountMax, IN(training.early_stop_patience),
                "stop after this many evaluations without improvement; 0: off");
  table.integer("max_skipped_steps", kAllRanks, 0, kCountMax, IN(training.max_skipped_steps),
                "steps in a row that may be skipped for a loss or gradient that is not finite");
  table.boolean("deterministic", kAllRanks, IN(training.deterministic), "the same bits on every repetition on CUDA");
  table.integer("drift_check_every", kAllRanks, 0, kCountMax, IN(training.drift_check_every),
                "steps between comparisons of the ranks' parameters; 0: off");
}

void add_evaluation_flags(TableBuilder& table) {
  table.group("Evaluation, logs, checkpoints");
  table.integer("eval_every", kAllRanks, 0, kCountMax, IN(training.eval_every),
                "epochs between evaluations; 0: only at the end");
  table.integer("eval_users", kAllRanks, 0, kCountMax, IN(sasrec.eval_users), "evaluate at most so many; 0: all");
  table.integer("eval_negatives", kAllRanks, 1, 1'000'000, IN(sasrec.eval_negatives), "random items to rank against");
  table.boolean("full_ranking", kAllRanks, IN(sasrec.full_ranking), "rank against all items as well");
  table.boolean("inference_only", kAllRanks, IN(training.inference_only), "evaluate and stop");
  table
      .text("state_dict_path", kAllRanks, "a file", IN(training.state_dict_path),
            "start from these weights: .safetensors, .pt or .pth")
      .names_path = NamesPath::kFile;
  table
      .text("resume", kAllRanks, "a checkpoint folder", IN(training.resume),
            "continue from this checkpoint, whichever run wrote it")
      .names_path = NamesPath::kFolder;
  table.integer("log_every", kAllRanks, 1, kCountMax, IN(training.log_every),
                "steps between lines in metrics.jsonl and TensorBoard");
  table.boolean("tensorboard", kThisProcess, IN(training.tensorboard), "write TensorBoard event files");
  table.integer("checkpoint_every", kAllRanks, 0, kCountMax, IN(training.checkpoint_every),
                "steps between checkpoints; 0: only when the run ends or is stopped");
  table.integer("keep_last", kThisProcess, 1, kCountMax, IN(training.keep_last), "newest checkpoints kept");
  table.integer("keep_every", kThisProcess, 0, kCountMax, IN(training.keep_every),
                "checkpoints at multiples of this step are kept for good; 0: none");
  table.boolean("keep_best", kThisProcess, IN(training.keep_best), "keep the best checkpoint");
}

void add_multi_gpu_flag(TableBuilder& table) {
  Flag& flag = table.custom("multi_gpu", kThisProcess, "true, false or auto", "false: one rank; auto: see --nproc");
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

void add_coordinator_flag(TableBuilder& table) {
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
void add_nnodes_flag(TableBuilder& table) {
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

void add_launch_flags(TableBuilder& table) {
  table.group("Ranks and devices");
  table
      .optional_integer("nproc", kThisProcess, 1, 4096, IN(launch.nproc),
                        "ranks on this node; auto: one per GPU that is visible, else 1")
      .aliases = {"nproc_per_node"};
  add_multi_gpu_flag(table);
  add_nnodes_flag(table);
  table.optional_integer("node_rank", kThisProcess, 0, 999'999, IN(launch.node_rank), "which node this is");
  add_coordinator_flag(table);
  table.optional_integer("local_nodes", kThisProcess, 1, 64, IN(launch.local_nodes),
                         "start so many nodes on this machine, each with an agent of its own, as a cluster would");
  table.boolean("network_namespaces", kThisProcess, IN(launch.network_namespaces),
                "with --local_nodes, as root: each node in a network of its own, so that it can be cut off");
  table.text("master_addr", kThisProcess, "a host", IN(launch.master_addr), "host of rank 0; wins over MASTER_ADDR");
  table.optional_integer("master_port", kThisProcess, 1, 65535, IN(launch.master_port),
                         "port of rank 0's store; wins over MASTER_PORT (29500)");
  table.optional_integer("local_rank", kThisProcess, 0, 4095, IN(launch.local_rank),
                         "from torch.distributed.launch; must agree with LOCAL_RANK");
  table.choice("backend", kAllRanks, {"auto", "nccl", "gloo"}, IN(launch.backend), "collectives");
  table.choice("device", kThisProcess, {"auto", "cuda", "cpu"}, IN(launch.device), "where to train");
  table.integer("threads", kThisProcess, 0, 4096, IN(launch.threads),
                "threads per rank; 0: whole cores that affinity and cgroup leave / ranks here");
  table.integer("status_port", kThisProcess, 0, 65535, IN(launch.status_port),
                "HTTP port of /metrics, /status, /healthz; 0: none");
  table.integer("rendezvous_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.rendezvous_timeout_seconds),
                "how long to wait for all ranks");
  table.integer("collective_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.collective_timeout_seconds),
                "how long a collective may take");
  table.integer("rejoin_timeout_seconds", kThisProcess, 0, 86'400, IN(launch.rejoin_timeout_seconds),
                "how long a lost node is waited for before going on with fewer");
  table.integer("stall_timeout_seconds", kThisProcess, 1, 86'400, IN(launch.stall_timeout_seconds),
                "a rank that shows no progress for so long (while others wait to form a group: less) is killed and "
                "started again");
  table.integer("heartbeat_timeout_seconds", kThisProcess, 2, 3'600, IN(launch.heartbeat_timeout_seconds),
                "a node or worker that is silent for so long is lost");
  table.integer("max_restarts", kThisProcess, 0, 1'000'000, IN(launch.max_restarts),
                "times that dead workers are started again");
}

#undef IN

}  // namespace

std::vector<Flag> flag_table() {
  TableBuilder table;
  add_data_flags(table);
  add_model_flags(table);
  add_training_flags(table);
  add_evaluation_flags(table);
  add_launch_flags(table);
  return table.take();
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
  constexpr size_t kNameMax = 64;  // no flag is longer; keeps the distance cheap on hostile input
  if (name.size() > kNameMax) return {};
  std::string nearest;
  // A third of the letters may be wrong; beyond that a guess misleads.
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

std::string bool_text(bool value) { return value ? "true" : "false"; }

}  // namespace lockstep
