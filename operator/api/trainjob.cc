#include "operator/api/trainjob.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "operator/api/schema.h"
#include "runner/base/utf8.h"

namespace lockstep::api {
namespace {

constexpr std::string_view kAuto = "auto";  // spec.trainer.numProcPerNode

// The words of an enum, one table for both directions.
template <typename E>
struct Word {
  E value;
  const char* text;
};
constexpr auto kLaunchers = std::to_array<Word<Launcher>>(
    {{Launcher::kLockstep, "Lockstep"}, {Launcher::kTorchrun, "Torchrun"}, {Launcher::kNone, "None"}});
constexpr auto kSharedMemories =
    std::to_array<Word<SharedMemory>>({{SharedMemory::kMemory, "Memory"}, {SharedMemory::kNone, "None"}});
constexpr auto kScopes = std::to_array<Word<FailureScope>>(
    {{FailureScope::kAuto, "Auto"}, {FailureScope::kPod, "Pod"}, {FailureScope::kGang, "Gang"}});
constexpr auto kSuccessPolicies =
    std::to_array<Word<SuccessPolicy>>({{SuccessPolicy::kAllNodes, "AllNodes"}, {SuccessPolicy::kNode0, "Node0"}});
constexpr auto kPodCleanups = std::to_array<Word<PodCleanup>>(
    {{PodCleanup::kRunning, "Running"}, {PodCleanup::kAll, "All"}, {PodCleanup::kNone, "None"}});
constexpr auto kNetworkPolicies = std::to_array<Word<NetworkPolicyMode>>(
    {{NetworkPolicyMode::kNone, "None"}, {NetworkPolicyMode::kIntraJob, "IntraJob"}});
constexpr auto kDisruptionBudgets = std::to_array<Word<DisruptionBudget>>(
    {{DisruptionBudget::kNone, "None"}, {DisruptionBudget::kOneAtATime, "OneAtATime"}});
constexpr auto kGangs = std::to_array<Word<Gang>>({{Gang::kNone, "None"},
                                                   {Gang::kNative, "Native"},
                                                   {Gang::kVolcano, "Volcano"},
                                                   {Gang::kCoscheduling, "Coscheduling"}});
constexpr auto kRuleActions = std::to_array<Word<RuleAction>>({{RuleAction::kFail, "Fail"},
                                                               {RuleAction::kReplacePod, "ReplacePod"},
                                                               {RuleAction::kRestartGang, "RestartGang"},
                                                               {RuleAction::kIgnore, "Ignore"}});
constexpr auto kMountOns = std::to_array<Word<MountOn>>({{MountOn::kNode0, "Node0"}, {MountOn::kAllNodes, "AllNodes"}});
constexpr auto kResumes = std::to_array<Word<Resume>>(
    {{Resume::kSameConfig, "SameConfig"}, {Resume::kSameJob, "SameJob"}, {Resume::kNever, "Never"}});
constexpr auto kPhases = std::to_array<Word<JobPhase>>({{JobPhase::kPending, "Pending"},
                                                        {JobPhase::kSuspended, "Suspended"},
                                                        {JobPhase::kStarting, "Starting"},
                                                        {JobPhase::kRunning, "Running"},
                                                        {JobPhase::kRecovering, "Recovering"},
                                                        {JobPhase::kComplete, "Complete"},
                                                        {JobPhase::kFailed, "Failed"}});

template <typename E, size_t N>
const char* text_of(const std::array<Word<E>, N>& words, E value) {
  for (const Word<E>& word : words) {
    if (word.value == value) return word.text;
  }
  return "Unknown";
}

// Reads the fields of one object into C++ values. A field that is absent or null leaves its value unchanged. All Fields
// of a document share `fault_`, which keeps the first fault; the caller then discards everything that was read.
class Fields {
 public:
  // `object` may be nullptr: then every field is absent.
  Fields(const Json* object, std::string path, std::optional<Error>& fault)
      : object_(object), path_(std::move(path)), fault_(fault) {
    if (object_ != nullptr && !object_->is_object()) {
      refuse(path_, *object_, "an object");
      object_ = nullptr;
    }
  }

  [[nodiscard]] bool has(const char* name) const { return find(name) != nullptr; }
  [[nodiscard]] Fields object(const char* name) const { return {find(name), child(name), fault_}; }

