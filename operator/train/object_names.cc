#include "operator/train/object_names.h"

namespace lockstep::train {

std::string pod_hostname(const std::string& job, int node_rank) { return job + "-" + std::to_string(node_rank); }

std::string pod_name(const std::string& job, int node_rank, int attempt) {
  return pod_hostname(job, node_rank) + "-" + std::to_string(attempt);
}

std::string pod0_address(const api::ObjectMeta& job) {
  return pod_hostname(job.name, 0) + "." + job.name + "." + job.ns + ".svc";
}

std::string pod_selector(const std::string& job) {
  return std::string(kJobLabel) + "=" + job + "," + std::string(kServingLabel) + "=true";
}

Json owned_labels(const api::ObjectMeta& job) {
  return {{"app.kubernetes.io/name", "trainjob"},
          {"app.kubernetes.io/instance", job.name},
          {"app.kubernetes.io/managed-by", "lockstep-operator"},
          {std::string(kJobLabel), job.name}};
}

Json owner_references(const api::ObjectMeta& job) {
  return Json::array({{{"apiVersion", std::string(api::kApiVersion)},
                       {"kind", std::string(api::kKind)},
                       {"name", job.name},
                       {"uid", job.uid},
                       {"controller", true},
                       {"blockOwnerDeletion", true}}});
}

Json owned_metadata(const api::ObjectMeta& job, const std::string& name) {
  return {
      {"name", name}, {"namespace", job.ns}, {"labels", owned_labels(job)}, {"ownerReferences", owner_references(job)}};
}

}  // namespace lockstep::train
