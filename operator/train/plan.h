// make_plan: from the observed state of a TrainJob to the actions. Pure: every decision, and its reason in words.
//
// What makes it safe to die at any point: what a policy decides is in `status` before anything follows from it.
//   1. A pod is made only for the attempt that status.attempts names, so the attempt is written first. The write has
//      the resourceVersion that was read: the write of a plan made from stale state is refused, and nothing of the plan
//      is carried out.
//   2. A failure is counted in the same write that raises its pod's attempt. A pod of an older attempt does not count
//      as a failure any more; it is only deleted.
//   3. An attempt that was seen (bookkeeping.created) is never made again: a pod that is gone is followed by the next
//      attempt, so that generations rise.
//   4. An old pod that the Service selects loses its label, then the new one is made, then the old one is deleted; of
//      pods that must not meet their successors (plan_gang.h) first the old one is deleted and then, when it has ended,
//      the new one is made. The pods themselves show how far this is; nothing needs to be remembered.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/desired_pod.h"
#include "operator/train/observed.h"
#include "runner/base/json.h"
#include "runner/contract/metric_names.h"

namespace lockstep::train {

// ---- actions, in the order in which they are carried out; the first that fails ends the pass ----

// Reads a pod that the cache lacks from the API server itself.
struct LookUpPod {
  std::string name;
  int node_rank = 0;
  int attempt = 0;
};
// Objects beside the pods: Service, NetworkPolicy, and those of kinds that a cluster may lack (Observed::kinds), whose
// apiVersion is the one that was observed.
struct CreateObject {  // a create and not an apply, which would take over an object that somebody else made
  Json object;
};
struct ApplyObject {  // restores an object of ours that somebody has changed
  Json object;
};
struct PatchObject {  // a merge patch with the resourceVersion that was read: refused if somebody wrote since
  std::string api_version;
  std::string kind;
  std::string name;
  Json patch;
  std::string subresource;  // "status", or ""
};
struct DeleteObject {  // by UID; an object with finalizers stays for now, with a deletionTimestamp
  std::string api_version;
  std::string kind;
  std::string name;
  std::string uid;
};
struct SendNumNodes {
  std::string ip;  // of pod 0
  int num_nodes = 0;
};
struct StopServing {  // removes the Service's label from the pod, which ends its DNS record
  std::string name;
  std::string uid;
};
// Consecutive CreatePods are sent in parallel; a refusal of one does not stop the others. But the first pod of a spec
// is sent without other pods (only together with a CreateObject of the Service directly before it) and with
// fieldValidation=Strict, so that of an invalid spec one pod is tried and not all.
struct CreatePod {
  PodParameters parameters;  // desired_pod makes the object when it is sent: a thousand whole pods take much memory
  std::string name;
  bool is_first = false;
  int64_t generation = 0;  // of the spec
};
struct DeletePod {  // by UID, with its own grace period
  std::string name;
  std::string uid;
};
struct DeleteJob {};
struct Action {
  std::variant<LookUpPod, CreateObject, ApplyObject, DeleteObject, PatchObject, SendNumNodes, StopServing, CreatePod,
               DeletePod, DeleteJob>
      what;
  std::string why;
};

struct PlannedEvent {
  bool is_warning = false;
  std::string reason;   // CamelCase
  std::string message;  // a sentence
  std::string action;   // CamelCase
};

// One observation for a metric of contract/metric_names.h.
struct Measurement {
  const MetricName* metric = nullptr;
  std::map<std::string, std::string> labels;
  double value = 0.0;  // seconds of a histogram, increment of a counter
};

struct Plan {
  // Written before the actions, unless it can wait; nullopt: nothing changes.
  std::optional<api::TrainJobStatus> status;
  api::UnixSeconds status_wait_seconds = 0;  // so many seconds, for a status that says more
  std::vector<PlannedEvent> events;          // once the status is written
  std::vector<Measurement> measurements;     // likewise
  std::vector<Action> actions;
  std::optional<api::UnixSeconds> requeue_at;  // when time alone may change the plan
  std::string why;                             // one line for the log
};

Plan make_plan(const Observed& observed);

}  // namespace lockstep::train
