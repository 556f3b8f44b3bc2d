#include "operator/api/trainjob.h"

#include <gtest/gtest.h>

#include "operator/api/yaml.h"

namespace lockstep::api {
namespace {

Json yaml(std::string_view text) {
  const auto document = parse_yaml(text, "test");
  EXPECT_TRUE(document.ok()) << (document.ok() ? "" : document.error().message);
  return document.ok() ? Json::parse(document->dump()) : Json();
}

constexpr std::string_view kMinimal = R"(
apiVersion: lockstep.dev/v1
kind: TrainJob
metadata: {name: sasrec, namespace: ml}
spec: {trainer: {image: "lockstep/runner:0.1.0"}}
)";

constexpr std::string_view kFull = R"(
apiVersion: lockstep.dev/v1
kind: TrainJob
metadata: {name: sasrec, namespace: ml, generation: 4}
spec:
  trainer:
    image: i
    command: [a]
    args: [b, c]
    env: [{name: A, value: "1"}]
    launcher: Torchrun
    numNodes: 3
    numProcPerNode: 2
    statusPort: 9090
    coordinatorPort: 9091
    resourcesPerNode: {limits: {nvidia.com/gpu: 2}}
    sharedMemory: None
    podTemplate: {spec: {priorityClassName: high}}
  elastic: {minNodes: 2, maxNodes: 4, rejoinTimeoutSeconds: 7}
  scheduling: {gang: Native, queue: q, priorityClassName: high, topology: example.com/rack}
  restartPolicy:
    maxRestarts: 1
    windowSeconds: 2
    noProgressRestarts: 4
    scope: Pod
    rules:
    - {exitCodes: [12, 14], action: ReplacePod, avoidNode: true}
    - {podReasons: [Evicted], action: Ignore}
  health: {startupTimeoutSeconds: 5, placementTimeoutSeconds: 7, stallTimeoutSeconds: 6, notReadyTimeoutSeconds: 9}
  checkpoint: {volume: {emptyDir: {}}, mountPath: /c, mountOn: AllNodes, resume: Never, onSuspendTimeoutSeconds: 8}
  successPolicy: Node0
  suspend: true
  managedBy: example.com/other
  activeDeadlineSeconds: 9
  ttlSecondsAfterFinished: 0
  podCleanup: All
  networkPolicy: IntraJob
  disruption: {budget: OneAtATime, doNotDisrupt: true}
status:
  observedGeneration: 4
  phase: Running
  reason: Training
  message: step 812 of 1000
  conditions:
  - {type: Running, status: "True", reason: Training, message: m, lastTransitionTime: "2026-11-21T10:00:00Z"}
  startTime: "2026-11-21T09:59:00Z"
  completionTime: "2026-11-21T10:59:00Z"
  nodes: {desired: 3, ready: 2, active: 3, succeeded: 0, failed: 1}
  selector: lockstep.dev/job=sasrec
  restarts: {total: 6, process: 3, pod: 2, gang: 1}
  attempts: [{node: 1, attempt: 2}]
  progress:
    step: 812
    totalSteps: 1000
    epoch: 3
    percent: 81
    estimatedRemainingSeconds: 190
    loss: "0.4321"
    samplesPerSecond: "1024.5"
    stepsPerSecond: "2.5"
    metrics: [{name: NDCG@10, value: "0.12"}]
    lastCheckpointStep: 800
    lastUpdatedTime: "2026-11-21T10:00:01Z"
  recentFailures:
  - {node: 1, rank: 2, attempt: 1, host: h, exitCode: 12, reason: DeviceFault, message: ecc, time: "2026-11-21T10:00:02Z"}
  bookkeeping: {anything: [1, 2]}
)";

TEST(TrainJob, takes_the_defaults_for_what_is_not_said) {
  const auto job = trainjob_from_json(yaml(kMinimal));
  ASSERT_TRUE(job.ok()) << job.error().message;
  EXPECT_EQ(job->meta.key(), (ObjectKey{"ml", "sasrec"}));
  EXPECT_EQ(job->spec.trainer.num_nodes, 1);
  EXPECT_EQ(job->spec.trainer.launcher, Launcher::kLockstep);
  EXPECT_FALSE(job->spec.trainer.num_proc_per_node);
  EXPECT_FALSE(job->spec.elastic);
  EXPECT_FALSE(job->spec.checkpoint);
  EXPECT_EQ(job->spec.restart_policy.max_restarts, 10);
  EXPECT_EQ(job->spec.managed_by, kControllerName);
  EXPECT_EQ(job->status, TrainJobStatus{});
}

