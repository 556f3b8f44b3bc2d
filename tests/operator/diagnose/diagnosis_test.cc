#include "operator/diagnose/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/diagnose/ending.h"
#include "tests/operator/diagnose/facts_builder.h"

namespace lockstep::diagnose {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kKilled = R"({"node": 1, "rank": 3, "attempt": 0, "host": "node-1", "exitCode": 137,
                                    "reason": "OutOfMemory", "message": "worker 3 was killed"})";

std::vector<std::string> texts(const std::vector<TimelineEntry>& timeline) {
  std::vector<std::string> all;
  for (const TimelineEntry& one : timeline) all.push_back(one.text);
  return all;
}

std::vector<std::string> states(const std::vector<PodRow>& pods) {
  std::vector<std::string> all;
  for (const PodRow& row : pods) all.push_back(row.state);
  return all;
}

FactsBuilder built() { return {}; }

// --- verdicts

struct VerdictCase {
  std::string name;
  Facts facts;
  bool is_well;
  std::string verdict;
  std::string advice;  // in a text or a command; "": there is none
};

std::vector<VerdictCase> verdict_cases() {
  FactsBuilder recovering;
  recovering.failure(kKilled)
      .status(R"({"phase": "Recovering", "attempts": [{"node": 1, "attempt": 1}]})")
      .condition("Running", "False", "Recovering")
      .condition("Recovering", "True", "OutOfMemory", "m", 20);
  FactsBuilder recovering_in_vain = recovering;
  recovering_in_vain.condition("PodsReady", "False", "Unschedulable",
                               "1 of 2 pods are ready; pod sasrec-1-1 cannot be scheduled");
  FactsBuilder again;
  again.failure(kKilled)
      .ended(1, 0, 137, "OOMKilled", R"({"rank": 3, "step": 812, "message": "worker 3 was killed"})")
      .status(R"({"attempts": [{"node": 1, "attempt": 1}], "restarts": {"total": 1, "pod": 1},
                  "bookkeeping": {"counted": {"1794999900": 1, "1794990000": 5}}})")
      .condition("Running", "True", "StepCommitted", "m", 40);
  const auto of = [](FactsBuilder& builder) { return std::move(builder.facts); };
  return {
      {"trains", built().facts, true, "TrainJob sasrec trains since 1m40s", ""},
      {"not_found",
       [] {
         Facts facts;
         facts.ns = "team";
         facts.name = "sasrek";
         facts.jobs_there = {"other", "sasrec"};
         return facts;
       }(),
       false, "there is no TrainJob sasrek in namespace team; did you mean sasrec?", "kubectl get tj -A"},
      {"none_there", Facts{.ns = "team", .name = "a"}, false, "there is no TrainJob a in namespace team, nor any other",
       "-A"},
      {"managed_by_another", of(built().spec(R"({"managedBy": "kueue.x-k8s.io/multikueue"})")), true,
       "TrainJob sasrec is left alone by the Lockstep operator: spec.managedBy is kueue.x-k8s.io/multikueue", ""},
      {"deleted", of(built().metadata(R"({"deletionTimestamp": "2026-11-18T11:05:40Z", "finalizers": ["x/y"]})")),
       false, "TrainJob sasrec is being deleted, for 1m; 2 pods of it are still there", "describe"},
      {"new",
       of(built()
              .status(R"({"observedGeneration": null})")
              .metadata(R"({"creationTimestamp": "2026-11-18T11:06:35Z"})")),
       true, "TrainJob sasrec was made 5s ago; the operator has not seen it yet", ""},
      {"unseen", of(built().status(R"({"observedGeneration": null})")), false,
       "no operator has looked at TrainJob sasrec, which was made 10m ago", "kubectl get deployments,pods -A"},
      {"stale_generation", of(built().metadata(R"({"generation": 3})")), false,
       "the operator has not looked at the newest change of TrainJob sasrec (generation 3, seen: 1)",
       "get deployments"},
      {"stale_lease",
       [] {
         Facts facts = built().facts;
         facts.operator_seen = kNow - 120;
         return facts;
       }(),
       false,
       "no operator leads: its Lease was last renewed 2m ago; the status below is of that time, and nothing is "
       "repaired",
       "kubectl logs -n lockstep-system"},
      {"lease_of_another_operator",
       [] {
         Facts facts = built().status(R"({"progress": {"step": 9, "lastUpdatedTime": "2026-11-18T11:06:38Z"}})").facts;
         facts.operator_seen = kNow - 300;
         return facts;
       }(),
       true, "TrainJob sasrec trains since 1m40s", ""},
      {"complete_with_a_stale_lease",
       [] {
         Facts facts = built().condition("Complete", "True", "AllDone", "m", 9'000).facts;
         facts.operator_seen = kNow - 300;
         return facts;
       }(),
       true, "TrainJob sasrec is complete", ""},
      {"lease_renewed",
       [] {
         Facts facts = built().facts;
         facts.operator_seen = kNow - 3;
         return facts;
       }(),
       true, "TrainJob sasrec trains since 1m40s", ""},
      {"complete",
       of(built()
              .condition("Complete", "True", "AllDone")
              .status(R"({"phase": "Complete", "completionTime": "2026-11-18T11:05:40Z", "restarts": {"total": 2}})")),
       true, "TrainJob sasrec is complete after 9m, 1m ago; 2 restarts on the way", ""},
      {"suspended",
       of(built()
              .spec(R"({"suspend": true})")
              .status(R"({"phase": "Suspended", "progress": {"step": 9, "lastCheckpointStep": 8}})")),
       true, "TrainJob sasrec is suspended; it goes on from its checkpoint of step 8", "\"suspend\": false"},
      {"suspended_without_checkpoints", of(built().spec(R"({"suspend": true})").status(R"({"phase": "Suspended"})")),
       true, "TrainJob sasrec is suspended; it keeps no checkpoints: it starts from step 0", "\"suspend\": false"},
      {"suspended_program_of_another_launcher",
       of(built()
              .spec(R"({"suspend": true, "trainer": {"launcher": "Torchrun"}})")
              .status(R"({"phase": "Suspended"})")),
       true,
       "TrainJob sasrec is suspended; its program itself knows where it goes on, because its checkpoints are its own",
       "\"suspend\": false"},
      {"suspending",
       of(built()
              .spec(R"({"suspend": true})")
              .condition("Suspended", "False", "Suspending", "2 pods were told to stop.")),
       true, "TrainJob sasrec is being suspended: 2 pods were told to stop", ""},
      {"held",
       of(built()
              .status(R"({"phase": "Suspended", "bookkeeping": {"held": {"generation": 1,
                          "reason": "ConfigurationChanged", "message": "Pod sasrec-0-0 ended: --lr is 1 and was 2."}}})")
              .condition("Suspended", "True", "ConfigurationChanged")),
       false,
       "TrainJob sasrec was suspended by the operator (ConfigurationChanged): Pod sasrec-0-0 ended: --lr is 1 and was "
       "2",
       "kubectl edit -n team tj sasrec"},
      {"queued",
       of(built()
              .status(R"({"phase": "Suspended"})")
              .condition("Suspended", "True", "Queued")
              .condition("Admitted", "False", "Queued",
                         "The job waits in queue \"team\": insufficient unused quota for cpu, 4 more needed.")),
       true, "TrainJob sasrec waits in queue \"team\": insufficient unused quota for cpu, 4 more needed",
       "kubectl get -n team workloads.kueue.x-k8s.io"},
      {"queue_that_does_not_exist",
       of(built()
              .status(R"({"phase": "Suspended"})")
              .condition("Suspended", "True", "Inadmissible")
              .condition("Admitted", "False", "Inadmissible",
                         "The job waits in queue \"team\": LocalQueue team doesn't exist.")),
       false, "TrainJob sasrec waits in queue \"team\": LocalQueue team doesn't exist",
       "kubectl describe clusterqueues.kueue.x-k8s.io"},
      {"priority_class_that_does_not_exist",
       of(built()
              .status(R"({"phase": "Suspended"})")
              .condition("Suspended", "True", "PriorityClassMissing")
              .condition("Admitted", "False", "PriorityClassMissing",
                         "The job cannot wait in queue \"team\": there is no WorkloadPriorityClass \"high\".")),
       false, "TrainJob sasrec cannot wait in queue \"team\": there is no WorkloadPriorityClass \"high\"",
       "kubectl get workloadpriorityclasses.kueue.x-k8s.io"},
      {"evicted",
       of(built()
              .condition("Suspended", "False", "Suspending", "2 pods were told to stop.")
              .condition("Admitted", "False", "Preempted",
                         "The job was evicted from queue \"team\" (Preempted: others come first).")),
       false, "TrainJob sasrec was evicted from queue \"team\" (Preempted: others come first)",
       "kubectl get -n team workloads.kueue.x-k8s.io"},
      {"no_kueue",
       of(built()
              .status(R"({"phase": "Suspended"})")
              .condition("Suspended", "True", "QueueUnavailable")
              .condition("Admitted", "False", "QueueUnavailable", "The job waits for queue \"team\": no Kueue.")),
       false, "TrainJob sasrec waits for queue \"team\": no Kueue", "kubectl describe"},
      {"starting",
       of(built()
              .condition("Running", "False", "NoStepYet")
              .condition("PodsReady", "False", "PodsStarting")
              .status(R"({"phase": "Starting", "nodes": {"ready": 1}})")),
       true, "TrainJob sasrec is starting: 1 of 2 pods ready, 10m after its start", ""},
      {"recovering", recovering.facts, false,
       "rank 3 in pod sasrec-1-0 was killed by the kernel (out of memory); restarted; recovering since 20s",
       "resourcesPerNode"},
      {"recovering_in_vain", recovering_in_vain.facts, false,
       "rank 3 in pod sasrec-1-0 was killed by the kernel (out of memory); restarted, and its new pod cannot be "
       "scheduled",
       "kubectl get nodes"},
      {"trains_again", again.facts, true,
       "rank 3 in pod sasrec-1-0 was killed by the kernel (out of memory) at step 812; restarted (1 of maxRestarts 10 "
       "used); "
       "training again since 40s",
       "--batch_size"},
      {"straggler",
       of(built().condition("Degraded", "True", "Straggler",
                            "Rank 1 in pod sasrec-1-0 on node-1 is slower than the others.")),
       false, "TrainJob sasrec trains since 1m40s; Rank 1 in pod sasrec-1-0 on node-1 is slower than the others",
       "describe"},
      {"silent",
       of(built().status(
           R"({"progress": {"step": 9, "totalSteps": 10, "percent": 90, "lastUpdatedTime": "2026-11-18T10:56:40Z"}})")),
       false, "TrainJob sasrec trains since 1m40s; no figures since 10m", "kubectl logs -n team sasrec-0-0"},
  };
}

