#include "operator/train/trim.h"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"

namespace lockstep::train {
namespace {

constexpr const char* kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";

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

// nullptr: `object` has no such field, or it is no object.
Json* object_in(Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_object() ? nullptr : &*found;
}

Json pick_object(Json& object) {
  Json kept = pick(object, {"apiVersion", "kind"});
  Json* const metadata = object_in(object, "metadata");
  if (metadata == nullptr) return kept;
  Json& to = kept["metadata"] = pick(*metadata, {"name", "namespace", "uid", "resourceVersion", "deletionTimestamp"});
  if (Json* const labels = object_in(*metadata, "labels")) to["labels"] = pick(*labels, {kJobLabel});
  for (const Json& owner : list_field(*metadata, {"ownerReferences"})) {
    if (bool_field(owner, {"controller"})) to["ownerReferences"].push_back(owner);
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

}  // namespace

JobView view_of_job(Json job) {
  job = trim_job(std::move(job));
  JobView view{.meta = api::meta_of(job), .job = api::trainjob_from_json(job), .unreadable = {}};
  if (!view.job.ok()) view.unreadable = std::move(job);
  return view;
}

Json trim_whole(Json object) {
  Json* const metadata = object_in(object, "metadata");
  if (metadata == nullptr) return object;
  metadata->erase("managedFields");
  if (Json* const annotations = object_in(*metadata, "annotations")) annotations->erase(kLastApplied);
  return object;
}

Json trim_service(Json service) {
  Json kept = pick_object(service);
  if (Json* const spec = object_in(service, "spec"))
    kept["spec"] = if_small(pick(*spec, {"ports", "publishNotReadyAddresses", "selector"}));
  return kept;
}

Json trim_network_policy(Json policy) {
  Json kept = pick_object(policy);
  if (Json* const spec = object_in(policy, "spec")) kept["spec"] = if_small(std::move(*spec));
  return kept;
}

std::string job_index_value(const api::ObjectKey& job) { return "job:" + api::to_string(job); }
std::string node_index_value(const std::string& node) { return "node:" + node; }

std::vector<std::string> job_index(const Json& object) {
  const api::ObjectKey job = job_of(object);
  return job.name.empty() ? std::vector<std::string>() : std::vector<std::string>{job_index_value(job)};
}

std::vector<std::string> pod_index(const PodView& pod) {
  std::vector<std::string> values;
  if (!pod.job.name.empty() && pod.node_rank >= 0) values.push_back(job_index_value(pod.job));
  if (!pod.node.empty()) values.push_back(node_index_value(pod.node));
  return values;
}

api::ObjectKey job_of(const Json& object) {
  return {text_field(object, {"metadata", "namespace"}), text_field(object, {"metadata", "labels", kJobLabel})};
}

}  // namespace lockstep::train
