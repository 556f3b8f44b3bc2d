#include "operator/train/trim.h"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

constexpr const char* kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";

Json pick(const Json& from, std::initializer_list<std::string_view> names) {
  Json kept = Json::object();
  if (!from.is_object()) return kept;
  for (const std::string_view name : names) {
    const auto it = from.find(name);
    if (it != from.end()) kept[std::string(name)] = *it;
  }
  return kept;
}

Json pick_metadata(const Json& object) {
  const Json* const metadata = field(object, {"metadata"});
  if (metadata == nullptr) return Json::object();
  Json kept = pick(*metadata, {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
                               "labels", "ownerReferences"});
  for (const std::string_view name : {kNodesAnnotation, kAvoidsAnnotation, kVolcanoGroupAnnotation}) {
    if (const Json* value = field(*metadata, {"annotations", name})) kept["annotations"][std::string(name)] = *value;
  }
  return kept;
}

Json pick_object(const Json& object) {
  Json kept = pick(object, {"apiVersion", "kind"});
  kept["metadata"] = pick_metadata(object);
  return kept;
}

Json pick_all(const Json& list, std::initializer_list<std::string_view> names) {
  Json kept = Json::array();
  for (const Json& entry : list) kept.push_back(pick(entry, names));
  return kept;
}

}  // namespace

Json trim_pod(const Json& pod) {
  Json kept = pick_object(pod);
  if (const Json* spec = field(pod, {"spec"}))
    kept["spec"] = pick(*spec, {"nodeName", "schedulingGates", "schedulingGroup"});
  if (const Json* status = field(pod, {"status"})) {
    Json& to = kept["status"] = pick(*status, {"phase", "podIP", "startTime", "reason", "message"});
    to["conditions"] = pick_all(list_field(*status, {"conditions"}), {"type", "status", "reason", "message"});
    for (const char* name : {"containerStatuses", "initContainerStatuses"}) {
      if (status->contains(name)) to[name] = pick_all(list_field(*status, {name}), {"name", "state"});
    }
  }
  return kept;
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

Json trim_service(const Json& service) {
  Json kept = pick_object(service);
  if (const Json* spec = field(service, {"spec"})) kept["spec"] = pick(*spec, {"publishNotReadyAddresses", "selector"});
  return kept;
}

Json trim_network_policy(const Json& policy) {
  Json kept = pick_object(policy);
  if (const Json* spec = field(policy, {"spec"})) kept["spec"] = *spec;
  return kept;
}

Json trim_host(const Json& node) {
  Json kept = pick_object(node);
  kept["metadata"].erase("labels");
  if (const Json* spec = field(node, {"spec"})) {
    kept["spec"]["taints"] = pick_all(list_field(*spec, {"taints"}), {"key"});
  }
  if (const Json* status = field(node, {"status"})) {
    Json conditions = Json::array();
    for (const Json& condition : list_field(*status, {"conditions"})) {
      if (text_field(condition, {"type"}) == "Ready")
        conditions.push_back(pick(condition, {"type", "status", "lastTransitionTime"}));
    }
    kept["status"]["conditions"] = std::move(conditions);
  }
  return kept;
}

std::string job_index_value(const api::ObjectKey& job) { return "job:" + api::to_string(job); }
std::string host_index_value(const std::string& host) { return "host:" + host; }

std::vector<std::string> job_index(const Json& object) {
  const api::ObjectKey job = job_of(object);
  return job.name.empty() ? std::vector<std::string>() : std::vector<std::string>{job_index_value(job)};
}

std::vector<std::string> pod_index(const Json& pod) {
  std::vector<std::string> values = job_index(pod);
  if (const std::string host = text_field(pod, {"spec", "nodeName"}); !host.empty()) {
    values.push_back(host_index_value(host));
  }
  return values;
}

api::ObjectKey job_of(const Json& object) {
  return {text_field(object, {"metadata", "namespace"}), text_field(object, {"metadata", "labels", kJobLabel})};
}

}  // namespace lockstep::train
