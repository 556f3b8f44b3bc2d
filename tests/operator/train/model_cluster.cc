#include "tests/operator/train/model_cluster.h"

#include <algorithm>

#include "operator/train/desired_service.h"
#include "operator/train/object_names.h"
#include "operator/train/trim.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

bool is_over(const Json& pod) {
  const std::string phase = text_field(pod, {"status", "phase"});
  return phase == "Succeeded" || phase == "Failed";
}

bool is_deleting(const Json& pod) { return field(pod, {"metadata", "deletionTimestamp"}) != nullptr; }

Json trainer(bool ready, Json state) {
  return Json::array({{{"name", "trainer"}, {"ready", ready}, {"state", std::move(state)}}});
}

void set_condition(Json& pod, const char* type, const char* status) {
  for (Json& condition : pod["status"]["conditions"]) {
    if (condition["type"] == type) {
      condition["status"] = status;
      return;
    }
  }
  pod["status"]["conditions"].push_back({{"type", type}, {"status", status}});
}

void end_container(Json& pod, int code, api::UnixSeconds now) {
  pod["status"]["phase"] = code == 0 ? "Succeeded" : "Failed";
  set_condition(pod, "Ready", "False");
  pod["status"]["containerStatuses"] =
      trainer(false, {{"terminated", {{"exitCode", code}, {"finishedAt", api::format_time(now)}}}});
}

}  // namespace

ModelCluster::ModelCluster(unsigned seed, Json spec) : random_(seed) {
  for (const char* name : {"node-a", "node-b", "node-c", "node-d"}) nodes_[name] = true;
  jobs_.push_back(
      {{"metadata",
        {{"name", "sim"}, {"namespace", "ns"}, {"uid", "job"}, {"generation", 1}, {"resourceVersion", "1"}}},
       {"spec", std::move(spec)}});
}

void ModelCluster::note(const std::string& name) {
  const auto it = pods_.find(name);
  changes_.push_back({name, it == pods_.end() ? std::nullopt : std::optional<Json>(it->second)});
}

bool ModelCluster::write_status(int64_t resource_version, const api::TrainJobStatus& status) {
  if (resource_version != static_cast<int64_t>(jobs_.size())) return false;
  Json job = jobs_.back();
  job["status"] = api::to_json(status);
  job["metadata"]["resourceVersion"] = std::to_string(jobs_.size() + 1);
  jobs_.push_back(std::move(job));
  return true;
}

void ModelCluster::change_spec(const Json& patch) {
  Json job = jobs_.back();
  job["spec"].merge_patch(patch);
  job["metadata"]["generation"] = job["metadata"]["generation"].get<int>() + 1;
  job["metadata"]["resourceVersion"] = std::to_string(jobs_.size() + 1);
  jobs_.push_back(std::move(job));
}

std::optional<Json> ModelCluster::create_pod(const Json& pod) {
  const std::string name = api::meta_of(pod).name;
  if (pods_.count(name) > 0) return std::nullopt;
  Json made = {{"metadata", pod["metadata"]}};
  if (const Json* const group = field(pod, {"spec", "schedulingGroup"})) made["spec"]["schedulingGroup"] = *group;
  made["metadata"]["uid"] = "pod-" + std::to_string(++uids_);
  made["status"] = {{"phase", "Pending"}, {"conditions", Json::array()}};
  pods_[name] = made;
  note(name);
  return made;
}

bool ModelCluster::stop_serving(const std::string& name, const std::string& uid) {
  const auto it = pods_.find(name);
  if (it == pods_.end()) return true;
  if (it->second["metadata"]["uid"] != uid) return false;
  it->second["metadata"]["labels"].erase(std::string(kServingLabel));
  note(name);
  return true;
}

bool ModelCluster::delete_pod(const std::string& name, const std::string& uid) {
  const auto it = pods_.find(name);
  if (it == pods_.end()) return true;
  if (it->second["metadata"]["uid"] != uid) return false;
  if (is_over(it->second)) {
    pods_.erase(it);
  } else if (!is_deleting(it->second)) {
    it->second["metadata"]["deletionTimestamp"] = api::format_time(now_ + 30);
  }
  note(name);
  return true;
}

