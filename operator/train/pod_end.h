// PodEnd: how the pod of a node rank's current attempt ended, or why it counts as ended. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/train/observed.h"

namespace lockstep::train {

enum class EndKind {
  kDone,        // the trainer ended with 0
  kExit,        // the trainer, or an init container, ended with another code
  kOverLimit,   // evicted, because it used more local storage than its own limit allows
  kRefused,     // by its kubelet, which had no room or device for it
  kDisrupted,   // evicted, preempted, drained: the cause is the cluster, not the program
  kDeleted,     // somebody deleted it
  kNodeLost,    // its node went away
  kNotStarted,  // stuck_pod.h
};

struct PodEnd {
  EndKind kind = EndKind::kExit;
  int node_rank = 0;
  int attempt = 0;
  std::string pod;
  std::string node;
  std::optional<int> exit_code;
  bool is_of_trainer = true;             // exit_code is the trainer's, not an init container's or a sidecar's
  std::string reason;                    // CamelCase
  std::vector<std::string> pod_reasons;  // Kubernetes' own words for it, which rules may name
  std::string message;                   // a sentence, or the program's own last message
  std::optional<int> rank;
  std::optional<int64_t> step;
  bool job_ended = false;  // its agent ended because the run did, for all pods
  api::UnixSeconds time = 0;
};

// nullopt: the pod has not ended (or has not begun). While there is a fresh report of pod 0, a node that is not ready
// counts as lost at once, unless the report has the pod as a member of the group: the agents' heartbeats are more
// reliable than the kubelet's. Without one (other launchers have none) it counts as lost only after
// health.notReadyTimeoutSeconds; and later, when the kubelets of most nodes are silent (kOutageSeconds).
std::optional<PodEnd> find_end(const PodView& pod, const Observed& observed);
// Is its node lost, or is it overdue (pod_view.h)? Then nothing need wait for it. find_end may name another kind of
// end: Kubernetes marks the pods of a dead node as disrupted, and a trainer may have ended while a sidecar still ran.
bool is_lost(const PodView& pod, const Observed& observed);
// When find_end will count the pod's node as lost if nothing else changes; nullopt: it does so already, or it has no
// reason to.
std::optional<api::UnixSeconds> when_believed_lost(const PodView& pod, const Observed& observed);
// With what is known of the pod whatever its end.
PodEnd new_end(EndKind kind, const PodView& pod, api::UnixSeconds time);
// The end of a pod that was seen before and does not exist any more.
PodEnd end_of_missing_pod(const std::string& pod, int node_rank, int attempt, api::UnixSeconds now);

// "Pod sasrec-1-0 on node-b ended with 13 (OutOfMemory): …"
std::string describe(const PodEnd& end);

}  // namespace lockstep::train
