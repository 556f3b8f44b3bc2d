#include "operator/train/user_program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kAgent = "lockstep";
constexpr std::string_view kTorchrun = "torchrun";
// Where the operator's image has the agent (operator/Dockerfile), and where the init container mounts the volume.
constexpr std::string_view kAgentInItsImage = "/opt/lockstep/agent/lockstep";
constexpr std::string_view kVolumeOfInit = "/agent";

// Each of these would start all ranks again in every rank.
struct OtherLauncher {
  std::string_view name;
  std::string_view instead;
};
constexpr std::array kOtherLaunchers = {
    OtherLauncher{"accelerate", "leave `accelerate launch` and its flags out: command: [python, train.py]"},
    OtherLauncher{"deepspeed", "leave it out: command: [python, train.py, --deepspeed, …]"},
    OtherLauncher{"mpirun", "leave it out, with its flags, and set numProcPerNode: command: [PROGRAM, …]"},
    OtherLauncher{"mpiexec", "leave it out, with its flags, and set numProcPerNode: command: [PROGRAM, …]"},
    OtherLauncher{"srun", "leave it out, with its flags, and set numProcPerNode: command: [PROGRAM, …]"},
};

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The field of spec.trainer; without it that of the template's trainer.
struct Words {
  std::vector<std::string> words;
  std::string path;
};
Words words_of(const api::TrainJobSpec& spec, const std::vector<std::string>& own, const char* name) {
  Words found{own, std::string("spec.trainer.") + name};
  const int index = trainer_index(spec.trainer.pod_template);
  if (!own.empty() || index < 0) return found;
  for (const Json& word : list_field(template_trainer(spec), {name}))
    found.words.push_back(word.is_string() ? word : Json(""));
  if (found.words.empty()) return found;
  found.path = std::string(kTemplatePath) + ".spec.containers[" + std::to_string(index) + "]." + name;
  return found;
}
Words command_of(const api::TrainJobSpec& spec) { return words_of(spec, spec.trainer.command, "command"); }
Words args_of(const api::TrainJobSpec& spec) { return words_of(spec, spec.trainer.args, "args"); }

bool is_command_of_agent(const std::string& word) {
  constexpr std::array<std::string_view, 6> kCommands = {"run", "launch", "demo", "bench", "doctor", "ckpt"};
  return std::find(kCommands.begin(), kCommands.end(), word) != kCommands.end();
}

// [lockstep, run, …], and also behind a program that starts it: [tini, --, lockstep, run, …].
bool starts_agent(const std::vector<std::string>& command, const std::vector<std::string>& args) {
  if (file_name(command.front()) == kAgent) return true;
  std::vector<std::string> line = command;
  line.insert(line.end(), args.begin(), args.end());
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (file_name(line[i]) == kAgent && is_command_of_agent(line[i + 1])) return true;
  }
  return false;
}

// lockstep/runner, or one whose name says that it is made from it. Others say it by their args.
bool is_our_image(const std::string& image) {
  std::string name = image.substr(0, image.find('@'));
  const size_t colon = name.rfind(':');
  if (colon != std::string::npos && name.find('/', colon) == std::string::npos) name.resize(colon);
  return file_name(name) == "runner" || name.find(kAgent) != std::string::npos;
}

Status refuse_launcher(const Words& command) {
  const std::string name = file_name(command.words.front());
  const auto known = std::find_if(kOtherLaunchers.begin(), kOtherLaunchers.end(),
                                  [&name](const OtherLauncher& other) { return other.name == name; });
  const std::string found = "is \"" + command.words.front() + "\", which starts ranks itself, and so does launcher ";
  const std::string or_else = "; or set spec.trainer.launcher: None, with which a failure restarts all pods";
  if (known != kOtherLaunchers.end()) {
    return invalid(command.path + "[0]", found + "Lockstep: " + std::string(known->instead) + or_else);
  }
  // A path says which Python is meant; `lockstep launch` would take that of PATH.
  if (name == kTorchrun && command.words.front() != kTorchrun) {
    const std::string python = command.words.front().substr(0, command.words.front().size() - name.size()) + "python";
    return invalid(command.path + "[0]", found + "Lockstep: name the Python instead: command: [" + python +
                                             ", train.py], without torchrun's flags");
  }
  const auto module = std::find(command.words.begin(), command.words.end(), "-m");
  if (module != command.words.end() && module + 1 != command.words.end() &&
      (*(module + 1) == "torch.distributed.run" || *(module + 1) == "torch.distributed.launch")) {
    const auto index = std::to_string(module + 1 - command.words.begin());
    return invalid(command.path + "[" + index + "]", "is \"" + *(module + 1) +
                                                         "\", which starts ranks itself, and so does launcher "
                                                         "Lockstep: leave `-m " +
                                                         *(module + 1) + "` and its flags out");
  }
  return {};
}