  // Notes the absence of a field that has no default.
  void require(const char* name, const char* expected) const {
    if (object_ == nullptr || has(name) || fault_) return;
    fault_ = invalid(child(name), std::string("is missing, expected ") + expected);
  }

  void read(const char* name, std::string& out) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return refuse(child(name), *value, "a string");
    out = value->get<std::string>();
  }
  void read(const char* name, bool& out) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return refuse(child(name), *value, "true or false");
    out = value->get<bool>();
  }
  template <typename Int>
  requires std::same_as<Int, int> || std::same_as<Int, int64_t>
  void read(const char* name, Int& out) const {
    if (const Json* value = find(name)) read_number(*value, child(name), out);
  }
  template <typename Int>
  requires std::same_as<Int, int> || std::same_as<Int, int64_t>
  void read(const char* name, std::optional<Int>& out) const {
    if (!has(name)) return;
    Int value = 0;
    read(name, value);
    out = value;
  }
  template <typename E, size_t N>
  void read(const char* name, E& out, const std::array<Word<E>, N>& words) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    std::string expected = "one of ";
    for (const Word<E>& word : words) {
      if (value->is_string() && value->get_ref<const std::string&>() == word.text) {
        out = word.value;
        return;
      }
      if (&word != words.data()) expected.append(", ");
      expected.append(word.text);
    }
    refuse(child(name), *value, expected.c_str());
  }
  void read_time(const char* name, std::optional<UnixSeconds>& out) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (value->is_string()) out = parse_time(value->get_ref<const std::string&>());
    if (!out) refuse(child(name), *value, "a time such as 2026-11-21T10:00:00Z");
  }
  void read_time(const char* name, UnixSeconds& out) const {
    std::optional<UnixSeconds> time;
    read_time(name, time);
    if (time) out = *time;
  }
  // Copies a field of one of Kubernetes' own types without looking into it.
  void read_object(const char* name, Json& out) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_object()) return refuse(child(name), *value, "an object");
    out = *value;
  }

  // Calls `visit(entry, path)` for each entry of a list.
  void each(const char* name, const std::function<void(const Json&, std::string)>& visit) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return refuse(child(name), *value, "a list");
    for (size_t i = 0; i < value->size(); ++i) {
      visit((*value)[i], child(name).append("[").append(std::to_string(i)).append("]"));
    }
  }
  void each_object(const char* name, const std::function<void(const Fields&)>& visit) const {
    each(name, [&](const Json& entry, std::string path) { visit(Fields(&entry, std::move(path), fault_)); });
  }
  void read(const char* name, std::vector<std::string>& out) const {
    out.clear();
    each(name, [&](const Json& entry, const std::string& path) {
      if (!entry.is_string()) return refuse(path, entry, "a string");
      out.push_back(entry.get<std::string>());
    });
  }
  void read(const char* name, std::vector<int>& out) const {
    out.clear();
    each(name, [&](const Json& entry, const std::string& path) {
      int value = 0;
      read_number(entry, path, value);
      out.push_back(value);
    });
  }

  void refuse(const std::string& path, const Json& found, const char* expected) const {
    if (fault_) return;
    constexpr size_t kShownMax = 80;
    fault_ = invalid(path, "is " + shortened(dump_line(found), kShownMax) + ", expected " + expected);
  }

  // Absent and null are the same: the API server drops nulls.
  [[nodiscard]] const Json* find(const char* name) const {
    if (object_ == nullptr) return nullptr;
    const auto it = object_->find(name);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] std::string child(const char* name) const {
    std::string path = path_;
    if (!path.empty()) path.append(".");
    return path.append(name);
  }

 private:
  template <typename Int>
  void read_number(const Json& value, const std::string& path, Int& out) const {
    const auto number = whole_number(value);
    if (!number || *number < std::numeric_limits<Int>::min() || *number > std::numeric_limits<Int>::max()) {
      return refuse(path, value, sizeof(Int) == sizeof(int64_t) ? "a whole number" : "a whole number of 32 bits");
    }
    out = static_cast<Int>(*number);
  }

  const Json* object_;
  std::string path_;
  std::optional<Error>& fault_;
};

