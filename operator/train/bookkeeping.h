// Bookkeeping: what the policies of one TrainJob must remember across restarts of the operator. Pure.
//
// It is stored in status.bookkeeping, in the same request as status.attempts, so that a failure and the attempt that
// follows it are one write: the failure is counted once, even if the operator dies in between. Everything else can be
// read again from the cluster.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "operator/api/object_meta.h"
#include "runner/base/json.h"
#include "runner/recovery/restart_policy.h"

namespace lockstep::train {

// The run is interrupted: a pod was lost, and the group does not train again yet.
struct Recovering {
  api::UnixSeconds since = 0;
  std::string scope;        // "pod", "gang"
  std::string reason;       // CamelCase, how the pod ended
  std::string message;      // a sentence
  uint64_t generation = 0;  // of the group, the newest known when it began; it is over when a higher one trains
  bool operator==(const Recovering&) const = default;
};

// How often in a row a pod was replaced soon after it had been created.
struct QuickReplacements {
  int times = 0;
  api::UnixSeconds last = 0;
  bool operator==(const QuickReplacements&) const = default;
};

// The operator itself keeps the job suspended, as long as its spec stays as it is.
struct Hold {
  int64_t generation = 0;  // metadata.generation of the spec that cannot go on
  std::string reason;      // CamelCase
  std::string message;     // a sentence
  bool operator==(const Hold&) const = default;
};

// health.placementTimeoutSeconds
struct Placement {
  api::UnixSeconds short_since = 0;  // since when too few of the job's pods are scheduled; 0: enough, or no pods
  int times_given_back = 0;          // in a row, since enough pods were ready
  api::UnixSeconds again_at = 0;     // no pod is made before then
  bool operator==(const Placement&) const = default;
};

inline constexpr int kGang = -1;  // in place of a node rank

// RestartCounts: of restartPolicy.
struct Bookkeeping : RestartCounts {
  int64_t checked_generation = 0;  // metadata.generation whose first pod the API server has found valid
  std::set<int> created;           // node ranks whose pod of the current attempt has been seen
  std::set<int> done;              // node ranks whose pod ended with 0
  api::UnixSeconds first_done_at = 0;

  // restartPolicy
  std::map<int, QuickReplacements> quick_replacements;  // by node rank; kGang: of all pods together
  std::map<std::string, api::UnixSeconds> avoided;      // Kubernetes node → since when
  std::map<std::string, api::UnixSeconds> refusals;     // Kubernetes node → when its kubelet last refused a pod
  std::set<int> moved;  // node ranks whose newest pod replaces one that did not start, and has not started either
  std::string committed_spec;  // hash_of_pods of the spec with which the run last committed a step; empty: it did not

  // The spec was edited, in this metadata.generation, while its pods were refused and there was none: a pod that was
  // made from an earlier one by a request that was under way is not a pod of this spec. 0: it was not.
  int64_t pods_from_generation = 0;

  int pod_group = 0;               // number of the gang's PodGroup
  bool enough_were_ready = false;  // pods: elastic.minNodes, or all, at some time in the job's life
  Placement placement;
  api::UnixSeconds room_made_at = 0;  // a pod was last deleted to free its node for pod 0; 0: pod 0 has a node since

  // of the current run, which begins when the job is made and on each resume
  bool suspending = false;
  std::optional<Hold> spec_hold;
  api::UnixSeconds waiting_since = 0;  // health.startupTimeoutSeconds runs since then; 0: it does not
  bool were_ready = false;             // all pods have been ready
  bool has_stepped = false;            // a step was committed
  std::optional<Recovering> recovering;
  std::string origin;  // RunReport::origin of pod 0's agent: where the training state came from at the start

  // status.restarts.process: pod 0's agent counts from its own start
  int64_t process_restarts_before = 0;  // by earlier agents
  int64_t process_restarts_now = 0;     // by the agent of pod `process_restarts_pod`
  std::string process_restarts_pod;     // UID

  bool operator==(const Bookkeeping&) const = default;
};

// Empty parts are left out.
Json to_json(const Bookkeeping& book);
// A field that cannot be read counts as absent: only the operator writes them.
Bookkeeping bookkeeping_from_json(const Json& json);

}  // namespace lockstep::train
