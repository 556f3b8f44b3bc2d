#include "operator/train/desired_pod.h"

#include <algorithm>
#include <array>
#include <utility>

#include "operator/train/desired_env.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "operator/train/pod_template.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

constexpr std::array<std::string_view, 2> kGpuResources = {"nvidia.com/gpu", "amd.com/gpu"};
// The agent is ready when its workers train: often enough to see a recovery of a second or two end.
constexpr int kReadinessPeriodSeconds = 2;
constexpr int kReadinessFailures = 3;

// `object[name]`, made empty first where it is missing or of another type.
Json& ensure_list(Json& object, const char* name) {
  Json& list = object[name];
  if (!list.is_array()) list = Json::array();
  return list;
}
Json& ensure_object(Json& object, const char* name) {
  Json& member = object[name];
  if (!member.is_object()) member = Json::object();
  return member;
}

void put_if_absent(Json& object, const char* name, Json value) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) object[name] = std::move(value);
}

int64_t quantity_of(const Json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.is_string() ? parse_number(value.get<std::string>()).value_or(0) : 0;
}

// Kubernetes takes requests of extended resources from their limits.
int64_t gpus_in(const Json& resources) {
  int64_t gpus = 0;
  for (const std::string_view name : kGpuResources) {
    for (const std::string_view kind : {"limits", "requests"}) {
      const Json* const value = field(resources, {kind, name});
      if (value == nullptr) continue;
      gpus += quantity_of(*value);
      break;
    }
  }
  return gpus;
}

// limits and requests are merged by their names; anything else (claims) is taken from the field as a whole.
Json merge_resources(const Json& below, const Json& above) {
  Json merged = below.is_object() ? below : Json::object();
  for (const auto& [kind, value] : above.items()) {
    Json& target = merged[kind];
    if (value.is_object() && target.is_object()) {
      target.update(value);
    } else {
      target = value;
    }
  }
  return merged;
}

Json trainer_resources(const api::TrainJobSpec& spec) {
  const Json* const below = field(template_trainer(spec), {"resources"});
  return merge_resources(below == nullptr ? Json::object() : *below, spec.trainer.resources_per_node);
}

Json merge_env(const std::vector<Json>& contract, const Json& template_env, const std::vector<Json>& field_env) {
  // The contract's come first, so that $(LOCKSTEP_NODE_RANK) can be used in all others.
  Json merged = contract;
  for (const Json& variable : template_env) {
    const bool is_replaced = std::any_of(field_env.begin(), field_env.end(), [&](const Json& other) {
      return text_field(other, {"name"}) == text_field(variable, {"name"});
    });
    if (!is_replaced) merged.push_back(variable);
  }
  for (const Json& variable : field_env) merged.push_back(variable);
  return merged;
}

void add_ports(const api::Trainer& fields, Json& trainer) {
  Json& ports = ensure_list(trainer, "ports");
  const auto add = [&ports](const char* name, int port) {
    ports.push_back({{"name", name}, {"containerPort", port}, {"protocol", "TCP"}});
  };
  if (fields.launcher == api::Launcher::kLockstep) {
    add("coordinator", fields.coordinator_port);
    add("status", fields.status_port);
  } else {
    add("master", kMasterPort);
  }
}

void add_readiness(Json& trainer) {
  put_if_absent(trainer, "readinessProbe",
                {{"httpGet", {{"path", "/readyz"}, {"port", "status"}}},
                 {"periodSeconds", kReadinessPeriodSeconds},
                 {"failureThreshold", kReadinessFailures},
                 {"timeoutSeconds", 2}});
}

bool wants_privileges(const Json& security) {
  if (bool_field(security, {"privileged"})) return true;
  const Json& added = list_field(security, {"capabilities", "add"});
  return std::any_of(added.begin(), added.end(), [](const Json& capability) {
    return capability == "SYS_ADMIN" || capability == "CAP_SYS_ADMIN" || capability == "ALL";
  });
}

