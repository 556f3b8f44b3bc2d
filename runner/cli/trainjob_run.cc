#include "runner/cli/trainjob_run.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>

#include "operator/manifest/commands.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"
#include "runner/config/flag_table.h"
#include "runner/config/run_config.h"
#include "runner/contract/env_names.h"
#include "runner/models/workload_flags.h"

namespace lockstep {

const char* const kTrainJobRunHelp = R"(Usage: lockstep run -f FILE [--mount POD_PATH=LOCAL_PATH]… [flags]

Runs a TrainJob of a file on this machine: with its arguments, numNodes agents (--local_nodes), numProcPerNode ranks
each, its elastic bounds, environment and time-outs. Flags after the file win over the file's own.

  -f, --filename FILE    a file with one TrainJob, or - for standard input; other kinds in it are ignored
  --mount POD=LOCAL      replaces POD, a volume's mountPath in the pods, by LOCAL in paths that arguments name; may be
                         given several times. Checkpoints go to ./checkpoints unless checkpoint.mountPath is mapped.

Fields that apply only to a cluster (image, resources, podTemplate, restartPolicy, …) are listed and ignored.

Examples:
  lockstep run -f trainjob.yaml --mount /data=./data
  lockstep run -f trainjob.yaml --dataset ./data/ml-100k.inter --local_nodes 1 --num_epochs 2

All flags of a workload: lockstep run WORKLOAD --help
)";

namespace {

std::string without_final_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// For "--file=x" and the name `--file` "x"; nullopt for other words.
std::optional<std::string> inline_value(const std::string& word, const std::string& name) {
  if (!word.starts_with(name + "=")) return std::nullopt;
  return word.substr(name.size() + 1);
}

// Reads a command line word by word and extracts the options of `run -f`.
class OptionReader {
 public:
  explicit OptionReader(const std::vector<std::string>& words) : words_(words) {}

  [[nodiscard]] bool at_end() const { return at_ == words_.size(); }
  const std::string& take() { return words_[at_++]; }

  // The value when the next word is one of `names`; kInvalid when it has none.
  Result<std::optional<std::string>> option(const std::vector<std::string>& names) {
    const std::string& word = words_[at_];
    for (const std::string& name : names) {
      if (std::optional<std::string> value = inline_value(word, name)) {
        ++at_;
        return value;
      }
      if (word != name) continue;
      if (at_ + 1 >= words_.size()) return invalid(name + " needs a value, found the end of the command line");
      at_ += 2;
      return std::optional(words_[at_ - 1]);
    }
    return std::optional<std::string>();
  }

 private:
  const std::vector<std::string>& words_;
  size_t at_ = 0;
};

Status add_mount(const std::string& text, TrainJobRunOptions& options) {
  const size_t equals = text.find('=');
  const bool is_pair = equals != std::string::npos && text.starts_with("/") && equals + 1 < text.size();
  if (!is_pair) {
    return invalid("--mount: found \"" + text + "\", expected POD_PATH=LOCAL_PATH, such as --mount /data=./data");
  }
  const std::string pod_path = without_final_slashes(text.substr(0, equals));
  if (!options.mounts.emplace(pod_path, without_final_slashes(text.substr(equals + 1))).second) {
    return invalid("--mount " + pod_path + " is given twice");
  }
  return {};
}

// "--num-epochs=3" → "num_epochs", its name in the table; "" for a word that is not a flag.
std::string flag_of(const std::vector<Flag>& table, const std::string& word) {
  if (!word.starts_with("--")) return {};
  std::string name = word.substr(2, word.find('=') == std::string::npos ? std::string::npos : word.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  const Flag* flag = find_flag(table, name);
  return flag == nullptr ? name : flag->name;
}

// True when one of the words gives the flag.
bool gives(const std::vector<Flag>& table, const std::vector<std::string>& words, const std::string& name) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return flag_of(table, word) == name; });
}

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || path.starts_with(folder + "/");
}

// Translates a TrainJob, field by field, to a run on this machine.
class Localizer {
 public:
  Localizer(const manifest::JobInFile& file, const TrainJobRunOptions& options, const PathExists& exists)
      : written_(file.written),
        job_(*file.job),
        options_(options),
        exists_(exists),
        table_(flags_of_all(all_workload_flags())) {}

  Result<TrainJobRun> run() {
    TRY(check_program());
    read_mounts();
    TRY(map_checkpoints());
    copy_environment();
    TRY(check_mount_options());
    TRY(copy_arguments());
    derive_node_flags();
    run_.arguments.insert(run_.arguments.end(), options_.flags.begin(), options_.flags.end());
    add_remarks();
    return std::move(run_);
  }

 private:
  const api::TrainJobSpec& spec() const { return job_.spec; }

