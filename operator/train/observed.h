// Observed: everything that make_plan knows of one TrainJob, as values. Pure.
//
// The reconciler gathers it from caches, from the newest report of pod 0, and from what it learned by its own requests
// (a first pod that is valid, a create that was refused); `observe` turns the objects into views.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/pod_view.h"
#include "operator/train/run_report.h"
#include "runner/base/build_info.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

// Of the whole operator.
struct Settings {
  std::string token_key;  // LOCKSTEP_TOKEN = HMAC-SHA256(token_key, job UID)
  // For networkPolicy: IntraJob.
  std::string operator_namespace = "lockstep-system";
  // As manifests/base/deployment.yaml has them.
  std::map<std::string, std::string> operator_labels = {{"app.kubernetes.io/name", "lockstep"},
                                                        {"app.kubernetes.io/component", "operator"}};
  std::string prometheus_namespace = "monitoring";
  bool sets_fs_group = true;  // pods whose template names no fsGroup get kDefaultFsGroup (desired_pod.h)
  // The operator's own, from which pods of a user's program take the agent (user_program.h).
  std::string agent_image = std::string("lockstep/operator:") + build_version();
  int progress_seconds = 30;  // at least this long between two status writes that only bring newer progress
};

// A Kubernetes node.
struct NodeView {
  bool ready = true;            // its Ready condition is True
  bool unreachable = false;     // tainted so, or Ready is Unknown: its kubelet does not answer
  bool out_of_service = false;  // an administrator has set that taint: the node will not come back with its pods
  bool cordoned = false;        // spec.unschedulable: it takes no new pods
  api::UnixSeconds not_ready_since = 0;  // 0: the Ready condition is True, is missing, or has no time
  bool operator==(const NodeView&) const = default;
};

// Does its kubelet not answer, or call the node not ready? One that is out of service is gone, and not silent.
bool is_silent(const NodeView& node);

// Kubernetes nodes on which pods of any TrainJob run.
struct NodesInUse {
  int all = 0;
  int silent = 0;
};

// CreateProblem::reason
inline constexpr std::string_view kQuotaExceeded = "QuotaExceeded";
inline constexpr std::string_view kPriorityClassMissing = "PriorityClassMissing";
// The API server, or an admission, refuses a pod of this spec; also a reason of PodsReady.
inline constexpr std::string_view kInvalidSpec = "InvalidSpec";
// Why a create did not result in our object.
struct CreateProblem {
  enum class Kind {
    kNameTaken,             // somebody else's object has the name
    kPreviousRun,           // an object of an earlier TrainJob of this name, which the garbage collector will delete
    kRefused,               // quota or an admission policy says no
    kNamespaceTerminating,  // nothing can be made here any more
  };
  Kind kind = Kind::kRefused;
  std::string object;   // "pod sasrec-0-0"
  std::string reason;   // CamelCase, for PodsReady: "NameTaken", kQuotaExceeded, "CreateRefused", …
  std::string message;  // a sentence
  api::UnixSeconds time = 0;
  int times = 1;  // in a row, for this reason
  // of a pod that was refused with kInvalidSpec
  int64_t generation = 0;  // metadata.generation of the job that it was made from; 0: any
  int node_rank = 0;
  bool is_by_admission = false;  // and not by the API server's own validation
};

// What the API server says of the first pod of a spec.
struct FirstPod {
  int64_t generation = 0;  // metadata.generation of the job that it was made from
  std::string refused;     // the server's words; empty: it was made, or not refused because of what it is
  api::UnixSeconds time = 0;
  int times = 1;  // in a row that it was refused, in this generation
  int node_rank = 0;
  bool is_by_admission = false;  // and not by the API server's own validation
};

// The numNodes that was last sent to pod 0's agent (POST /nodes), and when.
struct SentNumNodes {
  int num_nodes = 0;
  api::UnixSeconds time = 0;
};

// A kind that a cluster may lack: what is known of it, and this job's objects of that kind.
struct OptionalKind {
  bool is_known = false;      // the server was asked for it
  std::string api_version;    // one that the server has and the operator supports; empty: none
  bool is_complete = false;   // `objects` are all that there are
  std::string trouble;        // why it cannot be asked for, or listed; a sentence
  std::vector<Json> objects;  // that have the job's label, also those that the job does not control
};

struct Observed {
  api::TrainJob job;
  Settings settings;
  api::UnixSeconds now = 0;

  std::vector<PodView> pods;  // controlled by this job; by node rank, then attempt
  // Names of pods that an earlier TrainJob of this name controls: of those that will end, and of those that are
  // overdue, whose dead nodes may never give the names back.
  std::set<std::string> previous_pods, overdue_previous_pods;
  std::set<std::string> missing_pods;         // names that a live read did not find
  std::optional<Json> service;                // controlled by this job
  std::optional<Json> network_policy;         // controlled by this job
  std::map<std::string, OptionalKind> kinds;  // by CRD name, "podgroups.scheduling.k8s.io": kinds_needed's
  std::optional<bool> claim_exists;           // of checkpoint.volume.persistentVolumeClaim; absent: not known
  // Those that `pods` are on, or avoid while they wait for a node; one that is missing does not exist. Absent: not
  // known (the operator sees one namespace only).
  std::optional<std::map<std::string, NodeView>> nodes;
  NodesInUse nodes_in_use;  // counted only while one of `nodes` is silent
  std::optional<RunReport> report;
  std::optional<FirstPod> first_pod;
  std::map<std::string, CreateProblem> problems;  // by CreateProblem::object
  std::optional<SentNumNodes> sent_num_nodes;
  KueueView kueue;
  // spec.trainer.numNodes as it stands; job.spec.trainer.num_nodes is what a queue has admitted of it.
  int wanted_pods = 0;
  Json admitted_pod = Json::object();  // what a queue's admission adds to each pod
  bool queue_assigns_nodes = false;    // Workload::assigns_nodes
  // A pod that has neither ended nor is overdue, and is not this job's (an earlier TrainJob's of this name, perhaps
  // orphaned): its last checkpoint may still come. Of our own models only pod 0 writes. Empty: none.
  std::string previous_writer;

  // LOCKSTEP_TOKEN of the job's pods.
  [[nodiscard]] std::string token() const;
  // The pod of a node rank's attempt; nullptr when there is none.
  [[nodiscard]] const PodView* pod(int node_rank, int attempt) const;
};

// The input of `observe`: objects that have the job's label or name. They may belong to somebody else.
struct ClusterObjects {
  api::TrainJob job;
  std::vector<PodView> pods;  // that have the job's label
  std::optional<Json> service;
  std::optional<Json> network_policy;
  std::optional<std::map<std::string, NodeView>> nodes;  // as Observed::nodes
  KueueView kueue;
};
// An object that the job does not control is left out; when it has the name of one that the job needs, the create of
// that one fails and becomes a CreateProblem.
Observed observe(ClusterObjects objects, api::UnixSeconds now);

// How many agents the job's pod 0 may report.
int agents_max(const Observed& observed);

// Adds what is known of Kueue, which decides how many pods the job has, and what an admission adds to each.
void copy_kueue(KueueView kueue, Observed& observed);

// CRD names of the kinds that the job needs and a cluster, or the operator's roles, may lack.
std::vector<std::string> kinds_needed(const api::TrainJob& job);

NodeView view_of_node(const Json& node);

// Does `job` control the object?
bool is_controlled_by(const api::ObjectMeta& object, const api::ObjectMeta& job);
// Does an earlier or later TrainJob of the same name?
bool is_of_another_run(const api::ObjectMeta& object, const api::ObjectMeta& job);

}  // namespace lockstep::train