class Verdict : public testing::TestWithParam<VerdictCase> {};

TEST_P(Verdict, says_it_in_one_sentence) {
  const VerdictCase& one = GetParam();
  const Diagnosis diagnosis = diagnose(one.facts);
  EXPECT_EQ(diagnosis.verdict, one.verdict);
  EXPECT_EQ(diagnosis.is_well, one.is_well);
  if (one.advice.empty()) {
    EXPECT_THAT(diagnosis.advice, IsEmpty());
  } else {
    EXPECT_THAT(diagnosis.advice, Contains(AnyOf(Field(&Advice::text, HasSubstr(one.advice)),
                                                 Field(&Advice::command, HasSubstr(one.advice)))));
  }
}

INSTANTIATE_TEST_SUITE_P(cases, Verdict, testing::ValuesIn(verdict_cases()),
                         [](const auto& info) { return info.param.name; });

// --- failures

FactsBuilder failed(const std::string& reason, const std::string& message) {
  FactsBuilder builder;
  builder.condition("Failed", "True", reason, message)
      .condition("Running", "False", "Failed")
      .status(R"({"phase": "Failed", "completionTime": "2026-11-18T11:05:50Z"})");
  return builder;
}

struct EndingCase {
  int code;
  const char* container_reason;
  const char* reason;  // of the failure
  const char* words;
  const char* advice;
};

