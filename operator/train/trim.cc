#include "operator/train/trim.h"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "operator/api/trainjob.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "runner/base/json.h"
#include "runner/base/utf8.h"

namespace lockstep::train {
namespace {

constexpr const char* kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";

constexpr size_t kKeptTextBytesMax = 4096;
constexpr size_t kKeptEntriesMax = 256;

void cut_texts(Json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().size() > kKeptTextBytesMax) {
    value = cut_utf8(value.get_ref<const std::string&>(), kKeptTextBytesMax);
  }
  if (!value.is_structured()) return;
  for (Json& child : value) cut_texts(child);
}

// Those that the operator has given it, of an object that has very many.
void cut_labels(Json& metadata) {
  const auto labels = metadata.find("labels");
  if (labels == metadata.end() || labels->size() <= kKeptEntriesMax || !labels->is_object()) return;
  std::erase_if(labels->get_ref<Json::object_t&>(),
                [](const auto& label) { return !label.first.starts_with(kReservedLabelPrefix); });
}

// What is compared with an object of ours, which is small: null, which differs from it, for a large one.
Json if_small(Json value) {
  constexpr size_t kBytesMax = size_t{32} << 10;
  return dump_line(value).size() <= kBytesMax ? std::move(value) : Json();
}

// Takes these fields out of `from`.
Json pick(Json& from, std::initializer_list<std::string_view> names) {
  Json kept = Json::object();
  if (!from.is_object()) return kept;
  for (const std::string_view name : names) {
    const auto it = from.find(name);
    if (it != from.end()) kept[std::string(name)] = std::move(*it);
  }
  return kept;
}

Json pick_metadata(Json& object) {
  const auto metadata = object.find("metadata");
  if (metadata == object.end()) return Json::object();
  Json kept = pick(*metadata, {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
                               "deletionGracePeriodSeconds", "labels", "ownerReferences"});
  for (const std::string_view name :
       {kNumNodesAnnotation, kGenerationAnnotation, kAvoidsAnnotation, kVolcanoGroupAnnotation}) {
    if (const Json* value = field(*metadata, {"annotations", name})) kept["annotations"][std::string(name)] = *value;
  }
  cut_labels(kept);
  if (const auto owners = kept.find("ownerReferences"); owners != kept.end() && owners->is_array()) {
    std::erase_if(owners->get_ref<Json::array_t&>(),
                  [](const Json& owner) { return !bool_field(owner, {"controller"}); });
  }
  return kept;
}

Json pick_object(Json& object) {
  Json kept = pick(object, {"apiVersion", "kind"});
  kept["metadata"] = pick_metadata(object);
  return kept;
}

Json pick_all(Json& object, std::string_view list, std::initializer_list<std::string_view> names) {
  Json kept = Json::array();
  const auto entries = object.find(list);
  if (entries == object.end() || !entries->is_array()) return kept;
  for (Json& entry : *entries) {
    if (kept.size() == kKeptEntriesMax) break;
    kept.push_back(pick(entry, names));
  }
  return kept;
}

// nullptr: `object` has no such field, or it is no object.
Json* object_in(Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_object() ? nullptr : &*found;
}

}  // namespace

Json trim_pod(Json pod) {
  Json kept = pick_object(pod);
  if (Json* spec = object_in(pod, "spec"))
    kept["spec"] = pick(*spec, {"nodeName", "schedulingGates", "schedulingGroup"});
  if (Json* status = object_in(pod, "status")) {
    Json& to = kept["status"] = pick(*status, {"phase", "podIP", "startTime", "reason", "message"});
    to["conditions"] = pick_all(*status, "conditions", {"type", "status", "reason", "message", "lastTransitionTime"});
    for (Json& condition : to["conditions"]) {
      if (text_field(condition, {"type"}) != "PodScheduled") condition.erase("lastTransitionTime");
    }
    for (const char* name : {"containerStatuses", "initContainerStatuses"}) {
      if (status->contains(name)) to[name] = pick_all(*status, name, {"name", "ready", "state"});
    }
    cut_texts(to);
  }
  return kept;
}

Json trim_job(Json job) {
  job = trim_whole(std::move(job));
  const std::string managed_by = text_field(job, {"spec", "managedBy"});
  const bool is_ours = managed_by.empty() || managed_by == api::kControllerName || managed_by == kMultiKueue;
  Json* const spec = object_in(job, "spec");
  if (is_ours || spec == nullptr) return job;
  for (const char* name : {"checkpoint", "restartPolicy"}) spec->erase(name);
  if (Json* const trainer = object_in(*spec, "trainer")) {
    for (const char* name : {"podTemplate", "env", "args", "command", "resourcesPerNode"}) trainer->erase(name);
  }
  return job;
}

Json trim_whole(Json object) {
  const auto metadata = object.find("metadata");
  if (metadata == object.end() || !metadata->is_object()) return object;
  metadata->erase("managedFields");
  if (metadata->contains("annotations") && (*metadata)["annotations"].is_object()) {
    (*metadata)["annotations"].erase(kLastApplied);
  }
  return object;
}

Json trim_service(Json service) {
  Json kept = pick_object(service);
  if (Json* spec = object_in(service, "spec"))
    kept["spec"] = if_small(pick(*spec, {"ports", "publishNotReadyAddresses", "selector"}));
  return kept;
}

Json trim_network_policy(Json policy) {
  Json kept = pick_object(policy);
  if (Json* spec = object_in(policy, "spec")) kept["spec"] = if_small(std::move(*spec));
  return kept;
}

Json trim_node(Json node) {
  Json kept = pick_object(node);
  kept["metadata"].erase("labels");
  if (Json* spec = object_in(node, "spec")) {
    Json& to = kept["spec"] = pick(*spec, {"unschedulable"});
    to["taints"] = pick_all(*spec, "taints", {"key"});
  }
  if (Json* status = object_in(node, "status")) {
    Json conditions = pick_all(*status, "conditions", {"type", "status", "lastTransitionTime"});
    std::erase_if(conditions.get_ref<Json::array_t&>(),
                  [](const Json& condition) { return text_field(condition, {"type"}) != "Ready"; });
    kept["status"]["conditions"] = std::move(conditions);
  }
  return kept;
}

std::string job_index_value(const api::ObjectKey& job) { return "job:" + api::to_string(job); }
std::string node_index_value(const std::string& node) { return "node:" + node; }

std::vector<std::string> job_index(const Json& object) {
  const api::ObjectKey job = job_of(object);
  return job.name.empty() ? std::vector<std::string>() : std::vector<std::string>{job_index_value(job)};
}

std::vector<std::string> pod_index(const Json& pod) {
  std::vector<std::string> values = job_index(pod);
  if (const std::string node = text_field(pod, {"spec", "nodeName"}); !node.empty()) {
    values.push_back(node_index_value(node));
  }
  return values;
}

api::ObjectKey job_of(const Json& object) {
  return {text_field(object, {"metadata", "namespace"}), text_field(object, {"metadata", "labels", kJobLabel})};
}

}  // namespace lockstep::train
