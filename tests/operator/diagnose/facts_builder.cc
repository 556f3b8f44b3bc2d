#include "tests/operator/diagnose/facts_builder.h"

#include "operator/api/defaults.h"

namespace lockstep::diagnose {

FactsBuilder::FactsBuilder() {
  facts.ns = "team";
  facts.name = "sasrec";
  facts.now = kNow;
  Json job = Json::parse(R"({
    "apiVersion": "lockstep.dev/v1", "kind": "TrainJob",
    "metadata": {"name": "sasrec", "namespace": "team", "uid": "u", "generation": 1},
    "spec": {"trainer": {"image": "i", "numNodes": 2}},
    "status": {"observedGeneration": 1, "phase": "Running", "conditions": [],
               "nodes": {"desired": 2, "ready": 2, "active": 2, "succeeded": 0, "failed": 0},
               "restarts": {"total": 0, "process": 0, "pod": 0, "gang": 0}}})");
  api::apply_trainjob_defaults(job);
  job["metadata"]["creationTimestamp"] = api::format_time(kNow - 600);
  job["status"]["startTime"] = api::format_time(kNow - 600);
  facts.job = std::move(job);
  condition("PodsReady", "True", "AllPodsReady");
  condition("Running", "True", "StepCommitted");
  for (const char* type : {"Suspended", "Recovering", "Degraded", "Complete", "Failed"}) condition(type, "False", "No");
  for (const int node_rank : {0, 1}) {
    pod(node_rank, 0, R"({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"},
                     {"type": "PodScheduled", "status": "True"}],
                     "containerStatuses": [{"name": "trainer", "ready": true, "state": {"running": {}}}]})");
  }
}

FactsBuilder& FactsBuilder::spec(const char* json) {
  (*facts.job)["spec"].merge_patch(Json::parse(json));
  return *this;
}

FactsBuilder& FactsBuilder::status(const char* json) {
  (*facts.job)["status"].merge_patch(Json::parse(json));
  return *this;
}

FactsBuilder& FactsBuilder::metadata(const char* json) {
  (*facts.job)["metadata"].merge_patch(Json::parse(json));
  return *this;
}

FactsBuilder& FactsBuilder::condition(const std::string& type, const std::string& status, const std::string& reason,
                                      const std::string& message, api::UnixSeconds age) {
  Json& conditions = (*facts.job)["status"]["conditions"];
  for (size_t i = 0; i < conditions.size(); ++i) {
    if (conditions[i]["type"] == type) conditions.erase(i);
  }
  conditions.push_back({{"type", type},
                        {"status", status},
                        {"reason", reason},
                        {"message", message},
                        {"lastTransitionTime", api::format_time(kNow - age)}});
  return *this;
}

FactsBuilder& FactsBuilder::no_pods() {
  facts.pods.clear();
  return *this;
}

FactsBuilder& FactsBuilder::pod(int node_rank, int attempt, const char* status) {
  const std::string name = "sasrec-" + std::to_string(node_rank) + "-" + std::to_string(attempt);
  std::erase_if(facts.pods, [&](const Json& one) { return one["metadata"]["name"] == name; });
  const Json owner = {
      {"apiVersion", "lockstep.dev/v1"}, {"kind", "TrainJob"}, {"name", "sasrec"}, {"uid", "u"}, {"controller", true}};
  facts.pods.push_back({{"metadata",
                         {{"name", name},
                          {"namespace", "team"},
                          {"uid", name},
                          {"labels",
                           {{"lockstep.dev/job", "sasrec"},
                            {"lockstep.dev/node", std::to_string(node_rank)},
                            {"lockstep.dev/attempt", std::to_string(attempt)}}},
                          {"ownerReferences", Json::array({owner})}}},
                        {"spec", {{"nodeName", "node-" + std::to_string(node_rank)}}},
                        {"status", Json::parse(status)}});
  return *this;
}

FactsBuilder& FactsBuilder::ended(int node_rank, int attempt, int code, const std::string& reason,
                                  const std::string& message) {
  pod(node_rank, attempt, R"({"phase": "Failed"})");
  facts.pods.back()["status"]["containerStatuses"] =
      Json::array({{{"name", "trainer"},
                    {"state",
                     {{"terminated",
                       {{"exitCode", code},
                        {"reason", reason},
                        {"message", message},
                        {"finishedAt", api::format_time(kNow - 50)}}}}}}});
  return *this;
}

FactsBuilder& FactsBuilder::failure(const char* json) {
  Json one = Json::parse(json);
  one["time"] = api::format_time(kNow - 50);
  (*facts.job)["status"]["recentFailures"].push_back(std::move(one));
  return *this;
}

FactsBuilder& FactsBuilder::event(const std::string& reason, const std::string& message, bool is_warning,
                                  api::UnixSeconds age, const std::string& pod) {
  const std::string time = api::format_time(kNow - age);
  facts.events.push_back(
      {{"type", is_warning ? "Warning" : "Normal"},
       {"reason", reason},
       {"message", message},
       {"count", 1},
       {"firstTimestamp", time},
       {"lastTimestamp", time},
       {"involvedObject", {{"kind", pod.empty() ? "TrainJob" : "Pod"}, {"name", pod.empty() ? "sasrec" : pod}}}});
  return *this;
}

}  // namespace lockstep::diagnose