TEST(TrainJob, reads_every_field) {
  const auto job = trainjob_from_json(yaml(kFull));
  ASSERT_TRUE(job.ok()) << job.error().message;
  const TrainJobSpec expected{
      .trainer = {.image = "i",
                  .command = {"a"},
                  .args = {"b", "c"},
                  .env = {Json{{"name", "A"}, {"value", "1"}}},
                  .launcher = Launcher::kTorchrun,
                  .num_nodes = 3,
                  .num_proc_per_node = 2,
                  .status_port = 9090,
                  .coordinator_port = 9091,
                  .resources_per_node = {{"limits", {{"nvidia.com/gpu", 2}}}},
                  .shared_memory = SharedMemory::kNone,
                  .pod_template = {{"spec", {{"priorityClassName", "high"}}}}},
      .elastic = Elastic{.min_nodes = 2, .max_nodes = 4, .rejoin_timeout_seconds = 7},
      .scheduling = {.gang = Gang::kNative,
                     .queue = "q",
                     .priority_class_name = "high",
                     .topology = "example.com/rack"},
      .restart_policy = {.max_restarts = 1,
                         .window_seconds = 2,
                         .no_progress_restarts = 4,
                         .scope = FailureScope::kPod,
                         .rules = {{.exit_codes = {12, 14}, .action = RuleAction::kReplacePod, .avoid_node = true},
                                   {.pod_reasons = {"Evicted"}, .action = RuleAction::kIgnore}}},
      .health = {.startup_timeout_seconds = 5,
                 .placement_timeout_seconds = 7,
                 .stall_timeout_seconds = 6,
                 .not_ready_timeout_seconds = 9},
      .checkpoint = Checkpoint{.volume = {{"emptyDir", Json::object()}},
                               .mount_path = "/c",
                               .mount_on = MountOn::kAllNodes,
                               .resume = Resume::kNever,
                               .on_suspend_timeout_seconds = 8},
      .success_policy = SuccessPolicy::kNode0,
      .suspend = true,
      .managed_by = "example.com/other",
      .active_deadline_seconds = 9,
      .ttl_seconds_after_finished = 0,
      .pod_cleanup = PodCleanup::kAll,
      .network_policy = NetworkPolicyMode::kIntraJob,
      .disruption = {.budget = DisruptionBudget::kOneAtATime, .do_not_disrupt = true}};
  EXPECT_EQ(job->spec, expected);
  EXPECT_EQ(job->status.phase, JobPhase::kRunning);
  EXPECT_EQ(job->status.attempts, (std::map<int, int>{{1, 2}}));
  EXPECT_EQ(job->status.progress->loss, "0.4321");
  EXPECT_EQ(job->status.recent_failures.at(0).rank, 2);
}

TEST(TrainJob, status_survives_json) {
  Json object = yaml(kFull);
  const auto job = trainjob_from_json(object);
  ASSERT_TRUE(job.ok()) << job.error().message;
  const Json status = to_json(job->status);
  object["status"] = status;
  const auto again = trainjob_from_json(object);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->status, job->status);
  EXPECT_EQ(to_json(again->status), status);
}

TEST(TrainJob, status_has_the_texts_of_the_printer_columns) {
  const auto job = trainjob_from_json(yaml(kFull));
  ASSERT_TRUE(job.ok()) << job.error().message;
  const Json status = to_json(job->status);
  EXPECT_EQ(status["nodes"]["summary"], "2/3");
  EXPECT_EQ(status["progress"]["summary"], "81%");
  EXPECT_EQ(status["progress"]["eta"], "3m10s");
}