bool says_not_root(const Json& context) {
  const Json* const user = field(context, {"runAsUser"});
  return bool_field(context, {"runAsNonRoot"}) || (user != nullptr && user->is_number_integer() && *user > 0);
}

// Must the pod do without root and its rights? With other launchers, and with a program of the user's, the image may
// need to start as root, unless the user says that it does not.
bool is_restricted(const api::TrainJobSpec& spec, const Json& pod_spec, const Json& trainer) {
  if (spec.trainer.launcher != api::Launcher::kLockstep) return false;
  if (!runs_user_program(spec)) return true;
  for (const Json* of : {&pod_spec, &trainer}) {
    const Json* const security = field(*of, {"securityContext"});
    if (security != nullptr && says_not_root(*security)) return true;
  }
  return false;
}

void restrict_trainer(Json& trainer, bool is_restricted) {
  Json& security = ensure_object(trainer, "securityContext");
  if (wants_privileges(security)) return;  // the API server refuses the combination
  put_if_absent(security, "allowPrivilegeEscalation", false);
  if (is_restricted) put_if_absent(security, "capabilities", {{"drop", Json::array({"ALL"})}});
}

void restrict_pod(Json& pod_spec, const Json& trainer, bool is_restricted, bool sets_fs_group) {
  Json& security = ensure_object(pod_spec, "securityContext");
  put_if_absent(security, "seccompProfile", {{"type", "RuntimeDefault"}});
  if (sets_fs_group && security.find("fsGroup") == security.end()) {
    security["fsGroup"] = kDefaultFsGroup;
    put_if_absent(security, "fsGroupChangePolicy", "OnRootMismatch");
  }
  const auto says_who = [](const Json& context) {
    return context.contains("runAsUser") || context.contains("runAsNonRoot");
  };
  const Json* const own = field(trainer, {"securityContext"});
  const bool user_decided = says_who(security) || (own != nullptr && (says_who(*own) || wants_privileges(*own)));
  if (is_restricted && !user_decided) security["runAsNonRoot"] = true;
}

void add_volume(Json& pod_spec, Json& trainer, Json volume, const std::string& mount_path) {
  ensure_list(trainer, "volumeMounts").push_back({{"name", volume["name"]}, {"mountPath", mount_path}});
  ensure_list(pod_spec, "volumes").push_back(std::move(volume));
}

bool mounts_path(const Json& trainer, std::string_view path) {
  const Json& mounts = list_field(trainer, {"volumeMounts"});
  return std::any_of(mounts.begin(), mounts.end(),
                     [&](const Json& mount) { return mount_point(text_field(mount, {"mountPath"})) == path; });
}

// Without a limit of its own it counts against the container's memory limit; 64 MiB, the runtimes' default, is too
// little for NCCL.
void add_shared_memory(Json& pod_spec, Json& trainer) {
  if (mounts_path(trainer, kSharedMemoryPath)) return;
  add_volume(pod_spec, trainer, {{"name", std::string(kSharedMemoryVolume)}, {"emptyDir", {{"medium", "Memory"}}}},
             std::string(kSharedMemoryPath));
}

void add_checkpoint(const api::Checkpoint& checkpoint, Json& pod_spec, Json& trainer) {
  Json volume = checkpoint.volume;
  volume["name"] = std::string(kCheckpointVolume);
  add_volume(pod_spec, trainer, std::move(volume), checkpoint.mount_path);
}