Trainer read_trainer(const Fields& from) {
  Trainer trainer;
  from.require("image", "the container image to run");
  from.read("image", trainer.image);
  from.read("command", trainer.command);
  from.read("args", trainer.args);
  from.each("env", [&](const Json& entry, const std::string& path) {
    if (!entry.is_object()) return from.refuse(path, entry, "an object with name and value");
    trainer.env.push_back(entry);
  });
  from.read("launcher", trainer.launcher, kLaunchers);
  from.read("numNodes", trainer.num_nodes);
  if (const Json* value = from.find("numProcPerNode"); value != nullptr) {
    if (value->is_string()) {
      if (value->get_ref<const std::string&>() != kAuto) {
        from.refuse(from.child("numProcPerNode"), *value, "auto or a whole number");
      }
    } else {
      from.read("numProcPerNode", trainer.num_proc_per_node);
    }
  }
  from.read("statusPort", trainer.status_port);
  from.read("coordinatorPort", trainer.coordinator_port);
  from.read_object("resourcesPerNode", trainer.resources_per_node);
  from.read("sharedMemory", trainer.shared_memory, kSharedMemories);
  from.read_object("podTemplate", trainer.pod_template);
  return trainer;
}

RestartPolicy read_restart_policy(const Fields& from) {
  RestartPolicy policy;
  from.read("maxRestarts", policy.max_restarts);
  from.read("windowSeconds", policy.window_seconds);
  from.read("noProgressRestarts", policy.no_progress_restarts);
  from.read("scope", policy.scope, kScopes);
  from.each_object("rules", [&](const Fields& entry) {
    FailureRule rule;
    entry.read("exitCodes", rule.exit_codes);
    entry.read("podReasons", rule.pod_reasons);
    entry.require("action", "Fail, ReplacePod, RestartGang or Ignore");
    entry.read("action", rule.action, kRuleActions);
    entry.read("avoidNode", rule.avoid_node);
    policy.rules.push_back(std::move(rule));
  });
  return policy;
}