class Ending : public testing::TestWithParam<EndingCase> {};

TEST_P(Ending, is_named_by_its_code_and_what_helps) {
  const EndingCase& one = GetParam();
  FactsBuilder builder =
      failed(one.reason, std::string("Pod sasrec-1-0 ended with x (") + one.reason + "); never retried");
  const Json failure = {{"node", 1},
                        {"attempt", 0},
                        {"host", "node-1"},
                        {"exitCode", one.code},
                        {"reason", one.reason},
                        {"message", "its words"}};
  builder.failure(failure.dump().c_str()).ended(1, 0, one.code, one.container_reason, "its words");
  const Diagnosis diagnosis = diagnose(builder.facts);
  EXPECT_EQ(diagnosis.verdict,
            std::string("TrainJob sasrec has failed: pod sasrec-1-0 ") + one.words + "; it was not tried again");
  EXPECT_FALSE(diagnosis.is_well);
  EXPECT_THAT(diagnosis.details, Contains("its last message: its words"));
  EXPECT_THAT(diagnosis.details,
              Contains(StartsWith("pod sasrec-1-0 on node-1, exit code " + std::to_string(one.code) + ": ")));
  EXPECT_THAT(states(diagnosis.pods),
              ElementsAre("ready", AnyOf("ended with " + std::to_string(one.code) + " (" + one.reason + ")")));
  EXPECT_THAT(diagnosis.advice, Contains(AnyOf(Field(&Advice::text, HasSubstr(one.advice)),
                                               Field(&Advice::command, HasSubstr(one.advice)))));
}

