#include "operator/train/pod_template.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include "operator/api/schema.h"
#include "operator/train/desired_env.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

// Beyond onSuspendTimeoutSeconds: for the agent to see the signal, and to leave after its workers.
constexpr int64_t kGraceMarginSeconds = 30;
constexpr int64_t kGraceDefaultSeconds = 90;  // without a checkpoint: the agent gives its workers 60 s

std::string found(const Json& value) {
  std::string text = dump_line(value);
  constexpr size_t kShown = 80;
  if (text.size() > kShown) text = std::string(value.type_name());
  return text;
}

Status check_is_absent(const Json& parent, const std::string& path, const char* name, const char* instead) {
  const Json* const value = field(parent, {name});
  if (value == nullptr || value->is_null()) return {};
  return invalid(path + "." + name, "is " + found(*value) + ", but " + instead);
}

Status check_metadata(const Json& pod_template) {
  const std::string path = std::string(kTemplatePath) + ".metadata";
  TRY_ASSIGN(const Json metadata, object_of(pod_template, "metadata", path));
  for (const char* name : {"name", "generateName", "namespace", "ownerReferences", "finalizers"}) {
    TRY(check_is_absent(metadata, path, name, "the operator writes it; remove it (labels and annotations are yours)"));
  }
  for (const char* kind : {"labels", "annotations"}) {
    TRY_ASSIGN(const Json entries, object_of(metadata, kind, path + "." + kind));
    for (const auto& [name, value] : entries.items()) {
      if (name.substr(0, kReservedLabelPrefix.size()) == kReservedLabelPrefix) {
        return invalid(path + "." + kind + "[" + name + "]", "names that begin with " +
                                                                 std::string(kReservedLabelPrefix) +
                                                                 " are the operator's; remove it or use another name");
      }
      // With this label on the pods Kueue would queue each pod on its own, and count the job twice.
      if (name == kQueueLabel) {
        return invalid(path + "." + kind + "[" + name + "]",
                       "a queue is the job's, not a pod's; write it into the TrainJob's own metadata.labels");
      }
      if (!value.is_string()) {
        return invalid(path + "." + kind + "[" + name + "]", "is " + found(value) + ", expected a string");
      }
    }
  }
  return {};
}

Status check_pod_fields(const Json& spec, const std::string& path) {
  TRY(check_is_absent(spec, path, "hostname", "the operator sets the pods' hostnames; remove it"));
  TRY(check_is_absent(spec, path, "subdomain", "it is the name of the job's Service; remove it"));
  TRY(check_is_absent(spec, path, "activeDeadlineSeconds",
                      "it would end single pods; use spec.activeDeadlineSeconds of the TrainJob"));
  if (const Json* restart = field(spec, {"restartPolicy"}); restart != nullptr && *restart != "Never") {
    return invalid(path + ".restartPolicy",
                   "is " + found(*restart) + ", but the operator itself replaces pods (spec.restartPolicy); remove it");
  }
  const Json* const grace = field(spec, {"terminationGracePeriodSeconds"});
  if (grace == nullptr || grace->is_null() || grace->is_number_integer()) return {};
  return invalid(path + ".terminationGracePeriodSeconds", "is " + found(*grace) + ", expected a whole number");
}

// Calls `check` for each entry of a list that may be absent or null. kInvalid when it is no list.
Status each_entry(const Json& parent, const char* name, const std::string& path,
                  const std::function<Status(const Json& entry, const std::string& at)>& check) {
  const Json* const list = field(parent, {name});
  if (list == nullptr || list->is_null()) return {};
  const std::string list_path = path + "." + name;
  if (!list->is_array()) return invalid(list_path, "is " + found(*list) + ", expected a list");
  for (size_t i = 0; i < list->size(); ++i) TRY(check((*list)[i], api::field_below(list_path, i)));
  return {};
}

