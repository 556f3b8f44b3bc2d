#include "operator/train/stuck_pod.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "runner/base/json.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kHostnameLabel = "kubernetes.io/hostname";

const Json& template_volumes(const api::TrainJobSpec& spec) {
  return list_field(spec.trainer.pod_template, {"spec", "volumes"});
}

bool has_any(const Json& volume, std::initializer_list<const char*> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&volume](const char* kind) { return volume.contains(kind); });
}

// Does a term of a node selector ask for nodes by their names?
bool names_nodes(const Json& term) {
  const auto has_name = [](const Json& requirement) {
    const std::string key = text_field(requirement, {"key"});
    return text_field(requirement, {"operator"}) == "In" && (key == kHostnameLabel || key == "metadata.name");
  };
  return std::any_of(list_field(term, {"matchExpressions"}).begin(), list_field(term, {"matchExpressions"}).end(),
                     has_name) ||
         std::any_of(list_field(term, {"matchFields"}).begin(), list_field(term, {"matchFields"}).end(), has_name);
}

// Does the spec choose the node, by its name or beside other pods?
bool is_placed_by_spec(const Observed& o) {
  const api::TrainJobSpec& spec = o.job.spec;
  if (o.queue_assigns_nodes || spec.scheduling.topology == kHostnameLabel) return true;
  const Json& pod = spec.trainer.pod_template;
  if (field(pod, {"spec", "nodeSelector", kHostnameLabel}) != nullptr) return true;
  constexpr const char* kRequired = "requiredDuringSchedulingIgnoredDuringExecution";
  const Json& terms = list_field(pod, {"spec", "affinity", "nodeAffinity", kRequired, "nodeSelectorTerms"});
  const Json& beside = list_field(pod, {"spec", "affinity", "podAffinity", kRequired});
  return std::any_of(terms.begin(), terms.end(), names_nodes) ||
         std::any_of(beside.begin(), beside.end(),
                     [](const Json& term) { return text_field(term, {"topologyKey"}) == kHostnameLabel; });
}

// The volumes of the template are the same for all pods, so that a peer shows what they allow. Pod 0's checkpoint
// volume is its own: a claim may be bound to this node, or in use there, and a path on the node is nowhere else.
bool is_tied_by_volumes(const PodView& pod, const std::vector<const PodView*>& current, const Observed& o) {
  const api::TrainJobSpec& spec = o.job.spec;
  if (pod.node_rank == 0 && spec.checkpoint && has_any(spec.checkpoint->volume, {"persistentVolumeClaim", "hostPath"}))
    return true;
  const Json& volumes = template_volumes(spec);
  const bool has_claim = std::any_of(volumes.begin(), volumes.end(),
                                     [](const Json& volume) { return has_any(volume, {"persistentVolumeClaim"}); });
  return has_claim && std::none_of(current.begin(), current.end(), [&pod](const PodView* peer) {
           return peer != nullptr && peer->started && peer->node != pod.node;
         });
}

// While the volumes are set up, a ConfigMap or Secret that is missing looks like a fault of the node. None is missing
// if a peer has started since this pod was scheduled.
bool may_lack_an_object(const PodView& pod, const std::vector<const PodView*>& current, const Observed& o) {
  if (!pod.is_unprepared) return false;
  const Json& volumes = template_volumes(o.job.spec);
  const bool needs_object = std::any_of(volumes.begin(), volumes.end(), [](const Json& volume) {
    return has_any(volume, {"configMap", "secret", "projected"});
  });
  return needs_object && std::none_of(current.begin(), current.end(), [&pod](const PodView* peer) {
           return peer != nullptr && peer->running_since >= pod.scheduled_at;
         });
}

}  // namespace

std::optional<api::UnixSeconds> when_stuck(const PodView& pod, const Observed& o) {
  // What a runtime says when it cannot create or start a container whose image it has.
  const bool cannot_run =
      pod.waiting && (pod.waiting->reason == "CreateContainerError" || pod.waiting->reason == "RunContainerError");
  const bool waits_for_node = pod.waiting ? cannot_run : pod.is_unprepared;
  if (!waits_for_node || !pod.scheduled || pod.scheduled_at == 0) return std::nullopt;
  return pod.scheduled_at + o.job.spec.health.startup_timeout_seconds / 3;
}

bool may_move(const PodView& pod, const std::vector<const PodView*>& current, const Observed& o) {
  return !is_placed_by_spec(o) && !is_tied_by_volumes(pod, current, o) && !may_lack_an_object(pod, current, o);
}

PodEnd end_of_stuck_pod(const PodView& pod, int num_started, int num_others, const Observed& o) {
  PodEnd end = new_end(EndKind::kNotStarted, pod, o.now);
  end.reason = "NotStarted";
  end.pod_reasons = {"NotStarted"};
  end.message = "it has not started within " + std::to_string(o.now - pod.scheduled_at) +
                " s of being scheduled (the limit is a third of health.startupTimeoutSeconds), and " +
                std::to_string(num_started) + " of the " + std::to_string(num_others) + " other pods have";
  if (pod.waiting) end.message += ": " + pod.waiting->reason + ": " + pod.waiting->message;
  return end;
}

}  // namespace lockstep::train
