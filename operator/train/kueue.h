// kueue: what the operator does about a TrainJob that waits in a queue of Kueue or was admitted by one, and what it
// writes into the TrainJob's Workload (kueue_workload.h). Pure.
//
// A TrainJob that has the label kueue.x-k8s.io/queue-name waits in that LocalQueue: the operator makes a Workload,
// which asks for the job's pods, and makes the pods when Kueue has admitted it. The contract is that of Kueue's API
// group (workloads, v1beta2 and v1beta1) and of its job integrations:
//   - the Workload is the TrainJob's (owner reference, finalizer), and there is one at a time;
//   - no pod without an admission; the job has as many pods as were admitted, and spec.trainer.numNodes is never
//   written;
//   - an evicted job stops as a suspended one does, with a checkpoint first, and gives its reservation back when its
//     last pod has ended; so does one that is suspended, changed, deleted, or whose Workload is deleted;
//   - PodsReady and Finished are ours to write into the Workload.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/plan.h"
#include "operator/train/pod_view.h"
#include "runner/base/json.h"

namespace lockstep::train {

struct QueueInput {
  std::set<int> node_ranks_with_pods;  // node ranks whose pod has not ended; those on lost nodes left out
  // The job has no pods, and may have been edited: the condition Suspended is True, its pods were refused, or, with
  // MultiKueue, no other cluster has admitted it.
  bool was_stopped = false;
  bool wants_to_run = true;                    // neither suspended nor held
  int wanted_pods = 0;                         // spec.trainer.numNodes, or what another cluster runs it with
  std::optional<Json> pod;                     // for a new Workload; absent: no pod can be made of this spec
  const std::string* write_problem = nullptr;  // why the last write was refused; set while it is too early to try again
  api::UnixSeconds now = 0;
};

struct QueueDecision {
  bool is_queued = false;  // a queue decides when the job runs
  bool may_run = true;     // false: the job may have no pods
  std::string reason;      // CamelCase, for Admitted
  std::string message;     // a sentence
  // Not empty: the job's label has changed to a priority class that cannot be read, and the Workload keeps its
  // priority; a sentence, with which `message` ends.
  std::string priority_problem;
  // Not empty: running pods go on, but no new one may be created; a clause that says why.
  std::string no_new_pods;
  bool is_evicted = false;
  std::vector<Action> writes;  // of Workloads, once the status is written
  std::optional<api::UnixSeconds> requeue_at;
};
QueueDecision apply_queue(const api::TrainJob& job, const KueueView& kueue, const QueueInput& input);

// How many pods the job has: spec.trainer.numNodes, or fewer where its Workload was admitted with fewer.
int num_pods(const api::TrainJob& job, const KueueView& kueue);

// PodsReady of an admitted Workload, when it is to be written.
std::optional<Action> say_pods_ready(const Workload& workload, bool are_ready, api::UnixSeconds now);
// For a job that has ended, after the end of its last pod: the first pass writes Finished, a later one removes the
// finalizer.
std::vector<Action> finish_workload(const Workload& workload, bool succeeded, const std::string& message, bool has_pods,
                                    api::UnixSeconds now);
// Is the Workload with this metadata being deleted, and not owned by the TrainJob with UID `job_uid`, which apply_queue
// looks after? Empty: there is no such TrainJob.
bool is_orphan(const api::ObjectMeta& workload, const std::string& job_uid);
// Removes the finalizer of the orphans whose TrainJob (by UID) has no pods any more. A pod that is overdue is on a dead
// node, whose kubelet will never say that it has ended: it is not waited for.
std::vector<Action> release_orphans(const std::vector<Workload>& workloads, const std::vector<PodView>& pods,
                                    const std::string& job_uid, api::UnixSeconds now);

}  // namespace lockstep::train
