// PodView: what the operator reads of a pod. Pure.
//
// A user may give a pod any number of labels, owners and containers, and texts of any size. A view keeps texts of at
// most 4,096 bytes, as a kubelet cuts a termination message.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/api/object_meta.h"
#include "runner/base/json.h"

namespace lockstep::train {

enum class PodPhase { kPending, kRunning, kSucceeded, kFailed, kUnknown };

// An agent's report in its container's termination message. The program may have been cut short: every part may be
// missing.
struct TerminationReport {
  std::optional<int> exit_code;
  std::string reason;
  std::string message;
  std::optional<int> rank;
  std::optional<int64_t> step;
  bool job_ended = false;  // the run is over for all pods: a replacement of this pod would not help
};
// Nothing when `text` is not such a JSON object.
std::optional<TerminationReport> parse_termination_report(const std::string& text);

// How the trainer container ended, or, when it never began, an init container.
struct ContainerEnd {
  std::string container;
  int exit_code = 0;
  std::string reason;   // of the container: "Error", "OOMKilled", "Completed"
  std::string message;  // its termination message
  api::UnixSeconds time = 0;
};

// Why a container has not started: "ImagePullBackOff" and the kubelet's words. The trainer's reason comes before those
// of sidecars.
struct Waiting {
  std::string container;
  std::string reason;
  std::string message;
};

struct PodView {
  api::ObjectMeta meta;  // without labels, annotations, finalizers, and owners that do not control it
  api::ObjectKey job;    // by its label; an empty name: it has none
  bool serving = false;  // the Service may select it (kServingLabel)
  int node_rank = 0;     // LOCKSTEP_NODE_RANK; -1: its labels do not say its node rank and attempt
  int attempt = 0;
  int64_t generation = 0;        // of the TrainJob that it was made from; 0: it does not say
  int num_nodes = 0;             // of the job, as its environment says; 0: it does not
  std::set<std::string> avoids;  // Kubernetes nodes that its affinity keeps it away from
  bool deleting = false;         // it has a deletionTimestamp, or this operator has just deleted it
  int64_t deletion_grace_seconds = 0;
  api::UnixSeconds deletion_seen_at = 0;  // when this operator first saw the deletionTimestamp; 0: not known

  PodPhase phase = PodPhase::kUnknown;
  bool ready = false;  // its trainer is; the pod's own Ready condition also speaks of its sidecars
  bool scheduled = false;
  api::UnixSeconds scheduled_at = 0;  // 0: it is not scheduled, or nobody says since when
  std::string unschedulable;          // the scheduler's words while it is not
  std::string pod_group;              // its gang's, whichever scheduler's; empty: none
  std::string gates;  // spec.schedulingGates, "a, b": no scheduler looks at the pod before they are removed
  // Its kubelet has not set up its volumes and its network (condition PodReadyToStartContainers), or has not looked at
  // it at all: it neither pulls an image nor runs an init container. False where the kubelet does not say.
  bool is_unprepared = false;
  bool is_prepared = false;  // that condition is True
  // While the trainer has not begun: the init container that is at work, and since when; "": none.
  std::string init_container;
  api::UnixSeconds init_since = 0;
  bool started = false;    // the trainer container runs, or has run
  bool all_ended = false;  // all its containers have ended; the kubelet says so before it says Succeeded or Failed
  std::string node;        // spec.nodeName
  std::string ip;
  api::UnixSeconds started_at = 0;     // status.startTime: the kubelet has seen it
  api::UnixSeconds running_since = 0;  // of the trainer container; 0: it does not run, or nobody says since when
  std::string reason;                  // status.reason: "Evicted", "NodeShutdown", …
  std::string message;
  std::string disruption;  // reason of a true DisruptionTarget condition
  std::string disruption_message;
  std::optional<Waiting> waiting;
  std::optional<ContainerEnd> end;
};

PodView view_of_pod(const Json& pod);
// Those of `pods` whose labels say which node rank they have.
std::vector<PodView> views_of_pods(const std::vector<Json>& pods);

// Succeeded or Failed, as its kubelet says.
bool has_ended(const PodView& pod);

// Does the trainer container run? The phase does not say so: a pod with a sidecar whose image cannot be pulled stays
// Pending while its trainer trains.
bool is_trainer_running(const PodView& pod);

// From when on a pod that is being deleted is overdue, if it still exists: its grace period is over, and its kubelet
// does not answer. nullopt: it is not being deleted. deletionTimestamp has the API server's clock, and `now` this
// operator's, which may be ahead: so the grace period must also be over since the operator saw the deletion.
std::optional<api::UnixSeconds> overdue_at(const PodView& pod);
bool is_overdue(const PodView& pod, api::UnixSeconds now);

}  // namespace lockstep::train