// The terms of a node selector are alternatives, so each of them must exclude the nodes.
Status avoid_nodes(Json& pod_spec, const std::set<std::string>& nodes) {
  if (nodes.empty()) return {};
  const std::string path = std::string(kTemplatePath) + ".spec.affinity";
  TRY_ASSIGN(Json * affinity, object_member(pod_spec, "affinity", path));
  TRY_ASSIGN(Json * node_affinity, object_member(*affinity, "nodeAffinity", path + ".nodeAffinity"));
  const std::string name = "requiredDuringSchedulingIgnoredDuringExecution";
  const std::string required_path = path + ".nodeAffinity." + name;
  TRY_ASSIGN(Json * required, object_member(*node_affinity, name, required_path));
  const std::string terms_path = required_path + ".nodeSelectorTerms";
  TRY_ASSIGN(Json * terms, list_member(*required, "nodeSelectorTerms", terms_path));
  if (terms->empty()) terms->push_back(Json::object());
  for (size_t i = 0; i < terms->size(); ++i) {
    const std::string at = terms_path + "[" + std::to_string(i) + "]";
    if (!(*terms)[i].is_object()) return invalid(at, "expected an object");
    TRY_ASSIGN(Json * fields, list_member((*terms)[i], "matchFields", at + ".matchFields"));
    for (const std::string& node : nodes) {  // one value each: the API allows no more
      fields->push_back({{"key", "metadata.name"}, {"operator", "NotIn"}, {"values", Json::array({node})}});
    }
  }
  return {};
}