// No entry of the list may have one of these names.
Status check_names(const Json& parent, const char* list, const std::string& path,
                   const std::set<std::string_view>& taken, const std::string& why) {
  return each_entry(parent, list, path, [&](const Json& entry, const std::string& at) -> Status {
    const std::string name = text_field(entry, {"name"});
    return taken.contains(name) ? invalid(at + ".name", "is \"" + name + "\", " + why) : Status();
  });
}

Status check_env(const Json& list, const std::string& path, api::Launcher launcher) {
  if (!list.is_array()) return invalid(path, "is " + found(list) + ", expected a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = text_field(list[i], {"name"});
    if (name.empty()) return invalid(api::field_below(path, i), "has no name");
    if (is_reserved(name, launcher)) {
      return invalid(api::field_below(path, i) + ".name",
                     "is \"" + name + "\", which the operator writes itself; remove it or use another name");
    }
  }
  return {};
}

Status check_mounts(const Json& trainer, const std::string& path, const api::TrainJobSpec& spec) {
  std::map<std::string, std::string> before;  // mount point → the path as it is written
  const bool has_agent = runs_user_program(spec);
  return each_entry(trainer, "volumeMounts", path, [&](const Json& mount, const std::string& entry) -> Status {
    const std::string mount_path = text_field(mount, {"mountPath"});
    if (mount_path.empty()) return {};  // the API server refuses it
    const std::string at = entry + ".mountPath";
    const std::string point = mount_point(mount_path);
    if (spec.checkpoint && point == mount_point(spec.checkpoint->mount_path)) {
      return invalid(at, "is \"" + mount_path + "\", where spec.checkpoint.volume is mounted; remove one of the two");
    }
    if (has_agent && point == kAgentPath) {
      return invalid(at, "is \"" + mount_path + "\", where the operator mounts its agent; choose another path");
    }
    const auto [other, is_first] = before.emplace(point, mount_path);
    if (is_first) return {};
    return invalid(at, "is \"" + mount_path + "\", where another volume is mounted already (\"" + other->second +
                           "\"); remove one of the two");
  });
}

// Ports that the operator itself uses. Given to the agent alone they would leave probe and requests where they were.
Status check_port_args(const api::TrainJobSpec& spec) {
  const api::Trainer& trainer = spec.trainer;
  if (trainer.launcher != api::Launcher::kLockstep || runs_user_program(spec)) return {};
  for (size_t i = 0; i < trainer.args.size(); ++i) {
    const std::string& arg = trainer.args[i];
    const size_t equals = arg.find('=');
    std::string flag = arg.substr(0, equals);
    std::replace(flag.begin(), flag.end(), '-', '_');
    if (flag != "__status_port") continue;
    const bool has_value = equals != std::string::npos || i + 1 < trainer.args.size();
    const std::string value = !has_value                    ? ""
                              : equals == std::string::npos ? trainer.args[i + 1]
                                                            : arg.substr(equals + 1);
    if (value == std::to_string(trainer.status_port)) continue;
    return invalid(api::field_below("spec.trainer.args", i),
                   "is " + arg + (equals == std::string::npos && has_value ? " " + value : "") +
                       ", but the probe, the Service and the operator use port " + std::to_string(trainer.status_port) +
                       "; remove it, and set spec.trainer.statusPort to another port");
  }
  return {};
}

Status check_trainer(const Json& trainer, const std::string& path, const api::TrainJobSpec& spec) {
  if (const Json* env = field(trainer, {"env"}); env != nullptr && !env->is_null()) {
    TRY(check_env(*env, path + ".env", spec.trainer.launcher));
  }
  TRY(check_names(trainer, "ports", path, {"coordinator", "status", "master"},
                  "a port that the operator names itself; remove it or use another name"));
  TRY(check_mounts(trainer, path, spec));
  for (const char* name : {"resources", "securityContext"}) TRY(object_of(trainer, name, path + "." + name));
  if (spec.trainer.launcher != api::Launcher::kLockstep) return {};
  return check_is_absent(trainer, path, "terminationMessagePath",
                         "the agent writes its termination message to the default path; remove it");
}