void ModelCluster::fail(const std::string& pod, int code, const std::string& termination_message) {
  end_container(pods_.at(pod), code, now_);
  pods_.at(pod)["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = termination_message;
  note(pod);
}

void ModelCluster::inject_failure(const std::string& name) {
  Json& pod = pods_.at(name);
  ++failures_;
  switch (pick(6)) {
    case 0:
      end_container(pod, 10, now_);
      break;
    case 1:  // kubectl delete pod; a second one gives no more time
      if (!is_deleting(pod)) pod["metadata"]["deletionTimestamp"] = api::format_time(now_ + 30);
      break;
    case 2:
      pods_.erase(name);  // kubectl delete pod --force
      break;
    case 3:
      pod["status"]["reason"] = "Evicted";
      pod["status"]["message"] = "The node was low on resource: memory.";
      set_condition(pod, "DisruptionTarget", "True");
      end_container(pod, 137, now_);
      break;
    default:
      end_container(pod, 1, now_);
  }
  note(name);
}

// Pending → on a host → running → ready → done.
void ModelCluster::start_or_end(Json& pod, bool is_calm) {
  const std::string node = text_field(pod, {"spec", "nodeName"});
  if (node.empty()) {
    std::vector<std::string> alive;
    for (const auto& [name, is_alive] : nodes_) {
      if (is_alive) alive.push_back(name);
    }
    if (alive.empty()) return;
    pod["spec"]["nodeName"] = alive[static_cast<size_t>(pick(static_cast<int>(alive.size())))];
    set_condition(pod, "PodScheduled", "True");
    pod["status"]["startTime"] = api::format_time(now_);
    return;
  }
  if (!nodes_.at(node)) return;
  if (is_deleting(pod)) return end_container(pod, 143, now_);
  if (text_field(pod, {"status", "phase"}) == "Pending") {
    pod["status"]["phase"] = "Running";
    pod["status"]["containerStatuses"] = trainer(false, {{"running", Json::object()}});
    return;
  }
  const int wanted = static_cast<int>(number_field(job(), {"spec", "trainer", "numNodes"}).value_or(1));
  const auto ready = [](const auto& entry) {
    const Json& conditions = list_field(entry.second, {"status", "conditions"});
    return !is_deleting(entry.second) && std::any_of(conditions.begin(), conditions.end(), [](const Json& c) {
      return c["type"] == "Ready" && c["status"] == "True";
    });
  };
  const bool all_ready = std::count_if(pods_.begin(), pods_.end(), ready) >= wanted;
  const bool someone_is_done = std::any_of(pods_.begin(), pods_.end(), [](const auto& entry) {
    return text_field(entry.second, {"status", "phase"}) == "Succeeded";
  });
  if (is_calm && (all_ready || someone_is_done)) return end_container(pod, 0, now_);
  set_condition(pod, "Ready", "True");
  pod["status"]["containerStatuses"] = trainer(true, {{"running", Json::object()}});
}

void ModelCluster::live(bool is_calm) {
  now_ += 1 + pick(10);
  if (!is_calm && pick(12) == 0) {
    auto node = std::next(nodes_.begin(), pick(static_cast<int>(nodes_.size())));
    node->second = !node->second;
    nodes_since_[node->first] = now_;
    if (!node->second) ++failures_;
  }
  if (is_calm) {
    for (auto& [name, is_alive] : nodes_) is_alive = true;
  }
  if (pods_.empty()) return;
  const std::string name = std::next(pods_.begin(), pick(static_cast<int>(pods_.size())))->first;
  Json& pod = pods_.at(name);
  if (is_over(pod)) {
    if (!is_deleting(pod)) return;
    pods_.erase(name);
    return note(name);
  }
  if (!is_calm && pick(8) == 0) return inject_failure(name);
  start_or_end(pod, is_calm);
  note(name);
}

std::vector<Json> ModelCluster::nodes() const {
  std::vector<Json> list;
  for (const auto& [name, is_alive] : nodes_) {
    const auto at = nodes_since_.find(name);
    const api::UnixSeconds since = at == nodes_since_.end() ? now_ : at->second;
    list.push_back({{"metadata", {{"name", name}}},
                    {"status",
                     {{"conditions", Json::array({{{"type", "Ready"},
                                                   {"status", is_alive ? "True" : "Unknown"},
                                                   {"lastTransitionTime", api::format_time(since)}}})}}}});
  }
  return list;
}

bool ModelCluster::is_finished() const {
  const Json& conditions = list_field(job(), {"status", "conditions"});
  return std::any_of(conditions.begin(), conditions.end(), [](const Json& c) {
    return (c["type"] == "Complete" || c["type"] == "Failed") && c["status"] == "True";
  });
}

std::map<int, int> ModelCluster::live_serving_pods() const {
  std::map<int, int> count;
  for (const auto& [name, pod] : pods_) {
    const PodView view = view_of_pod(pod);
    if (service_ && selects(*service_, view) && !is_over(pod)) ++count[view.node_rank];
  }
  return count;
}

}  // namespace lockstep::train