INSTANTIATE_TEST_SUITE_P(
    cases, Ending,
    testing::Values(
        EndingCase{1, "Error", "Crash", "crashed with exit code 1", "kubectl logs -n team sasrec-1-0"},
        EndingCase{2, "Error", "InvalidUsage", "refused its arguments", "lockstep validate -f"},
        EndingCase{3, "Error", "DataUnreadable", "could not read its data", "kubectl get -n team pvc"},
        EndingCase{4, "Error", "CheckpointFailed", "could not read or write a checkpoint", "fsGroup"},
        EndingCase{5, "Error", "NotFinite", "stopped because loss or gradient were not finite", "--clip_grad_norm"},
        EndingCase{10, "Error", "PeerLost", "lost its peers and could not form the group again", "kubectl logs"},
        EndingCase{11, "Error", "TimedOut", "hung: a collective or a step timed out", "stacks"},
        EndingCase{12, "Error", "DeviceFault", "met a fault of its device", "kubectl cordon"},
        EndingCase{13, "Error", "OutOfMemory", "ran out of memory", "limits.memory"},
        EndingCase{137, "OOMKilled", "OutOfMemory", "was killed by the kernel (out of memory)", "limits.memory"},
        EndingCase{139, "Error", "SignalSEGV", "was killed by signal 11 (SignalSEGV)", "kubectl logs"}));

// 13 is EACCES to most programs, and 5 an I/O error to rclone.
TEST(Failure, of_another_program_or_an_init_container_is_a_crash_whatever_its_number) {
  EXPECT_EQ(exit_code_words("OutOfMemory", 13), "13: out of memory");
  EXPECT_EQ(exit_code_words("Crash", 13), "13: a crash");
  EXPECT_EQ(exit_code_words("InitContainerFailed", 5), "5: a crash");
  EXPECT_EQ(exit_code_words("SignalSEGV", 139), "139: killed by SIGSEGV");
}

TEST(Failure, of_the_budgets_names_them) {
  const char* const kCrash = R"({"node": 0, "attempt": 0, "exitCode": 1, "reason": "Crash", "message": ""})";
  EXPECT_EQ(diagnose(failed("TooManyRestarts", "Pod sasrec-0-0 (Crash)").failure(kCrash).facts).verdict,
            "TrainJob sasrec has failed: pod sasrec-0-0 crashed with exit code 1; that was once more than "
            "restartPolicy.maxRestarts (10) allows");
  EXPECT_EQ(
      diagnose(failed("NoProgress", "Pod sasrec-0-0 (Crash)").failure(kCrash).facts).verdict,
      "TrainJob sasrec has failed: pod sasrec-0-0 crashed with exit code 1; restarts came no further 3 times in a row");
}

TEST(Failure, without_an_end_says_the_operators_words) {
  const Diagnosis invalid =
      diagnose(failed("InvalidSpec", "spec.trainer.podTemplate.spec.x: is not known.").no_pods().facts);
  EXPECT_EQ(invalid.verdict, "TrainJob sasrec has failed (InvalidSpec): spec.trainer.podTemplate.spec.x: is not known");
  EXPECT_THAT(invalid.pods, IsEmpty());
  // An end of long before is not the reason.
  const Diagnosis deadline = diagnose(failed("DeadlineExceeded", "The job has run for 60 s.").failure(kKilled).facts);
  EXPECT_EQ(deadline.verdict, "TrainJob sasrec has failed (DeadlineExceeded): The job has run for 60 s");
  EXPECT_THAT(deadline.advice, Contains(Field(&Advice::text, HasSubstr("activeDeadlineSeconds"))));
}

