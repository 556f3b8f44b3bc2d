// TrainJob: lockstep.dev/v1, as C++ values, and its way to and from JSON. Pure.
//
// The API server has checked and defaulted what it stores (manifests/base/crd.yaml); a TrainJob from a file is checked
// and defaulted by validate.h and defaults.h, to the same result. Field names and meanings are the CRD's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/condition.h"
#include "operator/api/object_meta.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::api {

inline constexpr std::string_view kGroup = "lockstep.dev";
inline constexpr std::string_view kApiVersion = "lockstep.dev/v1";
inline constexpr std::string_view kKind = "TrainJob";
inline constexpr std::string_view kControllerName = "lockstep.dev/trainjob-controller";  // spec.managedBy
inline constexpr size_t kJobNameMax = 45;  // so that the pods' names, "<job>-<node rank>-<attempt>", are hostnames
inline constexpr size_t kRecentFailuresInStatusMax = 10;

enum class Launcher { kLockstep, kTorchrun, kNone };
enum class SharedMemory { kMemory, kNone };  // on /dev/shm
enum class FailureScope { kAuto, kPod, kGang };
enum class SuccessPolicy { kAllNodes, kNode0 };
enum class PodCleanup { kRunning, kAll, kNone };
enum class NetworkPolicyMode { kNone, kIntraJob };
enum class DisruptionBudget { kNone, kOneAtATime };
enum class RuleAction { kFail, kReplacePod, kRestartGang, kIgnore };
enum class Gang { kNone, kNative, kVolcano, kCoscheduling };
enum class MountOn { kNode0, kAllNodes };
enum class Resume { kSameConfig, kSameJob, kNever };  // see contract/checkpoint_layout.h

// The words of the API ("Lockstep", "AllNodes", …).
const char* to_string(Launcher value);
const char* to_string(SharedMemory value);
const char* to_string(PodCleanup value);
const char* to_string(RuleAction value);
const char* to_string(Gang value);
const char* to_string(Resume value);

struct Trainer {
  std::string image;
  std::vector<std::string> command;
  std::vector<std::string> args;
  std::vector<Json> env;  // core/v1 EnvVar
  Launcher launcher = Launcher::kLockstep;
  int num_nodes = 1;
  std::optional<int> num_proc_per_node;      // nullopt: auto, one for each GPU asked for, at least 1
  int status_port = 8080;                    // of the agents' HTTP servers
  int coordinator_port = 29400;              // on which node 0's agent listens for the others
  Json resources_per_node = Json::object();  // core/v1 ResourceRequirements
  SharedMemory shared_memory = SharedMemory::kMemory;
  Json pod_template = Json::object();  // core/v1 PodTemplateSpec, merged under the fields above
  bool operator==(const Trainer&) const = default;
};

struct Elastic {
  int min_nodes = 1;
  int max_nodes = 1;
  int rejoin_timeout_seconds = 30;
  bool operator==(const Elastic&) const = default;
};

struct FailureRule {
  std::vector<int> exit_codes;
  std::vector<std::string> pod_reasons;
  RuleAction action = RuleAction::kReplacePod;
  bool avoid_node = false;
  bool operator==(const FailureRule&) const = default;
};

struct RestartPolicy {
  int max_restarts = 10;
  int window_seconds = 3600;
  int no_progress_restarts = 3;
  FailureScope scope = FailureScope::kAuto;
  std::vector<FailureRule> rules;
  bool operator==(const RestartPolicy&) const = default;
};

struct Health {
  int startup_timeout_seconds = 900;
  std::optional<int> placement_timeout_seconds;
  int stall_timeout_seconds = 600;
  int not_ready_timeout_seconds = 40;
  bool operator==(const Health&) const = default;
};

struct Checkpoint {
  Json volume = Json::object();  // a core/v1 Volume without its name
  std::string mount_path = "/checkpoints";
  std::optional<MountOn> mount_on;  // nullopt: by what runs (train/user_program.h)
  Resume resume = Resume::kSameConfig;
  int on_suspend_timeout_seconds = 120;
  // Of its PersistentVolumeClaim; empty: it is another kind of volume.
  [[nodiscard]] std::string claim_name() const { return text_field(volume, {"persistentVolumeClaim", "claimName"}); }
  bool operator==(const Checkpoint&) const = default;
};

struct Scheduling {
  Gang gang = Gang::kNone;
  std::string queue;                // of Volcano; empty: its default
  std::string priority_class_name;  // of the pods and of their group
  std::string topology;             // key of a label; all pods run on Kubernetes nodes with the same value of it
  bool operator==(const Scheduling&) const = default;
};

struct Disruption {
  DisruptionBudget budget = DisruptionBudget::kNone;
  bool do_not_disrupt = false;  // new pods ask Karpenter and the cluster autoscaler to be left alone
  bool operator==(const Disruption&) const = default;
};