  Status check_program() const {
    const api::Trainer& trainer = spec().trainer;
    if (trainer.launcher != api::Launcher::kLockstep) {
      return invalid(std::string("spec.trainer.launcher: is ") + api::to_string(trainer.launcher) +
                     ": its program is in the image, and not known here; run the image by hand (docker run " +
                     trainer.image + " …), or use launcher Lockstep, which starts `lockstep run` itself");
    }
    if (!trainer.command.empty()) {
      return invalid(
          "spec.trainer.command: is given: a program of the image is not known here; remove it where the "
          "image's own entrypoint, lockstep, will do, or run the image by hand (docker run " +
          trainer.image + " …)");
    }
    if (trainer.args.empty() || trainer.args.front() != "run") {
      return invalid("spec.trainer.args: expected run WORKLOAD [flags], found " +
                     (trainer.args.empty() ? std::string("nothing") : "\"" + trainer.args.front() + "\"") +
                     "; what the image does without them is not known here");
    }
    return {};
  }

  // The trainer's container in the pod template.
  const Json& trainer_container() const {
    static const Json none = Json::object();
    const int index = train::trainer_index(spec().trainer.pod_template);
    if (index < 0) return none;
    return list_field(spec().trainer.pod_template, {"spec", "containers"})[static_cast<size_t>(index)];
  }

  void read_mounts() {
    for (const Json& mount : list_field(trainer_container(), {"volumeMounts"})) {
      pod_mounts_.push_back(without_final_slashes(text_field(mount, {"mountPath"})));
    }
    if (spec().checkpoint) pod_mounts_.push_back(without_final_slashes(spec().checkpoint->mount_path));
  }

  Status map_checkpoints() {
    mounts_ = options_.mounts;
    run_.environment[std::string(env::kJob)] = job_.meta.name;
    if (!spec().checkpoint) return {};
    const std::string mount = without_final_slashes(spec().checkpoint->mount_path);
    const std::string& folder = mounts_.emplace(mount, kLocalCheckpoints).first->second;
    run_.environment[std::string(env::kCheckpointDir)] = folder;
    run_.environment[std::string(env::kStopTimeout)] = std::to_string(spec().checkpoint->on_suspend_timeout_seconds);
    checkpoints_ = folder + "/" + job_.meta.name;
    return {};
  }

  std::optional<std::string> value_of(const std::string& name) const {
    const auto it = run_.environment.find(name);
    return it == run_.environment.end() ? std::nullopt : std::optional(it->second);
  }

  // As in a pod, a value may refer to variables before it: $(NAME).
  void copy_variables(const Json& list) {
    for (const Json& variable : list) {
      const std::string name = text_field(variable, {"name"});
      if (variable.contains("valueFrom")) {
        without_value_.push_back(name);
        continue;
      }
      run_.environment[name] = manifest::expand_variables(text_field(variable, {"value"}),
                                                          [this](const std::string& other) { return value_of(other); });
    }
  }

  void copy_environment() {
    run_.environment[std::string(env::kStallTimeout)] = std::to_string(spec().health.stall_timeout_seconds);
    if (spec().elastic) {
      run_.environment[std::string(env::kRejoinTimeout)] = std::to_string(spec().elastic->rejoin_timeout_seconds);
    }
    copy_variables(list_field(trainer_container(), {"env"}));
    copy_variables(Json(spec().trainer.env));
  }

  // A --mount that maps nothing is refused as a typing error.
  Status check_mount_options() const {
    const std::vector<std::string>& args = spec().trainer.args;
    for (const auto& mount : options_.mounts) {
      const std::string& pod_path = mount.first;
      const std::string& local = mount.second;
      const auto is_about = [&pod_path](const std::string& known) {
        return is_below(known, pod_path) || is_below(pod_path, known);
      };
      const bool is_used = std::any_of(pod_mounts_.begin(), pod_mounts_.end(), is_about) ||
                           std::any_of(args.begin(), args.end(),
                                       [&](const std::string& arg) { return is_below(value_in(arg), pod_path); });
      if (!is_used) {
        std::string message = "--mount " + pod_path + ": no volume is mounted there, and no argument names it";
        if (const std::string nearest = nearest_name(pod_path, pod_mounts_); !nearest.empty()) {
          message += "; did you mean " + nearest + "?";
        }
        return invalid(message);
      }
      const bool is_written = spec().checkpoint && pod_path == without_final_slashes(spec().checkpoint->mount_path);
      if (!is_written && !exists_(local))
        return invalid("--mount " + pod_path + "=" + local + ": there is no " + local);
    }
    return {};
  }