// The pod's status says that it is being created; what is missing there, only an event of the kubelet says.
TEST(Start, says_what_the_node_says_of_a_pod_that_it_does_not_get_started) {
  constexpr const char* kCreating = R"({"phase": "Pending",
      "conditions": [{"type": "PodScheduled", "status": "True"},
                     {"type": "PodReadyToStartContainers", "status": "False"}],
      "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}]})";
  FactsBuilder builder;
  builder.condition("Running", "False", "NoStepYet")
      .condition("PodsReady", "False", "ContainerCreating", "1 of 2 pods is ready; pod sasrec-1-0 is created.")
      .status(R"({"phase": "Starting"})")
      .pod(1, 0, kCreating)
      .event("FailedMount", "configmap \"settings\" not found", true, 20, "sasrec-1-0")
      .event("FailedMount", "timed out waiting for the condition", true, 90, "sasrec-1-0")
      .event("Unhealthy", "the probe of a pod that runs", true, 5, "sasrec-0-0");
  const Diagnosis diagnosis = diagnose(builder.facts);
  EXPECT_FALSE(diagnosis.is_well);
  EXPECT_EQ(diagnosis.verdict, "TrainJob sasrec waits for its node, which sets up volumes, network and devices");
  EXPECT_THAT(diagnosis.details, Contains("pod sasrec-1-0, FailedMount: configmap \"settings\" not found"));
  EXPECT_THAT(diagnosis.details, Not(Contains(HasSubstr("Unhealthy"))));
  EXPECT_THAT(diagnosis.advice, Contains(Field(&Advice::command, "kubectl describe -n team pod sasrec-1-0")));
}

TEST(Start, names_the_init_container_that_runs) {
  FactsBuilder builder;
  builder.condition("Running", "False", "NoStepYet")
      .condition("PodsReady", "False", "PodsStarting",
                 "1 of 2 pods is ready; pod sasrec-1-0: init container fetch runs.")
      .status(R"({"phase": "Starting", "nodes": {"ready": 1}})")
      .pod(1, 0, R"({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}],
          "initContainerStatuses": [{"name": "fetch", "ready": false, "state": {"running": {}}}],
          "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}]})");
  const Diagnosis diagnosis = diagnose(builder.facts);
  EXPECT_TRUE(diagnosis.is_well);
  EXPECT_THAT(states(diagnosis.pods), ElementsAre("ready", "init container fetch runs"));
}

TEST(Failure, to_start_in_time_is_explained_by_what_kept_the_pods) {
  FactsBuilder builder = failed("StartupTimeout", "0 of the 2 pods that are needed were ready after 900 s: x");
  builder.event("ImagePullBackOff", "cannot pull", true, 100);
  builder.facts.events.back()["action"] = "MakePods";
  EXPECT_THAT(diagnose(builder.facts).advice, Contains(Field(&Advice::text, HasSubstr("spelt right, pushed"))));
}

TEST(Failure, to_pull_the_agent_is_not_the_trainers_image) {
  FactsBuilder builder = failed("StartupTimeout", "0 of the 2 pods that are needed were ready after 900 s: x");
  builder.event("ImagePullBackOff", "pod a-0-0: container lockstep-agent: no such image", true, 100);
  builder.facts.events.back()["action"] = "MakePods";
  EXPECT_THAT(diagnose(builder.facts).advice, Contains(Field(&Advice::text, HasSubstr("--agent_image"))));
}

// --- waits