TEST(TrainJob, status_has_one_entry_for_consecutive_nodes_with_the_same_attempt) {
  TrainJobStatus status;
  for (int node = 0; node < 1000; ++node) status.attempts[node] = node == 7 ? 2 : 1;
  status.attempts[1002] = 1;
  Json object = yaml(kFull);
  object["status"] = to_json(status);
  EXPECT_EQ(object["status"]["attempts"], Json::parse(R"([{"node": 0, "lastNode": 6, "attempt": 1},
      {"node": 7, "attempt": 2}, {"node": 8, "lastNode": 999, "attempt": 1}, {"node": 1002, "attempt": 1}])"));
  EXPECT_EQ(trainjob_from_json(object)->status.attempts, status.attempts);
  object["status"]["attempts"] = {{{"node", 0}, {"lastNode", 2'000'000'000}, {"attempt", 1}}};
  EXPECT_EQ(trainjob_from_json(object)->status.attempts.rbegin()->first, kNodeRankMax);
}

TEST(TrainJob, status_promises_no_progress_that_is_not_known) {
  TrainJobStatus status;
  status.progress.emplace().step = 5;
  const Json progress = to_json(status)["progress"];
  EXPECT_FALSE(progress.contains("summary"));
  EXPECT_FALSE(progress.contains("eta"));
}

TEST(TrainJob, status_keeps_the_newest_failures) {
  TrainJobStatus status;
  for (int i = 0; i < 12; ++i) status.recent_failures.push_back({.node = i});
  const Json failures = to_json(status)["recentFailures"];
  ASSERT_EQ(failures.size(), kRecentFailuresInStatusMax);
  EXPECT_EQ(failures.front()["node"], 2);
  EXPECT_EQ(failures.back()["node"], 11);
}

TEST(TrainJob, takes_null_as_absent_and_a_whole_float_as_a_whole_number) {
  Json object = yaml(kMinimal);
  object["spec"]["elastic"] = nullptr;
  object["spec"]["trainer"]["numNodes"] = 2.0;
  object["spec"]["trainer"]["numProcPerNode"] = "auto";
  const auto job = trainjob_from_json(object);
  ASSERT_TRUE(job.ok()) << job.error().message;
  EXPECT_FALSE(job->spec.elastic);
  EXPECT_EQ(job->spec.trainer.num_nodes, 2);
}

TEST(TrainJob, with_a_phase_of_a_newer_operator_has_no_phase) {
  Json object = yaml(kMinimal);
  object["status"]["phase"] = "Queued";
  object["status"]["reason"] = "InQueue";
  const auto job = trainjob_from_json(object);
  ASSERT_TRUE(job.ok()) << job.error().message;
  EXPECT_FALSE(job->status.phase);
  EXPECT_EQ(job->status.reason, "InQueue");
}

struct Fault {
  const char* pointer;
  Json value;
  const char* message;
};

TEST(TrainJob, that_cannot_be_read_names_the_field) {
  const std::vector<Fault> faults = {
      {"/kind", "Job", R"(kind: is "Job", expected TrainJob)"},
      {"/apiVersion", "lockstep.dev/v2", R"(apiVersion: is "lockstep.dev/v2", expected lockstep.dev/v1)"},
      {"/apiVersion", 1, "apiVersion: is 1, expected a string"},
      {"/spec", nullptr, "spec: is missing, expected an object with trainer"},
      {"/spec", "x", R"(spec: is "x", expected an object)"},
      {"/spec/trainer/image", nullptr, "spec.trainer.image: is missing, expected the container image to run"},
      {"/spec/trainer/numNodes", "two", R"(spec.trainer.numNodes: is "two", expected a whole number of 32 bits)"},
      {"/spec/trainer/numNodes", 1.5, "spec.trainer.numNodes: is 1.5, expected a whole number of 32 bits"},
      {"/spec/trainer/numNodes", 1e30, "spec.trainer.numNodes: is 1e+30, expected a whole number of 32 bits"},
      {"/spec/trainer/numNodes", 4294967296,
       "spec.trainer.numNodes: is 4294967296, expected a whole number of 32 bits"},
      {"/spec/trainer/numProcPerNode", "all",
       R"(spec.trainer.numProcPerNode: is "all", expected auto or a whole number)"},
      {"/spec/trainer/launcher", "mpirun",
       R"(spec.trainer.launcher: is "mpirun", expected one of Lockstep, Torchrun, None)"},
      {"/spec/trainer/args", Json::array({"a", 1}), "spec.trainer.args[1]: is 1, expected a string"},
      {"/spec/trainer/args", "a", R"(spec.trainer.args: is "a", expected a list)"},
      {"/spec/trainer/env", Json::array({"A=1"}),
       R"(spec.trainer.env[0]: is "A=1", expected an object with name and value)"},
      {"/spec/trainer/podTemplate", 3, "spec.trainer.podTemplate: is 3, expected an object"},
      {"/spec/elastic", Json::object(),
       "spec.elastic.minNodes: is missing, expected the smallest number of pods to go on with"},
      {"/spec/checkpoint", Json::object(),
       "spec.checkpoint.volume: is missing, expected a volume such as {persistentVolumeClaim: {claimName: NAME}}"},
      {"/spec/suspend", "true", R"(spec.suspend: is "true", expected true or false)"},
      {"/spec/restartPolicy/rules", Json::array({Json::object()}),
       "spec.restartPolicy.rules[0].action: is missing, expected Fail, ReplacePod, RestartGang or Ignore"},
      {"/spec/restartPolicy/rules", Json::array({{{"action", "Fail"}, {"exitCodes", {1, "x"}}}}),
       R"(spec.restartPolicy.rules[0].exitCodes[1]: is "x", expected a whole number of 32 bits)"},
      {"/spec/activeDeadlineSeconds", 18446744073709551615U,
       "spec.activeDeadlineSeconds: is 18446744073709551615, expected a whole number"},
      {"/status/startTime", "yesterday",
       R"(status.startTime: is "yesterday", expected a time such as 2026-11-21T10:00:00Z)"},
  };
  for (const Fault& fault : faults) {
    Json object = yaml(kMinimal);
    object[Json::json_pointer(fault.pointer)] = fault.value;
    const auto job = trainjob_from_json(object);
    ASSERT_FALSE(job.ok()) << fault.pointer;
    EXPECT_EQ(job.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(job.error().message, fault.message);
  }
}

TEST(TrainJob, that_is_no_object_is_refused) {
  EXPECT_FALSE(trainjob_from_json(Json::array()).ok());
  EXPECT_FALSE(trainjob_from_json(Json()).ok());
}

}  // namespace
}  // namespace lockstep::api