Json common_metadata(const Observed& o) {
  const api::TrainJob& job = o.job;
  Json metadata = Json::object();
  if (const Json* given = field(job.spec.trainer.pod_template, {"metadata"}); given != nullptr && given->is_object()) {
    metadata = *given;
  }
  metadata["namespace"] = job.meta.ns;
  Json labels = owned_labels(job.meta);
  if (const Json* given = field(metadata, {"labels"}); given != nullptr && given->is_object()) labels.update(*given);
  labels[std::string(kServingLabel)] = "true";
  metadata["labels"] = std::move(labels);
  Json& annotations = ensure_object(metadata, "annotations");
  annotations[std::string(kNumNodesAnnotation)] = std::to_string(job.spec.trainer.num_nodes);
  put_if_absent(annotations, "kubectl.kubernetes.io/default-container", std::string(kTrainerContainer));
  if (job.spec.disruption.do_not_disrupt) {
    put_if_absent(annotations, "karpenter.sh/do-not-disrupt", "true");
    put_if_absent(annotations, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false");
  }
  metadata["ownerReferences"] = owner_references(job.meta);
  return metadata;
}

void name_pod(const api::TrainJob& job, const PodParameters& parameters, Json& metadata) {
  metadata["name"] = pod_name(job.meta.name, parameters.node_rank, parameters.attempt);
  Json& labels = metadata["labels"];
  labels[std::string(kNodeRankLabel)] = std::to_string(parameters.node_rank);
  labels[std::string(kAttemptLabel)] = std::to_string(parameters.attempt);
  const std::string avoids = joined(parameters.avoided_nodes, ",");
  if (!avoids.empty()) metadata["annotations"][std::string(kAvoidsAnnotation)] = avoids;
}

// Fields of the TrainJob take precedence over the same fields of the template.
void fill_trainer(const Observed& o, Json& trainer) {
  const api::Trainer& fields = o.job.spec.trainer;
  trainer["name"] = std::string(kTrainerContainer);
  trainer["image"] = fields.image;
  if (!fields.command.empty()) trainer["command"] = fields.command;
  if (!fields.args.empty()) trainer["args"] = fields.args;
  const std::vector<Json> contract = desired_env(o.job, num_proc_per_node(o.job.spec), o.token());
  const Json template_env = list_field(trainer, {"env"});
  trainer["env"] = merge_env(contract, template_env, fields.env);
  if (Json resources = trainer_resources(o.job.spec); !resources.empty()) trainer["resources"] = std::move(resources);
  add_ports(fields, trainer);
  if (fields.launcher == api::Launcher::kLockstep) add_readiness(trainer);
  put_if_absent(trainer, "terminationMessagePolicy", "FallbackToLogsOnError");
}

void fill_pod_spec(const Observed& o, Json& pod_spec) {
  const api::TrainJobSpec& spec = o.job.spec;
  pod_spec["restartPolicy"] = "Never";
  pod_spec["subdomain"] = o.job.meta.name;
  pod_spec["terminationGracePeriodSeconds"] = grace_period(spec);
  if (!spec.scheduling.priority_class_name.empty()) {
    pod_spec["priorityClassName"] = spec.scheduling.priority_class_name;
  }
  put_if_absent(pod_spec, "automountServiceAccountToken", false);
  put_if_absent(pod_spec, "enableServiceLinks", false);
  if (bool_field(pod_spec, {"hostNetwork"})) put_if_absent(pod_spec, "dnsPolicy", "ClusterFirstWithHostNet");
}

// common_pod without what a queue's admission adds.
Result<Json> unadmitted_common_pod(const Observed& o) {
  const api::TrainJobSpec& spec = o.job.spec;
  TRY(check_pod_template(spec));
  TRY(check_scheduling(o.job));
  Json pod_spec = Json::object();
  if (const Json* given = field(spec.trainer.pod_template, {"spec"}); given != nullptr && given->is_object()) {
    pod_spec = *given;
  }
  Json& containers = ensure_list(pod_spec, "containers");
  // A trainer that the template leaves out comes last, so that the indices in the API server's errors are the
  // template's.
  const int index = trainer_index(spec.trainer.pod_template);
  if (index < 0) containers.push_back(Json::object());
  Json& trainer = index < 0 ? containers.back() : containers[static_cast<size_t>(index)];
  fill_trainer(o, trainer);
  fill_pod_spec(o, pod_spec);
  if (spec.trainer.shared_memory == api::SharedMemory::kMemory) add_shared_memory(pod_spec, trainer);
  const bool restricted = is_restricted(spec, pod_spec, trainer);
  restrict_trainer(trainer, restricted);
  restrict_pod(pod_spec, trainer, restricted, o.settings.sets_fs_group);
  if (runs_user_program(spec)) add_agent(o.settings.agent_image, pod_spec, trainer);
  return Json{{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata", common_metadata(o)}, {"spec", std::move(pod_spec)}};
}

}  // namespace

int num_proc_per_node(const api::TrainJobSpec& spec) {
  if (spec.trainer.num_proc_per_node) return *spec.trainer.num_proc_per_node;
  constexpr int64_t kMost = 1024;  // as for a number that is given
  return static_cast<int>(std::clamp<int64_t>(gpus_in(trainer_resources(spec)), 1, kMost));
}

Result<Json> common_pod(const Observed& o) {
  TRY_ASSIGN(Json pod, unadmitted_common_pod(o));
  pod["metadata"]["annotations"][std::string(kGenerationAnnotation)] = std::to_string(o.job.meta.generation);
  if (!o.admitted_pod.empty()) TRY(add_to_pod(o.admitted_pod, pod));
  return pod;
}

Result<Json> pod_of_rank(const Observed& o, Json pod, const PodParameters& parameters) {
  name_pod(o.job, parameters, pod["metadata"]);
  Json& pod_spec = pod["spec"];
  pod_spec["hostname"] = pod_hostname(o.job.meta.name, parameters.node_rank);
  Json& trainer = pod_spec["containers"][static_cast<size_t>(trainer_index(pod))];
  set_rank(o.job.spec.trainer.launcher, parameters.node_rank, parameters.attempt, trainer["env"]);
  if (mounts_checkpoint(o.job.spec, parameters.node_rank)) add_checkpoint(*o.job.spec.checkpoint, pod_spec, trainer);
  TRY(avoid_nodes(pod_spec, parameters.avoided_nodes));
  join_pod_group(o.job, parameters.pod_group, pod);
  return pod;
}

Result<Json> desired_pod(const Observed& o, const PodParameters& parameters) {
  TRY_ASSIGN(Json common, common_pod(o));
  return pod_of_rank(o, std::move(common), parameters);
}

Result<Json> unadmitted_pod(const Observed& o) {
  TRY_ASSIGN(Json common, unadmitted_common_pod(o));
  return pod_of_rank(o, std::move(common), {});
}

}  // namespace lockstep::train