TEST(Wait, every_reason_of_the_operator_has_words) {
  for (const char* reason : {"InvalidSpec",
                             "Unschedulable",
                             "ErrImagePull",
                             "ImagePullBackOff",
                             "InvalidImageName",
                             "CreateContainerConfigError",
                             "CreateContainerError",
                             "ClaimMissing",
                             "VolumeStillAttached",
                             "QuotaExceeded",
                             "PriorityClassMissing",
                             "CreateRefused",
                             "NameTaken",
                             "PreviousRunTerminating",
                             "ObjectTerminating",
                             "NamespaceTerminating",
                             "BackingOff",
                             "NotScheduled",
                             "SchedulingGated",
                             "PodsGivenBack",
                             "PodGroupUnavailable"}) {
    FactsBuilder builder;
    builder.status(R"({"bookkeeping": {"waitingSince": 1794999970}})")
        .condition("Running", "False", "NoStepYet")
        .condition("PodsReady", "False", reason, "the words of " + std::string(reason) + ".", 60);
    const Diagnosis diagnosis = diagnose(builder.facts);
    EXPECT_FALSE(diagnosis.is_well) << reason;
    EXPECT_THAT(diagnosis.verdict, AllOf(StartsWith("TrainJob sasrec "), Not(HasSubstr("(")))) << reason;
    EXPECT_THAT(diagnosis.details, Contains(std::string(reason) + ": the words of " + reason)) << reason;
    const bool is_refused = std::string(reason) == "InvalidSpec";  // then the time of a queued job's reservation runs
    EXPECT_THAT(diagnosis.details,
                Contains(HasSubstr(std::string("not ready since 1m; the job ") +
                                   (is_refused ? "gives its reservation in the queue back" : "fails") +
                                   " when this has kept it for 15m")))
        << reason;
  }
}

TEST(Wait, for_another_spec_says_that_it_may_be_edited_while_there_are_no_pods) {
  const auto advice_in = [](const std::string& phase) {
    FactsBuilder builder;
    const std::string status = R"({"reason": "InvalidSpec", "phase": ")" + phase + "\"}";
    builder.status(status.c_str())
        .condition("Running", "False", "NoStepYet")
        .condition("PodsReady", "False", "InvalidSpec", "spec.trainer.env[0].name: bad.", 60);
    return diagnose(builder.facts).advice;
  };
  EXPECT_THAT(advice_in("Pending"), Contains(Field(&Advice::text, HasSubstr("the job goes on by itself"))));
  EXPECT_THAT(advice_in("Pending"), Not(Contains(Field(&Advice::text, HasSubstr("while the job is suspended")))));
  EXPECT_THAT(advice_in("Starting"), Contains(Field(&Advice::text, HasSubstr("while the job is suspended"))));
}

TEST(Wait, for_a_container_that_cannot_be_set_up_is_told_by_the_kubelets_words) {
  struct Case {
    const char* kubelet;
    const char* verdict;
    const char* advice;
  };
  for (const Case& one :
       {Case{"container has runAsNonRoot and image will run as root",
             "TrainJob sasrec needs a user by number, who is not root, for its container", "USER 65532"},
        Case{"container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
             "needs a user by number, who is not root, for its container", "podTemplate.spec.securityContext"},
        Case{"secret \"hub\" not found", "names a Secret or ConfigMap, or a key of one, that is not there", "kubelet"},
        Case{"couldn't find key token in ConfigMap team/hub", "names a Secret or ConfigMap", "kubelet"},
        Case{"failed to prepare subPath", "has a container that its node cannot set up", "kubelet"}}) {
    FactsBuilder builder;
    builder.condition("Running", "False", "NoStepYet")
        .condition("PodsReady", "False", "CreateContainerConfigError",
                   std::string("0 of 2 pods are ready; pod sasrec-0-0, container trainer: ") + one.kubelet, 60);
    const Diagnosis diagnosis = diagnose(builder.facts);
    EXPECT_THAT(diagnosis.verdict, HasSubstr(one.verdict));
    EXPECT_THAT(diagnosis.advice, Contains(Field(&Advice::text, HasSubstr(one.advice)))) << one.kubelet;
  }
}

TEST(Wait, for_an_agent_is_told_in_the_operators_words) {
  FactsBuilder builder;
  builder.condition("Running", "False", "NoStepYet")
      .condition("PodsReady", "False", "PodsStarting",
                 "0 of 2 pods are ready; pod sasrec-0-0 runs, but no Lockstep agent answers in it.");
  EXPECT_THAT(diagnose(builder.facts).details,
              Contains("0 of 2 pods are ready; pod sasrec-0-0 runs, but no Lockstep agent answers in it"));
}

TEST(Wait, for_machines_says_that_it_ends_nothing) {
  FactsBuilder builder;
  builder.condition("Running", "False", "NoStepYet").condition("PodsReady", "False", "Unschedulable", "x", 60);
  EXPECT_THAT(diagnose(builder.facts).details, Contains("not ready since 1m; the job waits for as long as it takes"));
}

