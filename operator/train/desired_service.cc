#include "operator/train/desired_service.h"

#include "operator/train/field.h"
#include "operator/train/object_names.h"

namespace lockstep::train {
namespace {

Json port(const char* name, int number) {
  return {{"name", name}, {"port", number}, {"targetPort", number}, {"protocol", "TCP"}};
}

}  // namespace

Json desired_service(const api::TrainJob& job) {
  Json ports = Json::array();
  if (job.spec.trainer.launcher == api::Launcher::kLockstep) {
    ports.push_back(port("coordinator", kCoordinatorPort));
    ports.push_back(port("status", kStatusPort));
  } else {
    ports.push_back(port("master", kMasterPort));
  }
  return {{"apiVersion", "v1"},
          {"kind", "Service"},
          {"metadata",
           {{"name", job.meta.name},
            {"namespace", job.meta.ns},
            {"labels", owned_labels(job.meta)},
            {"ownerReferences", owner_references(job.meta)}}},
          {"spec",
           {{"clusterIP", "None"},
            {"publishNotReadyAddresses", true},
            {"selector", {{std::string(kJobLabel), job.meta.name}, {std::string(kServingLabel), "true"}}},
            {"ports", std::move(ports)}}}};
}

bool service_differs(const Json& service, const Json& desired) {
  for (const std::string_view name : {"publishNotReadyAddresses", "selector"}) {
    const Json* const is = field(service, {"spec", name});
    if (is == nullptr || *is != *field(desired, {"spec", name})) return true;
  }
  return false;
}

}  // namespace lockstep::train