struct TrainJobSpec {
  Trainer trainer;
  std::optional<Elastic> elastic;
  Scheduling scheduling;
  RestartPolicy restart_policy;
  Health health;
  std::optional<Checkpoint> checkpoint;
  SuccessPolicy success_policy = SuccessPolicy::kAllNodes;
  bool suspend = false;
  std::string managed_by = std::string(kControllerName);
  std::optional<int64_t> active_deadline_seconds;
  std::optional<int64_t> ttl_seconds_after_finished;
  PodCleanup pod_cleanup = PodCleanup::kRunning;
  NetworkPolicyMode network_policy = NetworkPolicyMode::kNone;
  Disruption disruption;
  bool operator==(const TrainJobSpec&) const = default;
};

enum class JobPhase { kPending, kSuspended, kStarting, kRunning, kRecovering, kComplete, kFailed };
const char* to_string(JobPhase phase);

// Types of conditions. The operator sets all of them when it first sees a job.
namespace condition {
inline constexpr std::string_view kSuspended = "Suspended";
inline constexpr std::string_view kAdmitted = "Admitted";
inline constexpr std::string_view kGangScheduled = "GangScheduled";  // only with spec.scheduling.gang
inline constexpr std::string_view kPodsReady = "PodsReady";
inline constexpr std::string_view kRunning = "Running";
inline constexpr std::string_view kRecovering = "Recovering";
inline constexpr std::string_view kDegraded = "Degraded";
inline constexpr std::string_view kCheckpointReady = "CheckpointReady";
inline constexpr std::string_view kDisruptionBudget = "DisruptionBudget";  // only with spec.disruption.budget
inline constexpr std::string_view kComplete = "Complete";
inline constexpr std::string_view kFailed = "Failed";
}  // namespace condition

// In JSON also `summary`, "ready/desired", for the printer column READY.
struct NodeCounts {
  int desired = 0;
  int ready = 0;
  int active = 0;
  int succeeded = 0;
  int failed = 0;
  bool operator==(const NodeCounts&) const = default;
};

// Since the job was created. `process`: restarts of workers by their agents, as pod 0 reports them in /status.
struct RestartCounts {
  int64_t total = 0;
  int64_t process = 0;
  int64_t pod = 0;
  int64_t gang = 0;
  bool operator==(const RestartCounts&) const = default;
};

// No floats: `percent` is whole, metrics and rates are strings as the runner printed them. In JSON also `summary`
// ("42%") and `eta` ("3m10s"), for the printer columns PROGRESS and ETA.
struct MetricValue {
  std::string name;
  std::string value;
  bool operator==(const MetricValue&) const = default;
};
struct JobProgress {
  int64_t step = 0;
  int64_t total_steps = 0;
  int64_t epoch = 0;
  int percent = 0;
  std::optional<int64_t> estimated_remaining_seconds;
  std::string loss;  // of the last step, "0.4321"
  std::string samples_per_second;
  std::string steps_per_second;  // of a program whose samples nobody counts
  std::vector<MetricValue> metrics;
  std::optional<int64_t> last_checkpoint_step;
  UnixSeconds last_updated_time = 0;
  bool operator==(const JobProgress&) const = default;
};

struct RecentFailure {
  int node = 0;
  std::optional<int> rank;
  int attempt = 0;
  std::string host;  // the Kubernetes node's name
  std::optional<int> exit_code;
  std::string reason;
  std::string message;
  UnixSeconds time = 0;
  bool operator==(const RecentFailure&) const = default;
};

// No node rank that is read from a status is higher: ten times what the API allows as numNodes.
inline constexpr int kNodeRankMax = 100'000;

struct TrainJobStatus {
  int64_t observed_generation = 0;
  std::optional<JobPhase> phase;
  std::string reason;
  std::string message;
  Conditions conditions;
  std::optional<UnixSeconds> start_time;  // of the current run: set anew on resume
  std::optional<UnixSeconds> completion_time;
  NodeCounts nodes;
  std::string selector;  // for the scale subresource
  RestartCounts restarts;
  std::map<int, int> attempts;  // node rank → attempt, only those above 0
  std::optional<JobProgress> progress;
  std::vector<RecentFailure> recent_failures;  // newest last; the newest kRecentFailuresInStatusMax go into JSON
  // What the policies must remember across restarts of the operator (train/bookkeeping.h); internal.
  Json bookkeeping = Json::object();

  [[nodiscard]] int attempt_of(int node_rank) const;
  bool operator==(const TrainJobStatus&) const = default;
};

struct TrainJob {
  ObjectMeta meta;
  TrainJobSpec spec;
  TrainJobStatus status;
};

// kInvalid names the field ("spec.trainer.numNodes: is \"two\", expected a whole number"). Unknown fields are left to
// validate.h.
//
// A status.phase that this build does not know (a newer operator wrote it) is read as no phase and is no error: every
// reconcile derives the phase anew.
Result<TrainJob> trainjob_from_json(const Json& object);

// Empty fields are left out. Replace the stored status as a whole: a merge patch would keep fields that are empty now.
Json to_json(const TrainJobStatus& status);

}  // namespace lockstep::api