Json resources_of_init(const Json& trainer) {
  Json resources = Json::object();
  for (const char* kind : {"limits", "requests"}) {
    for (const char* name : {"cpu", "memory", "ephemeral-storage"}) {
      if (const Json* value = field(trainer, {"resources", kind, name})) resources[kind][name] = *value;
    }
  }
  return resources;
}

// The init container runs as the trainer's user, without capabilities and without writing to its own image.
Json security_of_init(const Json& trainer) {
  Json security{{"allowPrivilegeEscalation", false},
                {"capabilities", {{"drop", Json::array({"ALL"})}}},
                {"readOnlyRootFilesystem", true}};
  for (const char* name : {"runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions"}) {
    if (const Json* value = field(trainer, {"securityContext", name})) security[name] = *value;
  }
  return security;
}

bool mounts(const Json& trainer, std::string_view path) {
  const Json& list = list_field(trainer, {"volumeMounts"});
  return std::any_of(list.begin(), list.end(),
                     [&](const Json& mount) { return mount_point(text_field(mount, {"mountPath"})) == path; });
}

void mount_volume(std::string_view name, std::string_view path, bool read_only, Json& pod_spec, Json& trainer) {
  Json mount{{"name", std::string(name)}, {"mountPath", std::string(path)}};
  if (read_only) mount["readOnly"] = true;
  trainer["volumeMounts"].push_back(std::move(mount));
  pod_spec["volumes"].push_back({{"name", std::string(name)}, {"emptyDir", Json::object()}});
}

}  // namespace

bool runs_user_program(const api::TrainJobSpec& spec) {
  if (spec.trainer.launcher != api::Launcher::kLockstep) return false;
  const std::vector<std::string> command = command_of(spec).words;
  return !command.empty() && !starts_agent(command, args_of(spec).words);
}

Status check_program(const api::TrainJobSpec& spec) {
  if (spec.trainer.launcher != api::Launcher::kLockstep) return {};
  const Words command = command_of(spec);
  if (!command.words.empty()) return runs_user_program(spec) ? refuse_launcher(command) : Status();
  const std::vector<std::string> args = args_of(spec).words;
  const bool is_ours = args.empty() ? is_our_image(spec.trainer.image)
                                    : is_command_of_agent(args.front()) || args.front().find("$(") != std::string::npos;
  if (is_ours) return {};
  const std::string why =
      args.empty() ? "and no args" : "and args begin with \"" + args.front() + "\" and not with run";
  return invalid("spec.trainer.command",
                 "is missing, " + why +
                     ": what the image starts is not known here; write the program, command: [python, train.py], or "
                     "for an image of Lockstep args: [run, WORKLOAD, …]");
}

bool any_pod_may_save(const api::TrainJobSpec& spec) {
  return spec.trainer.launcher != api::Launcher::kLockstep || runs_user_program(spec);
}

bool mounts_checkpoint(const api::TrainJobSpec& spec, int node_rank) {
  if (!spec.checkpoint) return false;
  const api::MountOn on =
      spec.checkpoint->mount_on.value_or(runs_user_program(spec) ? api::MountOn::kAllNodes : api::MountOn::kNode0);
  return node_rank == 0 || on == api::MountOn::kAllNodes;
}

void add_agent(const std::string& agent_image, Json& pod_spec, Json& trainer) {
  Json command = Json::array({std::string(kAgentPath) + "/lockstep", "launch"});
  const Json& given = trainer["command"];
  // `lockstep launch` takes torchrun's flags, and the program behind them.
  const bool is_torchrun = given.front() == kTorchrun;
  if (!is_torchrun) command.push_back("--");
  for (auto word = given.begin() + (is_torchrun ? 1 : 0); word != given.end(); ++word) command.push_back(*word);
  trainer["command"] = std::move(command);

  Json init{{"name", std::string(kAgentContainer)},
            {"image", agent_image},
            {"command", Json::array({std::string(kAgentInItsImage), "--copy_to", std::string(kVolumeOfInit)})},
            {"securityContext", security_of_init(trainer)},
            {"volumeMounts", Json::array({{{"name", std::string(kAgentVolume)}, {"mountPath", kVolumeOfInit}}})}};
  if (Json resources = resources_of_init(trainer); !resources.empty()) init["resources"] = std::move(resources);
  Json& list = pod_spec["initContainers"];
  if (!list.is_array()) list = Json::array();
  list.push_back(std::move(init));  // last, so that the indices in the API server's errors are the template's
  for (Json* member : {&trainer["volumeMounts"], &pod_spec["volumes"]}) {
    if (!member->is_array()) *member = Json::array();
  }
  mount_volume(kAgentVolume, kAgentPath, /*read_only=*/true, pod_spec, trainer);
  if (bool_field(trainer, {"securityContext", "readOnlyRootFilesystem"}) && !mounts(trainer, kTemporaryPath)) {
    mount_volume(kTemporaryVolume, kTemporaryPath, /*read_only=*/false, pod_spec, trainer);
  }
}

}  // namespace lockstep::train