Status check_containers(const Json& pod, const std::string& path, const api::TrainJobSpec& spec) {
  std::set<std::string> names;
  return each_entry(pod, "containers", path, [&](const Json& container, const std::string& at) -> Status {
    if (!container.is_object()) return invalid(at, "is " + found(container) + ", expected an object");
    const std::string name = text_field(container, {"name"});
    if (name.empty()) {
      return invalid(at + ".name", "is missing; call the container that trains \"" + std::string(kTrainerContainer) +
                                       "\", and sidecars as you like");
    }
    if (!names.insert(name).second) return invalid(at + ".name", "is \"" + name + "\" a second time");
    return name == kTrainerContainer ? check_trainer(container, at, spec) : Status();
  });
}

}  // namespace

Result<Json*> object_member(Json& parent, const std::string& name, const std::string& path) {
  Json& member = parent[name];
  if (member.is_null()) member = Json::object();
  if (!member.is_object()) return invalid(path, "is " + found(member) + ", expected an object");
  return &member;
}

Result<Json*> list_member(Json& parent, const std::string& name, const std::string& path) {
  Json& member = parent[name];
  if (member.is_null()) member = Json::array();
  if (!member.is_array()) return invalid(path, "is " + found(member) + ", expected a list");
  return &member;
}

Result<Json> object_of(const Json& parent, const std::string& name, const std::string& path) {
  const Json* const member = field(parent, {name});
  if (member == nullptr || member->is_null()) return Json(Json::object());
  if (!member->is_object()) return invalid(path, "is " + found(*member) + ", expected an object");
  return *member;
}

Status check_pod_template(const api::TrainJobSpec& spec) {
  const Json& pod_template = spec.trainer.pod_template;
  if (!pod_template.is_object()) {
    return invalid(std::string(kTemplatePath), "is " + found(pod_template) + ", expected an object");
  }
  TRY(check_env(spec.trainer.env, "spec.trainer.env", spec.trainer.launcher));
  TRY(check_port_args(spec));
  TRY(check_metadata(pod_template));
  const std::string path = std::string(kTemplatePath) + ".spec";
  TRY_ASSIGN(const Json pod, object_of(pod_template, "spec", path));
  TRY(check_pod_fields(pod, path));
  TRY(object_of(pod, "securityContext", path + ".securityContext"));
  const std::string is_used = "which the operator uses itself; give the ";
  TRY(check_names(pod, "volumes", path, {kCheckpointVolume, kSharedMemoryVolume, kAgentVolume, kTemporaryVolume},
                  is_used + "volume another name"));
  TRY(check_names(pod, "initContainers", path, {kAgentContainer}, is_used + "container another name"));
  TRY(check_containers(pod, path, spec));
  return check_program(spec);
}

std::string mount_point(const std::string& mount_path) {
  std::string point = std::filesystem::path(mount_path).lexically_normal().string();
  while (point.size() > 1 && point.back() == '/') point.pop_back();
  return point;
}

int trainer_index(const Json& pod_template) {
  const Json& containers = list_field(pod_template, {"spec", "containers"});
  for (size_t i = 0; i < containers.size(); ++i) {
    if (text_field(containers[i], {"name"}) == kTrainerContainer) return static_cast<int>(i);
  }
  return -1;
}

const Json& template_trainer(const api::TrainJobSpec& spec) {
  static const Json none = Json::object();
  const int index = trainer_index(spec.trainer.pod_template);
  if (index < 0) return none;
  return list_field(spec.trainer.pod_template, {"spec", "containers"})[static_cast<size_t>(index)];
}

int64_t grace_period_needed(const api::TrainJobSpec& spec) {
  return spec.checkpoint ? spec.checkpoint->on_suspend_timeout_seconds + kGraceMarginSeconds : 0;
}

int64_t grace_period(const api::TrainJobSpec& spec) {
  const Json* const given = field(spec.trainer.pod_template, {"spec", "terminationGracePeriodSeconds"});
  const bool is_given = given != nullptr && given->is_number_integer();
  return std::max(grace_period_needed(spec), is_given ? given->get<int64_t>() : kGraceDefaultSeconds);
}

}  // namespace lockstep::train
