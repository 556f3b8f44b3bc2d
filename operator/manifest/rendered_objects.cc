#include "operator/manifest/rendered_objects.h"

#include <utility>

#include "operator/train/desired_disruption_budget.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_pod.h"
#include "operator/train/desired_service.h"
#include "operator/train/elastic.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"
#include "operator/train/observed.h"
#include "operator/train/pod_group.h"
#include "runner/contract/env_names.h"

namespace lockstep::manifest {
namespace {

// Replaces the values that only a cluster has by placeholders.
void put_placeholders(Json& pod, bool is_made) {
  for (Json& container : pod["spec"]["containers"]) {
    if (container["name"] != train::kTrainerContainer) continue;
    for (Json& variable : container["env"]) {
      if (variable["name"] == env::kToken) variable["value"] = std::string(kTokenPlaceholder);
      if (variable["name"] == env::kRun && !is_made) variable["value"] = std::string(kRunPlaceholder);
    }
  }
}

Status set_nodes(int nodes, api::TrainJobSpec& spec) {
  if (spec.elastic && (nodes < spec.elastic->min_nodes || nodes > spec.elastic->max_nodes)) {
    return invalid("--nodes " + std::to_string(nodes), "expected " + std::to_string(spec.elastic->min_nodes) + " to " +
                                                           std::to_string(spec.elastic->max_nodes) +
                                                           ", the bounds of spec.elastic");
  }
  spec.trainer.num_nodes = nodes;
  return {};
}

}  // namespace

Result<std::vector<Json>> rendered_objects(const api::TrainJob& job, const RenderOptions& options) {
  train::Observed observed;
  observed.job = job;
  api::ObjectMeta& meta = observed.job.meta;
  if (!options.ns.empty()) meta.ns = options.ns;
  if (meta.ns.empty()) meta.ns = kDefaultNamespace;
  if (meta.uid.empty()) meta.uid = kUidPlaceholder;
  if (meta.generation == 0) meta.generation = 1;  // as the API server numbers a new object
  if (options.nodes) TRY(set_nodes(*options.nodes, observed.job.spec));
  const api::TrainJobSpec& spec = observed.job.spec;

  std::vector<Json> objects;
  if (train::has_queue(observed.job)) {
    TRY_ASSIGN(const Json pod, train::unadmitted_pod(observed));
    objects.push_back(train::desired_workload(observed.job, spec.trainer.num_nodes, pod, {}));
    if (meta.created == 0) objects.back()["metadata"]["name"] = std::string(kWorkloadNamePlaceholder);
    if (spec.managed_by == train::kMultiKueue) return objects;  // the pods are made in another cluster
  }
  objects.push_back(train::desired_service(observed.job));
  if (spec.network_policy == api::NetworkPolicyMode::kIntraJob) {
    objects.push_back(train::desired_network_policy(observed.job, observed.settings));
  }
  if (spec.disruption.budget == api::DisruptionBudget::kOneAtATime) {
    objects.push_back(train::desired_disruption_budget(observed.job));
  }
  if (train::wants_gang(spec)) {
    const std::string version = train::pod_group_versions(spec).front().api_version();
    objects.push_back(train::desired_pod_group(observed.job, version, 0, train::pods_needed(spec)));
  }
  for (int node_rank = 0; node_rank < spec.trainer.num_nodes; ++node_rank) {
    TRY_ASSIGN(Json pod, train::desired_pod(observed, {.node_rank = node_rank, .attempt = options.attempt}));
    put_placeholders(pod, meta.created != 0);
    objects.push_back(std::move(pod));
  }
  return objects;
}

}  // namespace lockstep::manifest
