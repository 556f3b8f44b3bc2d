// The numbers and tables of a queue's Workload that the golden cases do not show.
#include "operator/train/kueue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"

namespace lockstep::train {
namespace {

using testing::HasSubstr;

constexpr api::UnixSeconds kNow = 1'000'000;

api::TrainJob queued_job(int num_pods) {
  api::TrainJob job;
  job.meta.name = "sasrec";
  job.meta.ns = "team-a";
  job.meta.uid = "uid-1";
  job.meta.labels[std::string(kQueueLabel)] = "team-queue";
  job.spec.trainer.num_nodes = num_pods;
  job.spec.elastic = api::Elastic{.min_nodes = 1, .max_nodes = 8};
  return job;
}

const Json kPod = {{"spec", {{"containers", Json::array({{{"name", "trainer"}, {"image", "i"}}})}}}};

const Json& patch_of(const Action& action) { return std::get<PatchObject>(action.what).patch; }
bool is_of_status(const Action& action) {
  const auto* const patch = std::get_if<PatchObject>(&action.what);
  return patch != nullptr && patch->subresource == "status";
}

KueueView kueue_with(Json workload) {
  return {.version = "v1beta2", .workloads = {workload_from_json(std::move(workload))}};
}

// Asks for `count`, and was given `given` of them.
Json admitted(int count, int given, int reclaimable = 0) {
  Json workload = desired_workload(queued_job(count), count, kPod, {.version = "v1beta2"});
  workload["metadata"]["uid"] = "w";
  workload["metadata"]["resourceVersion"] = "7";
  workload["status"] = {
      {"conditions", Json::array({{{"type", "QuotaReserved"}, {"status", "True"}, {"reason", "QuotaReserved"}},
                                  {{"type", "Admitted"}, {"status", "True"}, {"reason", "Admitted"}}})},
      {"admission",
       {{"clusterQueue", "cq"}, {"podSetAssignments", Json::array({{{"name", "main"}, {"count", given}}})}}}};
  if (reclaimable > 0) {
    workload["status"]["reclaimablePods"] = Json::array({{{"name", "main"}, {"count", reclaimable}}});
  }
  return workload;
}

QueueInput queue_input(int wanted, std::set<int> node_ranks) {
  return {.node_ranks_with_pods = std::move(node_ranks), .wanted_pods = wanted, .pod = kPod, .now = kNow};
}

TEST(Kueue, growth_and_shrinking_of_a_job_that_runs) {
  struct Row {
    const char* what;
    int asked, given, reclaimable, wanted;
    std::set<int> pods;
    bool may_run;
    int reclaims;  // 0: nothing is given back
  };
  const Row rows[] = {
      {"as it was admitted", 4, 4, 0, 4, {0, 1, 2, 3}, true, 0},
      {"partly admitted: its larger number is what it asked for", 4, 2, 0, 4, {0, 1}, true, 0},
      {"it asks for more", 4, 4, 0, 5, {0, 1, 2, 3}, false, 0},
      {"it asks for less, and the pod still ends", 4, 4, 0, 3, {0, 1, 2, 3}, true, 0},
      {"it asks for less, and the pod has ended", 4, 4, 0, 3, {0, 1, 2}, true, 1},
      {"it asks for less still", 4, 4, 1, 2, {0, 1}, true, 2},
      {"less than it asked for, as much as it was given", 4, 2, 0, 2, {0, 1}, true, 0},
      {"what was given back is asked for again", 4, 4, 2, 3, {0, 1}, false, 0},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const KueueView kueue = kueue_with(admitted(row.asked, row.given, row.reclaimable));
    const QueueDecision decision = apply_queue(queued_job(row.wanted), kueue, queue_input(row.wanted, row.pods));
    EXPECT_TRUE(decision.is_queued);
    EXPECT_EQ(decision.may_run, row.may_run) << decision.message;
    EXPECT_EQ(decision.writes.size(), row.reclaims > 0 ? 1U : 0U);
    if (row.reclaims > 0 && !decision.writes.empty()) {
      EXPECT_EQ(patch_of(decision.writes[0])["status"]["reclaimablePods"][0]["count"], row.reclaims);
    }
    EXPECT_EQ(num_pods(queued_job(row.wanted), kueue), std::min(row.wanted, row.given));
  }
}

TEST(Kueue, a_job_that_grew_lets_go_of_its_workload_when_its_pods_have_ended) {
  QueueInput input = queue_input(5, {});
  input.was_stopped = true;
  const QueueDecision decision = apply_queue(queued_job(5), kueue_with(admitted(4, 4)), input);
  ASSERT_EQ(decision.writes.size(), 1U);
  EXPECT_EQ(std::get<DeleteObject>(decision.writes[0].what).uid, "w");
}

TEST(Kueue, a_job_that_outgrew_its_prebuilt_workload_holds_no_quota_once_it_has_stopped) {
  struct Row {
    const char* what;
    bool is_active, is_reserved, is_evicted, was_stopped;
    std::set<int> pods;
    bool may_run;
    std::string reason;
    std::string write;  // "": none
  };
  const Row rows[] = {
      {"it runs", true, true, false, false, {0}, true, "Admitted", ""},
      {"its pod crashed", true, true, false, false, {}, true, "Admitted", ""},
      {"it is evicted", true, true, true, false, {0}, false, "Preempted", ""},
      {"its last pod has ended", true, true, true, false, {}, false, "Preempted", "gives back"},
      {"the same, and the first write failed", true, true, true, true, {}, false, "Preempted", "gives back"},
      {"it waits", true, false, true, true, {}, false, "WorkloadOutOfSync", "deactivates"},
      {"it was admitted again meanwhile", true, true, false, true, {}, false, "WorkloadOutOfSync", "deactivates"},
      {"and Kueue has evicted it for that", false, true, true, true, {}, false, "WorkloadOutOfSync", "gives back"},
      {"it waits for its user", false, false, true, true, {}, false, "WorkloadOutOfSync", ""},
  };
  api::TrainJob job = queued_job(2);
  job.meta.labels[std::string(kPrebuiltWorkloadLabel)] = workload_name(job.meta);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    Json workload = admitted(1, 1);
    workload["metadata"].erase("annotations");
    workload["spec"]["active"] = row.is_active;
    if (!row.is_reserved) workload["status"] = {{"conditions", Json::array()}};
    if (row.is_evicted) {
      workload["status"]["conditions"].push_back({{"type", "Evicted"}, {"status", "True"}, {"reason", "Preempted"}});
    }
    QueueInput input = queue_input(2, row.pods);
    input.was_stopped = row.was_stopped;
    const QueueDecision decision = apply_queue(job, kueue_with(workload), input);
    EXPECT_EQ(decision.may_run, row.may_run) << decision.message;
    EXPECT_EQ(decision.reason, row.reason) << decision.message;
    std::string written;
    for (const Action& write : decision.writes) {
      written += is_of_status(write) ? "gives back" : patch_of(write)["spec"]["active"] == false ? "deactivates" : "?";
    }
    EXPECT_EQ(written, row.write);
  }
}

TEST(Kueue, a_prebuilt_workload_that_fits_again_is_activated) {
  api::TrainJob job = queued_job(1);
  job.meta.labels[std::string(kPrebuiltWorkloadLabel)] = workload_name(job.meta);
  Json workload = admitted(1, 1);
  workload["metadata"]["annotations"] = {
      {"lockstep.dev/deactivated", "this Workload asks for fewer pods than the TrainJob needs"}};
  workload["spec"]["active"] = false;
  workload["status"] = Json::object();
  QueueInput input = queue_input(1, {});
  input.was_stopped = true;
  const QueueDecision decision = apply_queue(job, kueue_with(workload), input);
  ASSERT_EQ(decision.writes.size(), 1U);
  EXPECT_EQ(patch_of(decision.writes[0])["spec"], (Json{{"active", true}}));
}

// An operator of another version may have made it, in the cluster that dispatches the job.
TEST(Kueue, the_copy_of_a_workload_that_multikueue_sends_with_a_job_is_not_replaced) {
  for (const bool is_sent : {false, true}) {
    api::TrainJob job = queued_job(2);
    Json workload = admitted(2, 2);
    workload["metadata"]["annotations"]["lockstep.dev/pod-template-hash"] = "of another version";
    if (is_sent) {
      workload["metadata"]["name"] = "trainjob-sasrec-99999";  // with the UID of the job in the other cluster
      job.meta.labels[std::string(kPrebuiltWorkloadLabel)] = "trainjob-sasrec-99999";
    }
    QueueInput input = queue_input(2, {});
    input.was_stopped = true;
    const QueueDecision decision = apply_queue(job, kueue_with(workload), input);
    EXPECT_EQ(decision.reason, is_sent ? "Admitted" : "Requeued");
    EXPECT_EQ(decision.writes.empty(), is_sent);
  }
}

TEST(Kueue, a_workload_that_somebody_has_deactivated_is_neither_deleted_nor_replaced) {
  struct Row {
    const char* what;
    bool is_active, is_reserved, wants_to_run;
    int wanted;
    std::string reason;
    std::string write;  // "": none
  };
  const Row rows[] = {
      {"it is edited", true, false, true, 3, "Requeued", "deletes"},
      {"it is deactivated, then edited", false, false, true, 3, "Deactivated", ""},
      {"it is suspended", true, false, false, 2, "", "deletes"},
      {"it is deactivated, then suspended", false, false, false, 2, "", ""},
      {"the same while it ran", false, true, false, 2, "", "gives back"},
      {"deactivated while it ran, then edited", false, true, true, 3, "Deactivated", "gives back"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    Json workload = admitted(2, 2);
    workload["spec"]["active"] = row.is_active;
    if (!row.is_reserved) workload["status"] = {{"conditions", Json::array()}};
    if (!row.is_active) {
      workload["status"]["conditions"].push_back({{"type", "Evicted"}, {"status", "True"}, {"reason", "Deactivated"}});
    }
    QueueInput input = queue_input(row.wanted, {});
    input.was_stopped = true;
    input.wants_to_run = row.wants_to_run;
    const QueueDecision decision = apply_queue(queued_job(row.wanted), kueue_with(workload), input);
    EXPECT_FALSE(decision.may_run);
    EXPECT_EQ(decision.reason, row.reason) << decision.message;
    std::string written;
    for (const Action& write : decision.writes) {
      written += std::holds_alternative<DeleteObject>(write.what) ? "deletes"
                 : is_of_status(write)                            ? "gives back"
                                                                  : "?";
    }
    EXPECT_EQ(written, row.write);
  }
}

TEST(Kueue, a_priority_label_that_is_removed_changes_only_our_own_workload_while_it_waits) {
  struct Row {
    const char* what;
    const char* version;
    bool is_reserved, is_prebuilt;
    Json spec;  // of the patch; null: there is none
  };
  const Row rows[] = {
      {"it waits", "v1beta2", false, false, {{"priority", 5}, {"priorityClassRef", nullptr}}},
      {"in the older version",
       "v1beta1",
       false,
       false,
       {{"priority", 5}, {"priorityClassName", nullptr}, {"priorityClassSource", nullptr}}},
      {"the API server allows no other kind of class now", "v1beta2", true, false, nullptr},
      {"its maker has chosen the class", "v1beta2", false, true, nullptr},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    api::TrainJob job = queued_job(1);
    KueueView kueue{.version = row.version,
                    .priority = WorkloadPriority{.group = std::string(kKueueGroup), .name = "high", .value = 1000}};
    Json workload = desired_workload(job, 1, kPod, kueue);
    if (row.is_reserved) workload["status"] = admitted(1, 1)["status"];
    if (row.is_prebuilt) {
      job.meta.labels[std::string(kPrebuiltWorkloadLabel)] = workload_name(job.meta);
      workload["metadata"].erase("annotations");
    }
    kueue.workloads = {workload_from_json(workload)};
    kueue.priority = WorkloadPriority{.value = 5};
    const QueueDecision decision = apply_queue(job, kueue, queue_input(1, {}));
    ASSERT_EQ(decision.writes.size(), row.spec.is_null() ? 0U : 1U);
    if (row.spec.is_null()) continue;
    EXPECT_EQ(patch_of(decision.writes[0])["spec"], row.spec);
  }
}

// Of a prebuilt Workload its maker decides whether Kueue is asked for a topology.
TEST(Kueue, a_gang_that_a_queue_admits_has_no_topology_of_its_own) {
  for (const std::string_view label : {std::string_view(), kQueueLabel, kPrebuiltWorkloadLabel}) {
    api::TrainJob job = queued_job(2);
    job.meta.labels.clear();
    if (!label.empty()) job.meta.labels[std::string(label)] = "name";
    job.spec.scheduling.gang = api::Gang::kNative;
    job.spec.scheduling.topology = "zone";
    const Json group = desired_pod_group(job, "scheduling.k8s.io/v1beta1", 0, 2);
    EXPECT_EQ(group["spec"].contains("schedulingConstraints"), label != kQueueLabel) << label;
  }
}

TEST(Kueue, a_status_tells_of_a_workload_when_the_label_is_gone) {
  for (const auto& [reason, may] : std::vector<std::pair<std::string, bool>>{{"Admitted", true},
                                                                             {"Preempted", true},
                                                                             {"QueueUnavailable", true},
                                                                             {"NotQueued", false},
                                                                             {"Suspended", false},
                                                                             {"Failed", false}}) {
    api::TrainJob job;
    job.status.conditions.set({.type = "Admitted", .reason = reason}, kNow);
    EXPECT_EQ(may_have_workload(job), may) << reason;
  }
  EXPECT_FALSE(may_have_workload(api::TrainJob()));
  EXPECT_TRUE(may_have_workload(queued_job(1)));
}

TEST(Kueue, pods_ready_has_kueues_reasons) {
  struct Row {
    std::string before;  // "status reason"; empty: no condition
    bool are_ready;
    std::string after;  // empty: nothing is written
  };
  const Row rows[] = {
      {"", false, "False WaitForStart"},    {"", true, "True Started"},
      {"False WaitForStart", false, ""},    {"False WaitForStart", true, "True Started"},
      {"True Started", true, ""},           {"True Started", false, "False WaitForRecovery"},
      {"False WaitForRecovery", false, ""}, {"False WaitForRecovery", true, "True Recovered"},
      {"True Recovered", true, ""},         {"True Recovered", false, "False WaitForRecovery"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.before + (row.are_ready ? ", ready" : ", not ready"));
    Json workload = admitted(2, 2);
    if (!row.before.empty()) {
      const size_t space = row.before.find(' ');
      workload["status"]["conditions"].push_back(
          {{"type", "PodsReady"}, {"status", row.before.substr(0, space)}, {"reason", row.before.substr(space + 1)}});
    }
    const auto write = say_pods_ready(workload_from_json(workload), row.are_ready, kNow);
    ASSERT_EQ(write.has_value(), !row.after.empty());
    if (!write) continue;
    EXPECT_TRUE(is_of_status(*write));
    const Json& said = patch_of(*write)["status"]["conditions"].back();
    EXPECT_EQ(said["status"].get<std::string>() + " " + said["reason"].get<std::string>(), row.after);
    EXPECT_EQ(patch_of(*write)["status"]["conditions"].size(), 3U);  // a merge patch replaces the list: the others stay
    EXPECT_EQ(patch_of(*write)["metadata"]["resourceVersion"], "7");
  }
}

TEST(Kueue, the_time_that_a_job_was_admitted_is_added_up) {
  for (const auto& [version, field_name] : {std::pair("v1beta2", "accumulatedPastExecutionTimeSeconds"),
                                            {"v1beta1", "accumulatedPastExexcutionTimeSeconds"}}) {
    Json workload = admitted(2, 2);
    workload["status"][field_name] = 100;
    workload["status"]["conditions"][1]["lastTransitionTime"] = api::format_time(kNow - 30);
    workload["status"]["conditions"].push_back({{"type", "Evicted"}, {"status", "True"}, {"reason", "Preempted"}});
    KueueView kueue = kueue_with(workload);
    kueue.version = version;
    QueueInput input = queue_input(2, {});
    input.was_stopped = true;
    const QueueDecision decision = apply_queue(queued_job(2), kueue, input);
    ASSERT_EQ(decision.writes.size(), 1U) << version;
    EXPECT_EQ(patch_of(decision.writes[0])["status"][field_name], 130) << version;
  }
}

TEST(Kueue, only_preemption_and_lost_nodes_requeue_at_once) {
  for (const auto& [reason, requeued] : std::vector<std::pair<std::string, std::string>>{
           {"Preempted", "True"}, {"NodeFailures", "True"}, {"PodsReadyTimeout", "False"}, {"Deactivated", "False"}}) {
    Json workload = admitted(2, 2);
    workload["status"]["conditions"].push_back({{"type", "Evicted"}, {"status", "True"}, {"reason", reason}});
    QueueInput input = queue_input(2, {});
    input.was_stopped = true;
    const QueueDecision decision = apply_queue(queued_job(2), kueue_with(workload), input);
    ASSERT_EQ(decision.writes.size(), 1U) << reason;
    const Json& status = patch_of(decision.writes[0])["status"];
    EXPECT_TRUE(status["admission"].is_null());
    for (const Json& condition : status["conditions"]) {
      const Json& type = condition["type"];
      const bool is_expected = type == "Requeued"        ? condition["status"] == requeued
                               : type == "QuotaReserved" ? condition["status"] == "False"
                                                         : true;
      EXPECT_TRUE(is_expected) << reason << ": " << dump_line(condition);
    }
  }
}

TEST(Kueue, a_reservation_outlives_the_job_until_its_pods_have_ended) {
  Json workload = admitted(1, 1);
  PodView pod;
  pod.meta.owners = {{"lockstep.dev/v1", "TrainJob", "sasrec", "uid-1", true}};
  pod.phase = PodPhase::kRunning;
  EXPECT_TRUE(release_orphans({workload_from_json(workload)}, {}, "", kNow).empty()) << "nobody deletes it";
  workload["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
  EXPECT_TRUE(release_orphans({workload_from_json(workload)}, {pod}, "", kNow).empty()) << "a pod still runs";
  EXPECT_TRUE(release_orphans({workload_from_json(workload)}, {}, "uid-1", kNow).empty())
      << "its job is there and looks after it";
  pod.phase = PodPhase::kFailed;
  const auto writes = release_orphans({workload_from_json(workload)}, {pod}, "uid-2", kNow);
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_EQ(patch_of(writes[0])["metadata"]["finalizers"], Json::array());
  workload["metadata"]["finalizers"] = Json::array();
  EXPECT_TRUE(release_orphans({workload_from_json(workload)}, {}, "", kNow).empty()) << "it has let go already";
}

TEST(Kueue, the_workload_of_a_deleted_job_does_not_wait_for_a_pod_on_a_dead_node) {
  Json workload = admitted(1, 1);
  workload["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
  PodView pod;
  pod.meta.owners = {{"lockstep.dev/v1", "TrainJob", "sasrec", "uid-1", true}};
  pod.phase = PodPhase::kRunning;
  pod.meta.deletion_time = kNow - 1;
  EXPECT_TRUE(release_orphans({workload_from_json(workload)}, {pod}, "", kNow).empty())
      << "its kubelet may be just about to end it";
  pod.meta.deletion_time = kNow - 3600;
  EXPECT_EQ(release_orphans({workload_from_json(workload)}, {pod}, "", kNow).size(), 1U);
}

TEST(Kueue, a_job_that_has_ended_holds_its_reservation_as_long_as_a_pod_runs) {
  const Workload workload = workload_from_json(admitted(2, 2));
  EXPECT_TRUE(finish_workload(workload, true, "done", true, kNow).empty());
  const auto writes = finish_workload(workload, false, "it broke", false, kNow);
  ASSERT_EQ(writes.size(), 1U);
  const Json& said = patch_of(writes[0])["status"]["conditions"].back();
  EXPECT_EQ(said["type"], "Finished");
  EXPECT_EQ(said["reason"], "Failed");
  EXPECT_EQ(said["message"], "it broke");
}

TEST(Kueue, an_admission_adds_to_the_pod_and_contradicts_nothing) {
  Json pod = {{"metadata", {{"labels", {{"a", "b"}}}}}, {"spec", {{"nodeSelector", {{"zone", "one"}}}}}};
  const Json more = {
      {"metadata", {{"labels", {{"c", "d"}}}}},
      {"spec",
       {{"nodeSelector", {{"zone", "one"}, {"tier", "spot"}}}, {"tolerations", Json::array({{{"key", "spot"}}})}}}};
  ASSERT_TRUE(add_to_pod(more, pod).ok());
  ASSERT_TRUE(add_to_pod(more, pod).ok());
  EXPECT_EQ(pod["spec"]["nodeSelector"], (Json{{"zone", "one"}, {"tier", "spot"}}));
  EXPECT_EQ(pod["spec"]["tolerations"].size(), 1U);
  EXPECT_EQ(pod["metadata"]["labels"].size(), 2U);
  const Status bad = add_to_pod({{"spec", {{"nodeSelector", {{"zone", "two"}}}}}}, pod);
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("spec.trainer.podTemplate.spec.nodeSelector[zone]: is \"one\""));
}

TEST(Kueue, slices_are_asked_for_with_their_size_and_only_then) {
  const std::string topology = "kueue.x-k8s.io/podset-slice-required-topology";
  const std::string size = "kueue.x-k8s.io/podset-slice-size";
  const auto request_of = [](const api::TrainJob& job) {
    return desired_workload(job, 4, kPod, {.version = "v1beta2"})["spec"]["podSets"][0]["topologyRequest"];
  };
  api::TrainJob job = queued_job(4);
  job.spec.scheduling.topology = "rack";
  EXPECT_EQ(request_of(job)["required"], "rack");
  EXPECT_FALSE(request_of(job).contains("podSetSliceSize")) << "Kueue refuses it beside a topology of the whole set";
  Json& annotations = job.spec.trainer.pod_template["metadata"]["annotations"];
  annotations = {{topology, "host"}, {size, "2"}};
  EXPECT_TRUE(check_topology_slices(job.spec).ok());
  EXPECT_EQ(request_of(job)["required"], "rack");
  EXPECT_EQ(request_of(job)["podSetSliceRequiredTopology"], "host");
  EXPECT_EQ(request_of(job)["podSetSliceSize"], 2);
  for (const auto& [given, says] : std::vector<std::pair<Json, std::string>>{
           {{{topology, "host"}}, "is missing, expected the number of pods of a slice"},
           {{{topology, "host"}, {size, "0"}}, "is \"0\", expected the number of pods of a slice"},
           {{{size, "2"}}, topology + " is not set"}}) {
    annotations = given;
    const Status checked = check_topology_slices(job.spec);
    ASSERT_FALSE(checked.ok()) << given.dump();
    EXPECT_THAT(checked.error().message, HasSubstr(says));
  }
}

TEST(Kueue, topology_is_kueues_to_assign) {
  Json workload = admitted(2, 2);
  workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {{"levels", Json::array({"rack"})}};
  const Result<Json> pod = admitted_pod(workload_from_json(workload), {.version = "v1beta2"});
  ASSERT_TRUE(pod.ok());
  EXPECT_EQ((*pod)["spec"]["schedulingGates"], Json::array({{{"name", "kueue.x-k8s.io/topology"}}}));
  EXPECT_EQ((*pod)["metadata"]["annotations"]["kueue.x-k8s.io/workload"], api::meta_of(workload).name);
  EXPECT_EQ((*pod)["metadata"]["labels"]["kueue.x-k8s.io/podset"], "main");
  EXPECT_EQ((*pod)["metadata"]["annotations"]["kueue.x-k8s.io/podset-unconstrained-topology"], "true")
      << "nobody asked";

  for (const auto& [asked, annotation] : {std::pair("required", "kueue.x-k8s.io/podset-required-topology"),
                                          {"preferred", "kueue.x-k8s.io/podset-preferred-topology"}}) {
    workload["spec"]["podSets"][0]["topologyRequest"] = {{asked, "rack"}};
    const Result<Json> placed = admitted_pod(workload_from_json(workload), {.version = "v1beta2"});
    ASSERT_TRUE(placed.ok());
    EXPECT_EQ((*placed)["metadata"]["annotations"],
              (Json{{"kueue.x-k8s.io/workload", api::meta_of(workload).name}, {annotation, "rack"}}));
  }
}

TEST(Kueue, ranks_are_placed_in_order_also_where_a_queue_chooses_nodes_unasked) {
  const Json index = {{"podIndexLabel", std::string(kNodeRankLabel)}};
  EXPECT_EQ(desired_workload(queued_job(2), 2, kPod, {.version = "v1beta2"})["spec"]["podSets"][0]["topologyRequest"],
            index);
  EXPECT_FALSE(desired_workload(queued_job(2), 2, kPod, {.version = "v1beta1"})["spec"]["podSets"][0].contains(
      "topologyRequest"))
      << "an older Kueue may take it for the wish for a topology";
}

TEST(Kueue, a_workload_has_what_the_job_says_to_kueue) {
  api::TrainJob job = queued_job(2);
  job.meta.annotations = {{"provreq.kueue.x-k8s.io/ValidUntilSeconds", "0"}, {"other", "x"}};
  job.meta.labels[std::string(kMaxExecutionLabel)] = "600";
  Json pod = kPod;
  pod["spec"]["resources"] = {{"requests", {{"cpu", "4"}}}};
  Json workload = desired_workload(job, 2, pod, {.version = "v1beta2"});
  EXPECT_EQ(workload["metadata"]["annotations"]["provreq.kueue.x-k8s.io/ValidUntilSeconds"], "0");
  EXPECT_FALSE(workload["metadata"]["annotations"].contains("other"));
  EXPECT_EQ(workload["spec"]["maximumExecutionTimeSeconds"], 600);
  EXPECT_EQ(workload["spec"]["podSets"][0]["template"]["spec"]["resources"], pod["spec"]["resources"]);

  job.meta.labels[std::string(kMaxExecutionLabel)] = "900";
  QueueDecision decision = apply_queue(job, kueue_with(workload), queue_input(2, {}));
  ASSERT_EQ(decision.writes.size(), 1U);
  EXPECT_EQ(patch_of(decision.writes[0])["spec"], (Json{{"maximumExecutionTimeSeconds", 900}}));
  workload["status"] = admitted(2, 2)["status"];
  decision = apply_queue(job, kueue_with(workload), queue_input(2, {}));
  EXPECT_TRUE(decision.writes.empty()) << "the API server allows no change now";
}

TEST(Kueue, a_time_limit_that_is_no_number_of_seconds_is_refused) {
  for (const char* bad : {"", "0", "-1", "10m", "2147483648"}) {
    api::ObjectMeta meta;
    meta.labels[std::string(kMaxExecutionLabel)] = bad;
    EXPECT_FALSE(max_execution_seconds(meta)) << bad;
    const Status status = check_queue_labels(meta);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(status.error().message, HasSubstr("metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]"));
  }
}

TEST(Kueue, a_name_that_no_queue_can_have_is_refused) {
  for (const char* bad : {"Team", "team_a", "-team", "team."}) {
    api::ObjectMeta meta;
    meta.labels[std::string(kQueueLabel)] = bad;
    const Status status = check_queue_labels(meta);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(status.error().message, HasSubstr(bad));
  }
  api::ObjectMeta meta;
  EXPECT_TRUE(check_queue_labels(meta).ok());
  meta.labels[std::string(kQueueLabel)] = "team-a.b2";
  EXPECT_TRUE(check_queue_labels(meta).ok());
}

TEST(Kueue, another_job_of_the_name_has_another_workload) {
  api::ObjectMeta meta{.name = std::string(api::kJobNameMax, 'a'), .ns = "n", .uid = "1"};
  const std::string name = workload_name(meta);
  EXPECT_LE(name.size(), 63U);
  meta.uid = "2";
  EXPECT_NE(workload_name(meta), name);
}

TEST(Kueue, secrets_are_not_in_the_workload) {
  Json pod = kPod;
  pod["spec"]["containers"][0]["env"] = Json::array({{{"name", "LOCKSTEP_TOKEN"}, {"value", "secret"}}});
  pod["spec"]["volumes"] = Json::array({{{"name", "v"}}});
  const std::string text = dump_line(desired_workload(queued_job(2), 2, pod, {.version = "v1beta2"}));
  EXPECT_EQ(text.find("secret"), std::string::npos);
  EXPECT_EQ(text.find("volumes"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::train