  // The part of an argument that may be a path: all of it, or the part after "--flag=".
  static std::string value_in(const std::string& arg) {
    const size_t equals = arg.starts_with("--") ? arg.find('=') : std::string::npos;
    return equals == std::string::npos ? arg : arg.substr(equals + 1);
  }

  // The longest of the folders that contain `path`; null when none does.
  template <typename Paths>
  static const std::string* longest_above(const Paths& paths, const std::string& path) {
    const std::string* longest = nullptr;
    for (const std::string& folder : paths) {
      if (is_below(path, folder) && (longest == nullptr || folder.size() > longest->size())) longest = &folder;
    }
    return longest;
  }

  // The path on this machine for a path in the pod.
  Result<std::string> local_path(const std::string& path, const std::string& where) {
    std::vector<std::string> mapped;
    for (const auto& [pod_path, local] : mounts_) mapped.push_back(pod_path);
    if (const std::string* mount = longest_above(mapped, path)) {
      used_mounts_[*mount] = mounts_.at(*mount);
      return mounts_.at(*mount) + path.substr(*mount == "/" ? 0 : mount->size());
    }
    const std::string* const mount = longest_above(pod_mounts_, path);
    if (mount == nullptr || exists_(path)) return path;
    return invalid(where + ": " + path + " is not on this machine: in the pods a volume is mounted at " + *mount +
                   "; give its local path, such as --mount " + *mount + "=." + *mount);
  }

  Status copy_arguments() {
    const std::vector<std::string>& args = spec().trainer.args;
    for (size_t i = 1; i < args.size(); ++i) {
      const std::string where = "spec.trainer.args[" + std::to_string(i) + "]";
      const std::string word =
          manifest::expand_variables(args[i], [this](const std::string& name) { return value_of(name); });
      if (word.find("$(LOCKSTEP_") != std::string::npos) {
        return invalid(where + ": \"" + word + "\" has a value only in a pod; give the flag on the command line");
      }
      const std::string value = value_in(word);
      std::string flag = flag_of(table_, word);
      if (flag.empty() && i > 1) flag = flag_of(table_, args[i - 1]);
      const bool is_overridden = !flag.empty() && gives(table_, options_.flags, flag);
      if (!value.starts_with("/") || is_overridden) {
        run_.arguments.push_back(word);
        continue;
      }
      TRY_ASSIGN(const std::string local, local_path(value, where));
      run_.arguments.push_back(word.substr(0, word.size() - value.size()) + local);
    }
    return {};
  }

  // Flags from the fields come before the file's own flags, so that the latter win, as in a pod.
  void derive_node_flags() {
    std::vector<std::string> derived;
    const api::Trainer& trainer = spec().trainer;
    const bool is_placed = std::any_of(kPlacement.begin(), kPlacement.end(),
                                       [this](const char* flag) { return gives(table_, options_.flags, flag); });
    if (trainer.num_proc_per_node) derived.push_back("--nproc=" + std::to_string(*trainer.num_proc_per_node));
    const bool given_here = gives(table_, options_.flags, "local_nodes");
    if (!is_placed && !given_here && trainer.num_nodes > 1) {
      const std::string nodes = std::to_string(trainer.num_nodes);
      derived.push_back("--local_nodes=" + nodes);
      if (spec().elastic) derived.push_back("--nnodes=" + std::to_string(spec().elastic->min_nodes) + ":" + nodes);
    }
    const bool names_workload = !run_.arguments.empty() && !run_.arguments.front().starts_with("-");
    run_.arguments.insert(run_.arguments.begin() + (names_workload ? 1 : 0), derived.begin(), derived.end());
    if (is_placed || given_here) {
      nodes_text_ = "nodes as the command line says";
    } else {
      nodes_text_ = plural(trainer.num_nodes, "node") + " on this machine";
      if (spec().elastic) nodes_text_ += ", at least " + std::to_string(spec().elastic->min_nodes);
    }
  }

  void add_remarks() {
    std::string used = options_.path + ": TrainJob " + job_.meta.name + ": " + nodes_text_;
    for (const auto& [pod_path, local] : used_mounts_) used += "; " + pod_path + " is " + local;
    if (!checkpoints_.empty()) used += "; checkpoints in " + checkpoints_;
    run_.remarks.push_back(used);
    const std::string ignored = joined(ignored_fields());
    if (!ignored.empty()) run_.remarks.push_back(options_.path + ": for a cluster, and ignored here: " + ignored);
  }

