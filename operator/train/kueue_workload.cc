#include "operator/train/kueue_workload.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "operator/kube/resource.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"

namespace lockstep::train {
namespace {

// On a Workload that we made: what it was made for, so that an edit of the job shows.
constexpr std::string_view kTemplateHashAnnotation = "lockstep.dev/pod-template-hash";
constexpr size_t kHashShown = 5;  // digits of the UID's hash in a Workload's name

// Kueue's own names for topology-aware scheduling.
constexpr std::string_view kRequiredTopology = "kueue.x-k8s.io/podset-required-topology";
constexpr std::string_view kPreferredTopology = "kueue.x-k8s.io/podset-preferred-topology";
constexpr std::string_view kUnconstrainedTopology = "kueue.x-k8s.io/podset-unconstrained-topology";
constexpr std::string_view kSliceTopology = "kueue.x-k8s.io/podset-slice-required-topology";
constexpr std::string_view kSliceSize = "kueue.x-k8s.io/podset-slice-size";
constexpr std::string_view kTopologyGate = "kueue.x-k8s.io/topology";
constexpr std::string_view kWorkloadAnnotation = "kueue.x-k8s.io/workload";
constexpr std::string_view kPodSetLabel = "kueue.x-k8s.io/podset";
constexpr std::string_view kHostNameLabel = "kubernetes.io/hostname";
// Annotations of a job that begin so are parameters of a ProvisioningRequest, which Kueue makes of the Workload.
constexpr std::string_view kProvisioningPrefix = "provreq.kueue.x-k8s.io/";

// What a queue's decision depends on: what the containers ask for, and where they may run. Env and volumes are left
// out: they hold secrets (LOCKSTEP_TOKEN), and more people may read Workloads than pods.
Json queued_containers(const Json& containers) {
  Json kept = Json::array();
  for (const Json& container : containers) {
    Json one = Json::object();
    for (const char* name : {"name", "image", "resources", "restartPolicy"}) {
      if (const Json* value = field(container, {name})) one[name] = *value;
    }
    kept.push_back(std::move(one));
  }
  return kept;
}

Json pod_template_of(const Json& pod) {
  Json spec = Json::object();
  for (const char* name : {"containers", "initContainers"}) {
    if (const Json* containers = field(pod, {"spec", name})) spec[name] = queued_containers(*containers);
  }
  for (const char* name :
       {"nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "schedulerName",
        "topologySpreadConstraints", "overhead", "resources", "resourceClaims", "restartPolicy"}) {
    if (const Json* value = field(pod, {"spec", name})) spec[name] = *value;
  }
  return {{"spec", std::move(spec)}};
}

std::string template_annotation(const api::TrainJobSpec& spec, std::string_view name) {
  return text_field(spec.trainer.pod_template, {"metadata", "annotations", name});
}

// A whole number from 1 to 2147483647, as Kueue wants its counts; nothing: the text is another.
std::optional<int64_t> count_of(const std::string& text) {
  const std::optional<int64_t> count = parse_number(text);
  const bool is_possible = count && *count > 0 && *count <= std::numeric_limits<int32_t>::max();
  return is_possible ? count : std::nullopt;
}

// Of the annotation kSliceSize; nothing when it is absent or no number of pods.
std::optional<int64_t> slice_size(const api::TrainJobSpec& spec) {
  return count_of(template_annotation(spec, kSliceSize));
}

// spec.podSets[].topologyRequest: of spec.scheduling.topology, else of the annotations that Kueue's other jobs have on
// their pod templates. Kueue refuses a topology of slices without their size, and the other way round
// (check_topology_slices).
std::optional<Json> topology_request(const api::TrainJob& job) {
  const auto annotation = [&job](std::string_view name) { return template_annotation(job.spec, name); };
  const std::string slices = annotation(kSliceTopology);
  Json request = Json::object();
  if (!job.spec.scheduling.topology.empty()) {
    request["required"] = job.spec.scheduling.topology;
  } else if (const std::string level = annotation(kRequiredTopology); !level.empty()) {
    request["required"] = level;
  } else if (const std::string wish = annotation(kPreferredTopology); !wish.empty()) {
    request["preferred"] = wish;
  } else if (annotation(kUnconstrainedTopology) == "true") {
    request["unconstrained"] = true;
  } else if (slices.empty()) {
    return std::nullopt;
  }
  if (!slices.empty()) {
    request["podSetSliceRequiredTopology"] = slices;
    request["podSetSliceSize"] = slice_size(job.spec).value_or(1);
  }
  request["podIndexLabel"] = std::string(kNodeRankLabel);  // pods of neighbouring ranks are placed close together
  return request;
}

// Kueue removes the scheduling gate of pods that carry one of its three annotations and ignores all others;
// "unconstrained" is for a queue that chooses nodes unasked.
std::pair<std::string, std::string> topology_annotation(const Json& workload) {
  for (const Json& set : list_field(workload, {"spec", "podSets"})) {
    for (const auto& [field_name, name] :
         {std::pair("required", kRequiredTopology), {"preferred", kPreferredTopology}}) {
      const std::string level = text_field(set, {"topologyRequest", field_name});
      if (!level.empty()) return {std::string(name), level};
    }
  }
  return {std::string(kUnconstrainedTopology), "true"};
}

std::string template_hash(const Json& workload) { return sha256_hex(dump_line(*field(workload, {"spec", "podSets"}))); }

}  // namespace

std::string label_of(const api::ObjectMeta& meta, std::string_view name) {
  const auto it = meta.labels.find(std::string(name));
  return it == meta.labels.end() ? "" : it->second;
}

Workload workload_from_json(Json object) {
  Workload w;
  w.meta = api::meta_of(object);
  w.queue = text_field(object, {"spec", "queueName"});
  if (const auto it = w.meta.annotations.find(std::string(kTemplateHashAnnotation)); it != w.meta.annotations.end()) {
    w.template_hash = it->second;
  }
  w.priority_class = text_field(object, {"spec", "priorityClassRef", "name"});
  w.priority_group = text_field(object, {"spec", "priorityClassRef", "group"});
  if (w.priority_class.empty()) {  // v1beta1
    w.priority_class = text_field(object, {"spec", "priorityClassName"});
    const std::string source = text_field(object, {"spec", "priorityClassSource"});
    w.priority_group = source.substr(0, source.find('/'));
  }
  const Json* const active = field(object, {"spec", "active"});
  w.is_active = active == nullptr || *active != false;
  for (const Json& set : list_field(object, {"spec", "podSets"})) {
    w.count += static_cast<int>(number_field(set, {"count"}).value_or(0));
    if (const auto least = number_field(set, {"minCount"})) w.min_count = static_cast<int>(*least);
    if (const std::string name = text_field(set, {"name"}); !name.empty()) w.pod_set = name;
  }
  w.conditions = api::conditions_from_json(list_field(object, {"status", "conditions"}));
  for (const Json& pods : list_field(object, {"status", "reclaimablePods"})) {
    w.reclaimable += static_cast<int>(number_field(pods, {"count"}).value_or(0));
  }
  w.checks = list_field(object, {"status", "admissionChecks"});
  w.has_admission = field(object, {"status", "admission"}) != nullptr;
  w.cluster_queue = text_field(object, {"status", "admission", "clusterQueue"});
  for (const Json& assignment : list_field(object, {"status", "admission", "podSetAssignments"})) {
    if (const auto count = number_field(assignment, {"count"})) {
      w.admitted_count = w.admitted_count.value_or(0) + static_cast<int>(*count);
    }
    if (field(assignment, {"topologyAssignment"}) != nullptr) w.topology = topology_annotation(object);
    const Json& levels = list_field(assignment, {"topologyAssignment", "levels"});
    if (!levels.empty() && levels.back() == kHostNameLabel) w.assigns_nodes = true;
    const Json* const flavors = field(assignment, {"flavors"});
    if (flavors == nullptr || !flavors->is_object()) continue;
    for (const auto& [resource, flavor] : flavors->items()) {
      const std::string name = flavor.is_string() ? flavor.get<std::string>() : "";
      if (std::find(w.flavors.begin(), w.flavors.end(), name) == w.flavors.end()) w.flavors.push_back(name);
    }
  }
  w.object = std::move(object);
  return w;
}

std::string workload_api_version(const KueueView& kueue) {
  kube::Resource kind = kube::kKueueWorkloads.front();
  if (!kueue.version.empty()) kind.version = kueue.version;
  return kind.api_version();
}

bool has_queue(const api::TrainJob& job) {
  return !label_of(job.meta, kQueueLabel).empty() || !label_of(job.meta, kPrebuiltWorkloadLabel).empty();
}

bool may_have_workload(const api::TrainJob& job) {
  const std::string reason = job.status.conditions.reason_of(api::condition::kAdmitted);
  for (const char* without_queue : {"", "NotQueued", "Suspended", "Complete", "Failed"}) {
    if (reason == without_queue) return has_queue(job);
  }
  return true;
}

bool has_its_priority(const api::TrainJob& job, const Workload& workload) {
  const std::string label = label_of(job.meta, kWorkloadPriorityLabel);
  if (!label.empty()) return label == workload.priority_class;
  return workload.is_prebuilt() || workload.priority_group != kKueueGroup;
}

std::optional<int64_t> max_execution_seconds(const api::ObjectMeta& job) {
  return count_of(label_of(job, kMaxExecutionLabel));
}

Status check_queue_labels(const api::ObjectMeta& job) {
  if (job.labels.count(std::string(kMaxExecutionLabel)) > 0 && !max_execution_seconds(job)) {
    return invalid(
        "metadata.labels[" + std::string(kMaxExecutionLabel) + "]",
        "is \"" + label_of(job, kMaxExecutionLabel) + "\"; expected a whole number of seconds from 1 to 2147483647");
  }
  const std::string queue = label_of(job, kQueueLabel);
  const auto is_outer = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const bool is_name =
      std::all_of(queue.begin(), queue.end(), [&](char c) { return is_outer(c) || c == '-' || c == '.'; });
  if (queue.empty() || (is_name && is_outer(queue.front()) && is_outer(queue.back()))) return {};
  return invalid("metadata.labels[" + std::string(kQueueLabel) + "]",
                 "is \"" + queue +
                     "\", which can be no LocalQueue's name; expected lower-case letters, digits, - "
                     "and ., such as \"team-a\" (kubectl get localqueues lists those that there are)");
}

Status check_topology_slices(const api::TrainJobSpec& spec) {
  const std::string size = template_annotation(spec, kSliceSize);
  const bool has_topology = !template_annotation(spec, kSliceTopology).empty();
  if (!has_topology && size.empty()) return {};
  const std::string annotations = std::string(kTemplatePath) + ".metadata.annotations";
  if (!has_topology) {
    return invalid(annotations + "[" + std::string(kSliceSize) + "]",
                   "is \"" + size + "\", but " + std::string(kSliceTopology) +
                       " is not set; add the topology level that the pods of a slice share, or remove the size");
  }
  if (slice_size(spec)) return {};
  return invalid(annotations + "[" + std::string(kSliceSize) + "]",
                 (size.empty() ? "is missing" : "is \"" + size + "\"") +
                     ", expected the number of pods of a slice, at least 1, because " + std::string(kSliceTopology) +
                     " is set");
}

std::string workload_name(const api::ObjectMeta& job) {
  return "trainjob-" + job.name + "-" + sha256_hex(job.uid).substr(0, kHashShown);
}

std::string workload_name_of(const api::TrainJob& job) {
  const std::string prebuilt = label_of(job.meta, kPrebuiltWorkloadLabel);
  return prebuilt.empty() ? workload_name(job.meta) : prebuilt;
}

const Workload* workload_of(const api::TrainJob& job, const KueueView& kueue) {
  const std::string name = workload_name_of(job);
  for (const Workload& workload : kueue.workloads) {
    if (workload.meta.name == name) return &workload;
  }
  return nullptr;
}

Json desired_workload(const api::TrainJob& job, int num_pods, const Json& pod, const KueueView& kueue) {
  Json set = {{"name", std::string(kPodSet)}, {"template", pod_template_of(pod)}};
  const std::optional<Json> request = topology_request(job);
  if (request) set["topologyRequest"] = *request;
  Json workload = {{"apiVersion", workload_api_version(kueue)},
                   {"kind", kube::kKueueWorkloads.front().kind},
                   {"metadata", owned_metadata(job.meta, workload_name(job.meta))},
                   {"spec", {{"queueName", label_of(job.meta, kQueueLabel)}, {"podSets", Json::array({set})}}}};
  Json& metadata = workload["metadata"];
  metadata["finalizers"] = Json::array({std::string(kWorkloadFinalizer)});
  metadata["annotations"] = {{std::string(kTemplateHashAnnotation), template_hash(workload)}};
  metadata["labels"][std::string(kJobUidLabel)] = job.meta.uid;
  for (const auto& [name, value] : job.meta.annotations) {
    if (name.starts_with(kProvisioningPrefix)) metadata["annotations"][name] = value;
  }
  if (const auto seconds = max_execution_seconds(job.meta)) {
    workload["spec"]["maximumExecutionTimeSeconds"] = *seconds;
  }
  Json& made = workload["spec"]["podSets"][0];
  made["count"] = num_pods;
  // A queue may choose nodes unasked. A Kueue that has v1beta1 only may take this for the wish for a topology.
  if (!request && kueue.version != "v1beta1") {
    made["topologyRequest"] = {{"podIndexLabel", std::string(kNodeRankLabel)}};
  }
  if (job.spec.elastic && job.spec.elastic->min_nodes < num_pods) {
    made["minCount"] = job.spec.elastic->min_nodes;
  }
  if (!kueue.priority || !kueue.priority->problem.empty()) return workload;
  const WorkloadPriority& priority = *kueue.priority;
  Json& spec = workload["spec"];
  spec["priority"] = priority.value;
  if (priority.group.empty()) return workload;
  const bool is_kueues = priority.group == kKueueGroup;
  if (kueue.version == "v1beta1") {
    spec["priorityClassName"] = priority.name;
    spec["priorityClassSource"] = priority.group + (is_kueues ? "/workloadpriorityclass" : "/priorityclass");
  } else {
    spec["priorityClassRef"] = {{"group", priority.group},
                                {"kind", is_kueues ? "WorkloadPriorityClass" : "PriorityClass"},
                                {"name", priority.name}};
  }
  return workload;
}

Result<Json> admitted_pod(const Workload& workload, const KueueView& kueue) {
  Json pod = {{"metadata",
               {{"labels", {{std::string(kPodSetLabel), workload.pod_set}}},
                {"annotations", {{std::string(kWorkloadAnnotation), workload.meta.name}}}}},
              {"spec", {{"nodeSelector", Json::object()}, {"tolerations", Json::array()}}}};
  Json& spec = pod["spec"];
  if (!kueue.flavor_problem.empty()) return Error{ErrorCode::kForbidden, kueue.flavor_problem};
  for (const std::string& name : workload.flavors) {
    const auto it = kueue.flavors.find(name);
    if (it == kueue.flavors.end() || !it->second) {
      return Error{ErrorCode::kNotFound, "the admission names ResourceFlavor \"" + name + "\", which is not there"};
    }
    if (const Json* labels = field(*it->second, {"spec", "nodeLabels"})) spec["nodeSelector"].update(*labels);
    for (const Json& toleration : list_field(*it->second, {"spec", "tolerations"})) {
      spec["tolerations"].push_back(toleration);
    }
  }
  if (workload.topology) {
    const auto& [name, value] = *workload.topology;
    pod["metadata"]["annotations"][name] = value;
    spec["schedulingGates"] = Json::array({{{"name", std::string(kTopologyGate)}}});
  }
  for (const Json& check : workload.checks) {
    for (const Json& update : list_field(check, {"podSetUpdates"})) {
      if (text_field(update, {"name"}) != workload.pod_set) continue;
      Json more = {{"metadata", Json::object()}, {"spec", Json::object()}};
      for (const char* part : {"labels", "annotations"}) {
        if (const Json* value = field(update, {part})) more["metadata"][part] = *value;
      }
      for (const char* part : {"nodeSelector", "tolerations"}) {
        if (const Json* value = field(update, {part})) more["spec"][part] = *value;
      }
      TRY(add_to_pod(more, pod));
    }
  }
  return pod;
}

Status add_to_pod(const Json& additions, Json& pod) {
  const auto add_names = [&](const char* where, const char* part) -> Status {
    const Json* const added = field(additions, {where, part});
    if (added == nullptr) return {};
    Json& target = pod[where][part];
    if (!target.is_object()) target = Json::object();
    for (const auto& [name, value] : added->items()) {
      if (target.contains(name) && target[name] != value) {
        return invalid(std::string(kTemplatePath) + "." + where + "." + part + "[" + name + "]",
                       "is " + dump_line(target[name]) + ", and the queue's admission asks for " + dump_line(value) +
                           "; remove it");
      }
      target[name] = value;
    }
    return {};
  };
  TRY(add_names("metadata", "labels"));
  TRY(add_names("metadata", "annotations"));
  TRY(add_names("spec", "nodeSelector"));
  for (const char* part : {"tolerations", "schedulingGates"}) {
    Json& target = pod["spec"][part];
    if (!target.is_array()) target = Json::array();
    for (const Json& one : list_field(additions, {"spec", part})) {
      if (std::find(target.begin(), target.end(), one) == target.end()) target.push_back(one);
    }
    if (target.empty()) pod["spec"].erase(part);
  }
  return {};
}

}  // namespace lockstep::train
