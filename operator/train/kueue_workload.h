// kueue_workload: makes Kueue's Workload for a TrainJob, reads an existing one, and determines what its admission adds
// to the job's pods. Pure; kueue.h decides what is done about it.
//
// Field names and values are those of Kueue's API group (workloads, v1beta2 and v1beta1).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/api/condition.h"
#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kKueueGroup = "kueue.x-k8s.io";
// Labels of a TrainJob; jobs of every kind that Kueue manages have them by these names.
inline constexpr std::string_view kQueueLabel = "kueue.x-k8s.io/queue-name";
inline constexpr std::string_view kPrebuiltWorkloadLabel = "kueue.x-k8s.io/prebuilt-workload-name";
inline constexpr std::string_view kWorkloadPriorityLabel = "kueue.x-k8s.io/priority-class";
inline constexpr std::string_view kMaxExecutionLabel = "kueue.x-k8s.io/max-exec-time-seconds";
inline constexpr std::string_view kJobUidLabel = "kueue.x-k8s.io/job-uid";  // of a Workload
// On a job that MultiKueue has copied into a worker cluster: the name of the manager.
inline constexpr std::string_view kMultiKueueOriginLabel = "kueue.x-k8s.io/multikueue-origin";
inline constexpr std::string_view kMultiKueue = "kueue.x-k8s.io/multikueue";  // spec.managedBy
// As long as a Workload has it, Kueue keeps its reservation, also while it is being deleted.
inline constexpr std::string_view kWorkloadFinalizer = "kueue.x-k8s.io/resource-in-use";
inline constexpr std::string_view kPodSet = "main";  // all pods of a job are one pod set

// spec.priority of a Workload, and where it comes from.
struct WorkloadPriority {
  std::string group;  // "kueue.x-k8s.io", "scheduling.k8s.io"; empty: no class, the cluster's default
  std::string name;
  int64_t value = 0;
  std::string problem;  // not empty: the class cannot be read; a clause
};

// What the operator reads of a Workload.
struct Workload {
  Json object;  // as it was read
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
  // The annotation, as name and value, by which Kueue knows pods whose nodes it chooses; nothing: it chooses none.
  std::optional<std::pair<std::string, std::string>> topology;
  bool assigns_nodes = false;   // the lowest level of that topology is the host name: each node rank has its node
  Json checks = Json::array();  // status.admissionChecks

  [[nodiscard]] bool is_prebuilt() const { return template_hash.empty(); }
  [[nodiscard]] bool is_admitted() const { return conditions.is_true("Admitted"); }
  [[nodiscard]] bool is_reserved() const { return conditions.is_true("QuotaReserved"); }
  [[nodiscard]] bool is_evicted() const { return conditions.is_true("Evicted"); }
  [[nodiscard]] bool is_finished() const { return conditions.is_true("Finished"); }
};
Workload workload_from_json(Json object);

// What is known of Kueue, as far as a TrainJob is concerned.
struct KueueView {
  std::string version;              // of the API that is used: "v1beta2", "v1beta1"; empty: none
  std::string why_absent;           // a clause, when `version` is empty
  std::vector<Workload> workloads;  // of the TrainJob: its own, those of earlier ones of its name, and its prebuilt one
  std::map<std::string, std::optional<Json>> flavors;  // by name, those of the admission; nothing: it does not exist
  std::string flavor_problem;                          // a clause: why they cannot be read; empty: they can
  std::optional<WorkloadPriority> priority;            // when a Workload is to be made, or has another class
};

// Empty when there is no such label.
std::string label_of(const api::ObjectMeta& meta, std::string_view name);
// "kueue.x-k8s.io/v1beta2"
std::string workload_api_version(const KueueView& kueue);
// Does a queue decide when the job runs?
bool has_queue(const api::TrainJob& job);
// Has the job a queue, or does its status say that a queue decided last? The job keeps its reservation when its label
// is removed.
bool may_have_workload(const api::TrainJob& job);
// Has the Workload the priority class that the job's label names? Without the label: one that is not Kueue's. A
// prebuilt Workload then keeps the one that it was made with.
bool has_its_priority(const api::TrainJob& job, const Workload& workload);
// kInvalid: the value of a label cannot be the name of a LocalQueue, or no number of seconds.
Status check_queue_labels(const api::ObjectMeta& job);
// kInvalid: of Kueue's two annotations of the pod template about slices (groups of pods that share a topology level)
// one is missing, or the size is no number of pods.
Status check_topology_slices(const api::TrainJobSpec& spec);
// Of the label kMaxExecutionLabel; nothing when there is none, and, as for Kueue's own jobs, when it is no number above
// 0.
std::optional<int64_t> max_execution_seconds(const api::ObjectMeta& job);
// "trainjob-sasrec-3f9a1", with a hash of the UID: another TrainJob of the same name gets another name.
std::string workload_name(const api::ObjectMeta& job);
// The job's Workload among those that are known; nullptr when there is none.
const Workload* workload_of(const api::TrainJob& job, const KueueView& kueue);
// The name of the job's Workload: of the prebuilt one that a label names, or the job's own.
std::string workload_name_of(const api::TrainJob& job);

// The Workload that asks for `num_pods` pods. `pod` is a pod of the job, without what an admission adds to it.
Json desired_workload(const api::TrainJob& job, int num_pods, const Json& pod, const KueueView& kueue);

// What the admission adds to each pod: {"metadata": {"labels", "annotations"}, "spec": {"nodeSelector", "tolerations",
// "schedulingGates"}}. kNotFound: a flavour does not exist.
Result<Json> admitted_pod(const Workload& workload, const KueueView& kueue);
// Adds them to the pod. kInvalid when the pod already has another value for one of them.
Status add_to_pod(const Json& additions, Json& pod);

}  // namespace lockstep::train