TrainJobSpec read_spec(const Fields& from) {
  TrainJobSpec spec;
  from.require("trainer", "an object with at least image");
  spec.trainer = read_trainer(from.object("trainer"));
  if (from.has("elastic")) {
    const Fields elastic = from.object("elastic");
    spec.elastic.emplace();
    elastic.require("minNodes", "the smallest number of pods to go on with");
    elastic.require("maxNodes", "the largest number of pods");
    elastic.read("minNodes", spec.elastic->min_nodes);
    elastic.read("maxNodes", spec.elastic->max_nodes);
    elastic.read("rejoinTimeoutSeconds", spec.elastic->rejoin_timeout_seconds);
  }
  const Fields scheduling = from.object("scheduling");
  scheduling.read("gang", spec.scheduling.gang, kGangs);
  scheduling.read("queue", spec.scheduling.queue);
  scheduling.read("priorityClassName", spec.scheduling.priority_class_name);
  scheduling.read("topology", spec.scheduling.topology);
  spec.restart_policy = read_restart_policy(from.object("restartPolicy"));
  const Fields health = from.object("health");
  health.read("startupTimeoutSeconds", spec.health.startup_timeout_seconds);
  health.read("placementTimeoutSeconds", spec.health.placement_timeout_seconds);
  health.read("stallTimeoutSeconds", spec.health.stall_timeout_seconds);
  health.read("notReadyTimeoutSeconds", spec.health.not_ready_timeout_seconds);
  if (from.has("checkpoint")) {
    const Fields checkpoint = from.object("checkpoint");
    spec.checkpoint.emplace();
    checkpoint.require("volume", "a volume such as {persistentVolumeClaim: {claimName: NAME}}");
    checkpoint.read_object("volume", spec.checkpoint->volume);
    checkpoint.read("mountPath", spec.checkpoint->mount_path);
    if (checkpoint.has("mountOn")) {
      checkpoint.read("mountOn", spec.checkpoint->mount_on.emplace(), kMountOns);
    }
    checkpoint.read("resume", spec.checkpoint->resume, kResumes);
    checkpoint.read("onSuspendTimeoutSeconds", spec.checkpoint->on_suspend_timeout_seconds);
  }
  from.read("successPolicy", spec.success_policy, kSuccessPolicies);
  from.read("suspend", spec.suspend);
  from.read("managedBy", spec.managed_by);
  from.read("activeDeadlineSeconds", spec.active_deadline_seconds);
  from.read("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished);
  from.read("podCleanup", spec.pod_cleanup, kPodCleanups);
  from.read("networkPolicy", spec.network_policy, kNetworkPolicies);
  const Fields disruption = from.object("disruption");
  disruption.read("budget", spec.disruption.budget, kDisruptionBudgets);
  disruption.read("doNotDisrupt", spec.disruption.do_not_disrupt);
  return spec;
}

std::optional<JobPhase> read_phase(const Fields& from) {
  std::string text;
  from.read("phase", text);
  for (const Word<JobPhase>& word : kPhases) {
    if (text == word.text) return word.value;
  }
  return std::nullopt;
}

JobProgress read_progress(const Fields& from) {
  JobProgress progress;
  from.read("step", progress.step);
  from.read("totalSteps", progress.total_steps);
  from.read("epoch", progress.epoch);
  from.read("percent", progress.percent);
  from.read("estimatedRemainingSeconds", progress.estimated_remaining_seconds);
  from.read("loss", progress.loss);
  from.read("samplesPerSecond", progress.samples_per_second);
  from.read("stepsPerSecond", progress.steps_per_second);
  from.each_object("metrics", [&](const Fields& entry) {
    MetricValue& metric = progress.metrics.emplace_back();
    entry.read("name", metric.name);
    entry.read("value", metric.value);
  });
  from.read("lastCheckpointStep", progress.last_checkpoint_step);
  from.read_time("lastUpdatedTime", progress.last_updated_time);
  return progress;
}

RecentFailure read_failure(const Fields& from) {
  RecentFailure failure;
  from.read("node", failure.node);
  from.read("rank", failure.rank);
  from.read("attempt", failure.attempt);
  from.read("host", failure.host);
  from.read("exitCode", failure.exit_code);
  from.read("reason", failure.reason);
  from.read("message", failure.message);
  from.read_time("time", failure.time);
  return failure;
}

TrainJobStatus read_status(const Fields& from) {
  TrainJobStatus status;
  from.read("observedGeneration", status.observed_generation);
  status.phase = read_phase(from);
  from.read("reason", status.reason);
  from.read("message", status.message);
  if (const Json* conditions = from.find("conditions")) status.conditions = conditions_from_json(*conditions);
  from.read_time("startTime", status.start_time);
  from.read_time("completionTime", status.completion_time);
  const Fields nodes = from.object("nodes");
  nodes.read("desired", status.nodes.desired);
  nodes.read("ready", status.nodes.ready);
  nodes.read("active", status.nodes.active);
  nodes.read("succeeded", status.nodes.succeeded);
  nodes.read("failed", status.nodes.failed);
  from.read("selector", status.selector);
  const Fields restarts = from.object("restarts");
  restarts.read("total", status.restarts.total);
  restarts.read("process", status.restarts.process);
  restarts.read("pod", status.restarts.pod);
  restarts.read("gang", status.restarts.gang);
  from.each_object("attempts", [&](const Fields& entry) {
    int node = 0;
    int attempt = 0;
    entry.read("node", node);
    entry.read("attempt", attempt);
    int last = node;
    entry.read("lastNode", last);
    for (last = std::min(last, kNodeRankMax); node >= 0 && node <= last; ++node) status.attempts[node] = attempt;
  });
  if (from.has("progress")) status.progress = read_progress(from.object("progress"));
  from.each_object("recentFailures",
                   [&](const Fields& entry) { status.recent_failures.push_back(read_failure(entry)); });
  from.read_object("bookkeeping", status.bookkeeping);
  return status;
}

void put_if_set(Json& object, const char* name, const std::string& value) {
  if (!value.empty()) object[name] = value;
}
template <typename Int>
void put_if_set(Json& object, const char* name, const std::optional<Int>& value) {
  if (value) object[name] = *value;
}

Json to_json(const JobProgress& progress) {
  Json json = {{"step", progress.step},
               {"totalSteps", progress.total_steps},
               {"epoch", progress.epoch},
               {"percent", progress.percent},
               {"lastUpdatedTime", format_time(progress.last_updated_time)}};
  if (progress.total_steps > 0) json["summary"] = std::to_string(progress.percent).append("%");
  put_if_set(json, "estimatedRemainingSeconds", progress.estimated_remaining_seconds);
  if (progress.estimated_remaining_seconds) json["eta"] = format_duration(*progress.estimated_remaining_seconds);
  put_if_set(json, "loss", progress.loss);
  put_if_set(json, "samplesPerSecond", progress.samples_per_second);
  put_if_set(json, "stepsPerSecond", progress.steps_per_second);
  put_if_set(json, "lastCheckpointStep", progress.last_checkpoint_step);
  for (const MetricValue& metric : progress.metrics) {
    json["metrics"].push_back({{"name", metric.name}, {"value", metric.value}});
  }
  return json;
}

Json to_json(const RecentFailure& failure) {
  Json json = {{"node", failure.node}, {"attempt", failure.attempt}, {"time", format_time(failure.time)}};
  put_if_set(json, "rank", failure.rank);
  put_if_set(json, "host", failure.host);
  put_if_set(json, "exitCode", failure.exit_code);
  put_if_set(json, "reason", failure.reason);
  put_if_set(json, "message", failure.message);
  return json;
}

Json to_json(const NodeCounts& nodes) {
  return {{"desired", nodes.desired},
          {"ready", nodes.ready},
          {"active", nodes.active},
          {"succeeded", nodes.succeeded},
          {"failed", nodes.failed},
          {"summary", std::to_string(nodes.ready).append("/").append(std::to_string(nodes.desired))}};
}

// One entry for consecutive nodes with the same attempt: after a gang restart of 1,000 nodes one, not 1,000.
Json attempts_to_json(const std::map<int, int>& attempts) {
  Json entries = Json::array();
  for (auto at = attempts.begin(); at != attempts.end();) {
    const auto [first, attempt] = *at;
    int last = first;
    while (++at != attempts.end() && at->first == last + 1 && at->second == attempt) ++last;
    Json entry{{"node", first}, {"attempt", attempt}};
    if (last != first) entry["lastNode"] = last;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

int TrainJobStatus::attempt_of(int node_rank) const {
  const auto it = attempts.find(node_rank);
  return it == attempts.end() ? 0 : it->second;
}

const char* to_string(Launcher value) { return text_of(kLaunchers, value); }
const char* to_string(SharedMemory value) { return text_of(kSharedMemories, value); }
const char* to_string(PodCleanup value) { return text_of(kPodCleanups, value); }
const char* to_string(RuleAction value) { return text_of(kRuleActions, value); }
const char* to_string(Gang value) { return text_of(kGangs, value); }
const char* to_string(Resume value) { return text_of(kResumes, value); }
const char* to_string(JobPhase phase) { return text_of(kPhases, phase); }

Result<TrainJob> trainjob_from_json(const Json& object) {
  std::optional<Error> fault;
  const Fields root(&object, "", fault);
  if (fault) return invalid("a TrainJob is an object with apiVersion, kind, metadata and spec");

  std::string api_version(kApiVersion);
  std::string kind(kKind);
  root.read("apiVersion", api_version);
  if (api_version != kApiVersion) root.refuse("apiVersion", object["apiVersion"], std::string(kApiVersion).c_str());
  root.read("kind", kind);
  if (kind != kKind) root.refuse("kind", object["kind"], std::string(kKind).c_str());

  TrainJob job;
  job.meta = meta_of(object);
  root.require("spec", "an object with trainer");
  job.spec = read_spec(root.object("spec"));
  job.status = read_status(root.object("status"));
  if (fault) return *std::move(fault);
  return job;
}

Json to_json(const TrainJobStatus& status) {
  Json json = {{"observedGeneration", status.observed_generation},
               {"nodes", to_json(status.nodes)},
               {"restarts",
                {{"total", status.restarts.total},
                 {"process", status.restarts.process},
                 {"pod", status.restarts.pod},
                 {"gang", status.restarts.gang}}}};
  if (status.phase) json["phase"] = to_string(*status.phase);
  put_if_set(json, "reason", status.reason);
  put_if_set(json, "message", status.message);
  if (!status.conditions.list().empty()) json["conditions"] = to_json(status.conditions);
  if (status.start_time) json["startTime"] = format_time(*status.start_time);
  if (status.completion_time) json["completionTime"] = format_time(*status.completion_time);
  put_if_set(json, "selector", status.selector);
  if (!status.attempts.empty()) json["attempts"] = attempts_to_json(status.attempts);
  if (status.progress) json["progress"] = to_json(*status.progress);
  const size_t failures = status.recent_failures.size();
  const size_t oldest = failures - std::min(failures, kRecentFailuresInStatusMax);
  for (size_t i = oldest; i < failures; ++i) json["recentFailures"].push_back(to_json(status.recent_failures[i]));
  if (!status.bookkeeping.empty()) json["bookkeeping"] = status.bookkeeping;
  return json;
}

}  // namespace lockstep::api
