#include "operator/train/observed.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "operator/kube/resource.h"
#include "operator/train/kueue.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kUnreachableTaint = "node.kubernetes.io/unreachable";
constexpr std::string_view kOutOfServiceTaint = "node.kubernetes.io/out-of-service";

std::optional<Json> if_controlled(const std::optional<Json>& object, const api::ObjectMeta& job) {
  if (!object || !is_controlled_by(api::meta_of(*object), job)) return std::nullopt;
  return object;
}

}  // namespace

bool is_controlled_by(const api::ObjectMeta& object, const api::ObjectMeta& job) {
  const api::OwnerReference* const owner = object.controller();
  return owner != nullptr && owner->uid == job.uid;
}

bool is_of_another_run(const api::ObjectMeta& object, const api::ObjectMeta& job) {
  const api::OwnerReference* const owner = object.controller();
  return owner != nullptr && owner->kind == api::kKind && owner->api_version == api::kApiVersion &&
         owner->name == job.name && owner->uid != job.uid;
}

std::vector<std::string> kinds_needed(const api::TrainJob& job) {
  // Also of a job that wants no budget: it may have had one before its spec changed.
  std::vector<std::string> kinds{kube::kDisruptionBudgets.front().crd_name()};
  if (wants_gang(job.spec)) kinds.push_back(pod_group_versions(job.spec).front().crd_name());
  return kinds;
}

NodeView view_of_node(const Json& node) {
  NodeView view;
  for (const Json& condition : list_field(node, {"status", "conditions"})) {
    if (text_field(condition, {"type"}) != "Ready") continue;
    const std::string status = text_field(condition, {"status"});
    view.ready = status == "True";
    if (status == "Unknown") view.unreachable = true;
    if (!view.ready) view.not_ready_since = api::parse_time(text_field(condition, {"lastTransitionTime"})).value_or(0);
  }
  view.cordoned = bool_field(node, {"spec", "unschedulable"});
  for (const Json& taint : list_field(node, {"spec", "taints"})) {
    const std::string key = text_field(taint, {"key"});
    if (key == kUnreachableTaint) view.unreachable = true;
    if (key == kOutOfServiceTaint) view.out_of_service = true;
  }
  return view;
}

bool is_silent(const NodeView& node) { return (!node.ready || node.unreachable) && !node.out_of_service; }

std::string Observed::token() const { return hmac_sha256_hex(settings.token_key, job.meta.uid); }

const PodView* Observed::pod(int node_rank, int attempt) const {
  const auto it = std::lower_bound(pods.begin(), pods.end(), std::pair(node_rank, attempt),
                                   [](const PodView& p, auto key) { return std::pair(p.node_rank, p.attempt) < key; });
  return it == pods.end() || it->node_rank != node_rank || it->attempt != attempt ? nullptr : &*it;
}

Observed observe(ClusterObjects objects, api::UnixSeconds now) {
  Observed o;
  o.now = now;
  o.job = std::move(objects.job);
  o.pods.reserve(objects.pods.size());
  for (PodView& pod : objects.pods) {
    const bool will_not_end = !has_ended(pod) && is_overdue(pod, now);
    if (is_of_another_run(pod.meta, o.job.meta)) {
      (will_not_end ? o.overdue_previous_pods : o.previous_pods).insert(pod.meta.name);
    }
    if (is_controlled_by(pod.meta, o.job.meta)) {
      o.pods.push_back(std::move(pod));
    } else if (!has_ended(pod) && !will_not_end && (pod.node_rank == 0 || any_pod_may_save(o.job.spec))) {
      o.previous_writer = pod.meta.name;
    }
  }
  std::sort(o.pods.begin(), o.pods.end(), [](const PodView& a, const PodView& b) {
    return std::tie(a.node_rank, a.attempt, a.meta.name) < std::tie(b.node_rank, b.attempt, b.meta.name);
  });
  o.service = if_controlled(objects.service, o.job.meta);
  o.network_policy = if_controlled(objects.network_policy, o.job.meta);
  o.nodes = std::move(objects.nodes);
  o.wanted_pods = o.job.spec.trainer.num_nodes;
  copy_kueue(std::move(objects.kueue), o);
  return o;
}

int agents_max(const Observed& o) {
  const std::optional<api::Elastic>& elastic = o.job.spec.elastic;
  return std::max(o.wanted_pods, elastic ? elastic->max_nodes : 0);
}

void copy_kueue(KueueView kueue, Observed& o) {
  o.kueue = std::move(kueue);
  o.job.spec.trainer.num_nodes = o.wanted_pods;
  o.job.spec.trainer.num_nodes = num_pods(o.job, o.kueue);
  const Workload* const workload = workload_of(o.job, o.kueue);
  o.admitted_pod = Json::object();
  o.queue_assigns_nodes = false;
  if (workload == nullptr || !workload->has_admission) return;
  o.queue_assigns_nodes = workload->assigns_nodes;
  // A failure (a flavour is missing or cannot be read) is reported by apply_queue.
  if (Result<Json> added = admitted_pod(*workload, o.kueue); added.ok()) o.admitted_pod = *std::move(added);
}

}  // namespace lockstep::train