TEST(Gang, a_missing_gang_is_reported_while_the_job_trains) {
  FactsBuilder builder;
  builder.condition("GangScheduled", "False", "NoGang", "There is no gang: a gate is off.");
  EXPECT_THAT(diagnose(builder.facts).details, Contains("NoGang: There is no gang: a gate is off"));
  builder.condition("GangScheduled", "False", "TopologyIgnored", "There is no topology: a gate is off.");
  EXPECT_THAT(diagnose(builder.facts).details, Contains("TopologyIgnored: There is no topology: a gate is off"));
}

TEST(Gang, that_starts_anew_says_what_it_waits_for) {
  FactsBuilder builder;
  builder.condition("GangScheduled", "False", "EarlierGangEnding", "The gang waits: 1 pod has not ended.");
  EXPECT_THAT(diagnose(builder.facts).details, Contains("EarlierGangEnding: The gang waits: 1 pod has not ended"));
}

TEST(Wait, of_an_unknown_reason_is_said_by_it) {
  FactsBuilder builder;
  builder.condition("Running", "False", "NoStepYet").condition("PodsReady", "False", "Novelty", "x");
  EXPECT_EQ(diagnose(builder.facts).verdict, "TrainJob sasrec waits (Novelty)");
}

// --- the rest of the screen

TEST(Timeline, has_each_entry_once_and_in_order) {
  FactsBuilder builder;
  builder.failure(kKilled)
      .event("Running", "The run trains.", false, 300)
      .event("OutOfMemory", "Pod sasrec-1-0 ended; it is replaced.", true, 49);
  builder.event("FailedScheduling", "no node fits", true, 45, "sasrec-1-1")
      .event("Pulled", "image is there", false, 44, "sasrec-1-1");
  EXPECT_THAT(texts(diagnose(builder.facts).timeline), ElementsAre("the TrainJob was made", "Running: The run trains",
                                                                   "OutOfMemory: Pod sasrec-1-0 ended; it is replaced",
                                                                   "pod sasrec-1-1, FailedScheduling: no node fits"));
  // An event lives an hour; the status remembers.
  builder.facts.events.clear();
  EXPECT_THAT(
      texts(diagnose(builder.facts).timeline),
      ElementsAre("the TrainJob was made",
                  "rank 3 in pod sasrec-1-0 was killed by the kernel (out of memory) (node-1): worker 3 was killed"));
}

TEST(Log, is_that_of_the_newest_bad_end_and_only_shown_when_something_is_wrong) {
  FactsBuilder builder = failed("Crash", "x (Crash)");
  builder.ended(1, 0, 1, "Error", "x");
  EXPECT_EQ(pod_to_read(builder.facts), "sasrec-1-0");
  builder.facts.logs["sasrec-1-0"] = "1\n2\n3\n4\n5\n\n6\n7\n8\n9\n10\n";
  const Diagnosis diagnosis = diagnose(builder.facts);
  EXPECT_EQ(diagnosis.log_pod, "sasrec-1-0");
  EXPECT_THAT(diagnosis.log, ElementsAre("3", "4", "5", "6", "7", "8", "9", "10"));
  EXPECT_EQ(pod_to_read(FactsBuilder().facts), "");
}

TEST(Diagnosis, says_so_if_no_server_would_store_the_object) {
  Facts facts = built().facts;
  (*facts.job)["spec"]["trainer"]["numNodes"] = "two";
  const Diagnosis diagnosis = diagnose(facts);
  EXPECT_FALSE(diagnosis.is_well);
  EXPECT_THAT(diagnosis.verdict, HasSubstr("cannot be read: spec.trainer.numNodes"));
  EXPECT_EQ(pod_to_read(facts), "");
}

TEST(Diagnosis, bears_parts_that_are_missing_or_of_another_type) {
  Facts facts = built().facts;
  facts.events = {Json::object(), Json::array(),
                  Json{{"type", 3}, {"involvedObject", "x"}, {"lastTimestamp", "never"}}};
  facts.pods.push_back(Json::object());
  facts.pods.push_back({{"metadata", 3}, {"status", "x"}});
  (*facts.job)["status"].erase("conditions");
  EXPECT_FALSE(diagnose(facts).verdict.empty());
}

}  // namespace
}  // namespace lockstep::diagnose
