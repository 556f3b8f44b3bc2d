#include "operator/train/desired_service.h"

#include <algorithm>

#include "operator/kube/resource.h"
#include "operator/train/object_names.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

Json port(const char* name, int number) {
  return {{"name", name}, {"port", number}, {"targetPort", number}, {"protocol", "TCP"}};
}

Json selector(const api::TrainJob& job) {
  Json labels = {{std::string(kJobLabel), job.meta.name}, {std::string(kServingLabel), "true"}};
  if (job.spec.trainer.launcher == api::Launcher::kLockstep) labels[std::string(kNodeRankLabel)] = "0";
  return labels;
}

}  // namespace

Json desired_service(const api::TrainJob& job) {
  Json ports = Json::array();
  if (job.spec.trainer.launcher == api::Launcher::kLockstep) {
    ports.push_back(port("coordinator", job.spec.trainer.coordinator_port));
    ports.push_back(port("status", job.spec.trainer.status_port));
  } else {
    ports.push_back(port("master", kMasterPort));
  }
  return {{"apiVersion", kube::kServices.api_version()},
          {"kind", kube::kServices.kind},
          {"metadata", owned_metadata(job.meta, job.meta.name)},
          {"spec",
           {{"clusterIP", "None"},
            {"publishNotReadyAddresses", true},
            {"selector", selector(job)},
            {"ports", std::move(ports)}}}};
}

bool service_differs(const Json& service, const Json& desired) {
  const Json& wanted = desired["spec"];
  const Json* const publishes = field(service, {"spec", "publishNotReadyAddresses"});
  if (publishes == nullptr || *publishes != wanted["publishNotReadyAddresses"]) return true;
  // As spec.trainer had them when the Service was made.
  const Json* const ports = field(service, {"spec", "ports"});
  if (ports != nullptr && *ports != wanted["ports"]) return true;
  const Json* const selector = field(service, {"spec", "selector"});
  if (selector == nullptr) return true;
  Json of_all = wanted["selector"];
  of_all.erase(std::string(kNodeRankLabel));
  return *selector != wanted["selector"] && *selector != of_all;
}

bool selects(const Json& service, const PodView& pod) {
  const Json* const selector = field(service, {"spec", "selector"});
  if (selector == nullptr || selector->empty()) return false;
  Json labels = {{std::string(kJobLabel), pod.job.name}, {std::string(kNodeRankLabel), std::to_string(pod.node_rank)}};
  if (pod.serving) labels[std::string(kServingLabel)] = "true";
  return std::all_of(selector->items().begin(), selector->items().end(), [&](const auto& wanted) {
    const auto label = labels.find(wanted.key());
    return label != labels.end() && wanted.value() == *label;
  });
}

}  // namespace lockstep::train