  std::vector<std::string> ignored_fields() const {
    std::vector<std::string> names;
    const auto add = [&](std::initializer_list<std::string_view> path, const char* shown) {
      if (const Json* const value = field(written_, path); value != nullptr && !value->is_null())
        names.push_back(shown);
    };
    add({"spec", "trainer", "image"}, "image");
    add({"spec", "trainer", "resourcesPerNode"}, "resourcesPerNode");
    add({"spec", "trainer", "sharedMemory"}, "sharedMemory");
    add({"spec", "trainer", "statusPort"}, "statusPort");
    add({"spec", "trainer", "coordinatorPort"}, "coordinatorPort");
    add({"spec", "trainer", "podTemplate"}, pod_mounts_.empty() ? "podTemplate" : "podTemplate (but for mounts, env)");
    add({"spec", "scheduling"}, "scheduling");
    add({"spec", "checkpoint", "volume"}, "checkpoint.volume");
    add({"spec", "checkpoint", "mountOn"}, "checkpoint.mountOn");
    // SameConfig is what a run does without a cluster.
    if (spec().checkpoint && spec().checkpoint->resume != api::Resume::kSameConfig)
      names.emplace_back("checkpoint.resume");
    add({"spec", "health", "startupTimeoutSeconds"}, "health.startupTimeoutSeconds");
    add({"spec", "health", "placementTimeoutSeconds"}, "health.placementTimeoutSeconds");
    add({"spec", "health", "notReadyTimeoutSeconds"}, "health.notReadyTimeoutSeconds");
    add({"spec", "restartPolicy"}, "restartPolicy");
    add({"spec", "successPolicy"}, "successPolicy");
    add({"spec", "suspend"}, "suspend");
    add({"spec", "managedBy"}, "managedBy");
    add({"spec", "activeDeadlineSeconds"}, "activeDeadlineSeconds");
    add({"spec", "ttlSecondsAfterFinished"}, "ttlSecondsAfterFinished");
    add({"spec", "podCleanup"}, "podCleanup");
    add({"spec", "networkPolicy"}, "networkPolicy");
    add({"spec", "disruption"}, "disruption");
    for (const std::string& name : without_value_) names.push_back("env " + name + " (valueFrom)");
    return names;
  }

  // With one of these flags on the command line this agent is one of several nodes, so the file's number of nodes is
  // not used.
  static constexpr std::array<const char*, 3> kPlacement = {"nnodes", "node_rank", "coordinator"};

  const Json& written_;
  const api::TrainJob& job_;
  const TrainJobRunOptions& options_;
  const PathExists& exists_;
  const std::vector<Flag> table_;
  std::vector<std::string> pod_mounts_;             // of the trainer, checkpoints included
  std::map<std::string, std::string> mounts_;       // --mount, and that of the checkpoints
  std::map<std::string, std::string> used_mounts_;  // those that an argument needed
  std::vector<std::string> without_value_;          // variables that have valueFrom
  std::string checkpoints_;
  std::string nodes_text_;
  TrainJobRun run_;
};

}  // namespace

Result<std::optional<TrainJobRunOptions>> parse_trainjob_run(const std::vector<std::string>& arguments) {
  TrainJobRunOptions options;
  bool names_file = false;
  bool has_mounts = false;
  for (OptionReader reader(arguments); !reader.at_end();) {
    TRY_ASSIGN(const std::optional<std::string> path, reader.option({"-f", "--filename", "--file"}));
    if (path) {
      if (names_file) return invalid("-f is given twice: found " + options.path + " and " + *path);
      names_file = true;
      options.path = *path;
      continue;
    }
    TRY_ASSIGN(const std::optional<std::string> mount, reader.option({"--mount"}));
    if (mount) {
      has_mounts = true;
      TRY(add_mount(*mount, options));
      continue;
    }
    options.flags.push_back(reader.take());
  }
  if (!names_file) {
    if (has_mounts) return invalid("--mount goes with -f FILE: without a TrainJob paths are taken as they are");
    return std::optional<TrainJobRunOptions>();
  }
  if (!options.flags.empty() && find_workload(all_workload_flags(), options.flags.front()) != nullptr) {
    return invalid("-f " + options.path + " says what to train: leave out \"" + options.flags.front() + "\"");
  }
  return std::optional(std::move(options));
}

Result<TrainJobRun> local_run_of(const manifest::JobInFile& job, const TrainJobRunOptions& options,
                                 const PathExists& exists) {
  Result<TrainJobRun> run = Localizer(job, options, exists).run();
  if (!run.ok() && run.error().message.starts_with("spec.")) return run.error().with_context(options.path);
  return run;
}

Result<TrainJobRun> read_trainjob_run(const TrainJobRunOptions& options) {
  TRY_ASSIGN(const std::string text, manifest::read_manifest(options.path, std::cin));
  TRY_ASSIGN(const manifest::JobFile file, manifest::read_job_file(text, options.path, {}));
  TRY_ASSIGN(const manifest::JobInFile job, manifest::only_job(file, options.path));
  return local_run_of(job, options, [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  });
}

}  // namespace lockstep
