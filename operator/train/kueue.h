// kueue: what Kueue's Workload of a TrainJob looks like, what an observed one says, and what is to be done about it.
// Pure.
//
// A TrainJob that has the label kueue.x-k8s.io/queue-name waits in that LocalQueue: the operator makes a Workload,
// which asks for the job's nodes, and makes pods when Kueue has admitted it. The contract is that of Kueue's API group
// (workloads, v1beta2 and v1beta1) and of its job integrations:
//   - the Workload is the TrainJob's (owner reference, finalizer), and there is one at a time;
//   - no pod without an admission; the admitted count is the number of nodes, spec.trainer.numNodes is never written;
//   - an evicted job stops as a suspended one does, with a checkpoint first, and gives its reservation back when its
//     last pod has ended; so does one that is suspended, changed, deleted, or whose Workload is deleted;
//   - PodsReady and Finished are ours to write into the Workload.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/condition.h"
#include "operator/api/trainjob.h"
#include "operator/train/pod_view.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kKueueGroup = "kueue.x-k8s.io";
inline constexpr std::string_view kWorkloadKind = "Workload";
inline constexpr std::string_view kWorkloadCrd = "workloads.kueue.x-k8s.io";
// Labels of a TrainJob, with the names that all of Kueue's jobs have them by.
inline constexpr std::string_view kQueueLabel = "kueue.x-k8s.io/queue-name";
inline constexpr std::string_view kPrebuiltWorkloadLabel = "kueue.x-k8s.io/prebuilt-workload-name";
inline constexpr std::string_view kWorkloadPriorityLabel = "kueue.x-k8s.io/priority-class";
inline constexpr std::string_view kMultiKueue = "kueue.x-k8s.io/multikueue";  // spec.managedBy
// As long as a Workload has it, Kueue keeps its reservation, also while it is being deleted.
inline constexpr std::string_view kWorkloadFinalizer = "kueue.x-k8s.io/resource-in-use";
inline constexpr std::string_view kPodSet = "main";  // all nodes of a job are one pod set

// spec.priority of a Workload, and where it comes from.
struct WorkloadPriority {
  std::string group;  // "kueue.x-k8s.io", "scheduling.k8s.io"; empty: no class, the cluster's default
  std::string name;
  int64_t value = 0;
  std::string problem;  // not empty: the class cannot be read; a sentence
};

// What is known of Kueue, as far as a TrainJob is concerned.
struct KueueView {
  std::string version;          // of the API that is used: "v1beta2", "v1beta1"; empty: none
  std::string why_absent;       // a clause, when `version` is empty
  std::vector<Json> workloads;  // of the TrainJob: its own, those of earlier ones of its name, and its prebuilt one
  std::map<std::string, std::optional<Json>> flavors;  // by name, those of the admission; nothing: there is none
  std::string flavor_problem;                          // a clause: why they cannot be read
  std::optional<WorkloadPriority> priority;            // when a Workload is to be made, or has another class
};

// What a Workload says.
struct Workload {
  api::ObjectMeta meta;
  std::string queue;
  std::string template_hash;  // of the pods that it was made for; empty: somebody else made it
  std::string priority_class;
  std::string priority_group;
  bool is_active = true;
  int count = 0;  // pods that it asks for
  std::optional<int> min_count;
  std::string pod_set = std::string(kPodSet);
  int reclaimable = 0;  // pods whose share was given back early
  api::Conditions conditions;

  // status.admission
  bool has_admission = false;
  std::string cluster_queue;
  std::optional<int> admitted_count;
  std::vector<std::string> flavors;  // each once
  bool has_topology = false;         // Kueue itself gives each pod its place
  Json checks = Json::array();       // status.admissionChecks

  [[nodiscard]] bool is_admitted() const { return conditions.is_true("Admitted"); }
  [[nodiscard]] bool is_reserved() const { return conditions.is_true("QuotaReserved"); }
  [[nodiscard]] bool is_evicted() const { return conditions.is_true("Evicted"); }
  [[nodiscard]] bool is_finished() const { return conditions.is_true("Finished"); }
};
Workload workload_from_json(const Json& object);

// "kueue.x-k8s.io/v1beta2"
std::string workload_api_version(const KueueView& kueue);
// Does a queue decide when the job runs?
bool has_queue(const api::TrainJob& job);
// kInvalid: the label names what can be no LocalQueue.
Status check_queue_name(const api::ObjectMeta& job);
// "trainjob-sasrec-3f9a1": another TrainJob of the same name has another one.
std::string workload_name(const api::ObjectMeta& job);
// The job's Workload among those that are known; nullptr when there is none.
const Json* workload_of(const api::TrainJob& job, const KueueView& kueue);

// The Workload that asks for `nodes` pods. `pod` is a pod of the job, without what an admission adds to it.
Json desired_workload(const api::TrainJob& job, int nodes, const Json& pod, const KueueView& kueue);

// What the admission adds to each pod: {"metadata": {"labels", "annotations"}, "spec": {"nodeSelector", "tolerations",
// "schedulingGates"}}. kNotFound: a flavour does not exist.
Result<Json> admitted_pod(const Workload& workload, const KueueView& kueue);
// Adds them. kInvalid when the pod says otherwise.
Status add_to_pod(const Json& additions, Json& pod);

// A write to a Workload, of an exact version.
struct WorkloadWrite {
  enum class Verb { kCreate, kDelete, kPatch, kPatchStatus };
  Verb verb = Verb::kCreate;
  std::string name;
  std::string uid;  // of an existing one
  Json body;        // the object, or a merge patch with its resourceVersion
  std::string why;
};

struct QueueFacts {
  std::set<int> nodes_with_pods;  // that have not ended; those on lost machines left out
  bool was_stopped = false;       // the condition Suspended is True: the job has no pods, and may have been edited
  bool wants_to_run = true;       // neither suspended nor held
  int wanted_nodes = 0;           // spec.trainer.numNodes
  std::optional<Json> pod;        // for a new Workload; absent: no pod can be made of this spec
  const std::string* create_problem = nullptr;  // why its create was refused, and it is too early to try again
  api::UnixSeconds now = 0;
};

struct QueueDecision {
  bool is_queued = false;  // otherwise no queue has a say
  bool may_run = true;     // otherwise the job may have no pods
  std::string reason;      // CamelCase, for Admitted
  std::string message;     // a sentence
  // Not empty: those that run go on, but no pod may be made; a clause.
  std::string no_new_pods;
  bool is_evicted = false;
  std::vector<WorkloadWrite> writes;  // once the status is written
  std::optional<api::UnixSeconds> look_again_at;
};
QueueDecision apply_queue(const api::TrainJob& job, const KueueView& kueue, const QueueFacts& facts);

// So many nodes the job has, by its spec and by its admission, where it has one.
int nodes_of(const api::TrainJob& job, const KueueView& kueue);

// PodsReady of an admitted Workload, when it is to be written.
std::optional<WorkloadWrite> say_pods_ready(const Workload& workload, bool are_ready, api::UnixSeconds now);
// Finished, then the finalizer: of a job that has ended, once its last pod has.
std::vector<WorkloadWrite> finish_workload(const Workload& workload, bool succeeded, const std::string& message,
                                           bool has_pods, api::UnixSeconds now);
// Lets go of Workloads that are being deleted and whose TrainJob (by UID) has no pods any more. `job_uid`: of the
// TrainJob of today, whose own Workload apply_queue looks after; empty: there is none.
std::vector<WorkloadWrite> release_orphans(const std::vector<Json>& workloads, const std::vector<PodView>& pods,
                                           const std::string& job_uid);

}  // namespace lockstep::train
