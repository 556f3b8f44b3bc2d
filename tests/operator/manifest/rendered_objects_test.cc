#include "operator/manifest/rendered_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::manifest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

api::TrainJob job() {
  api::TrainJob made;
  made.meta.name = "a";
  made.spec.trainer.image = "runner";
  made.spec.trainer.num_nodes = 2;
  return made;
}

std::vector<std::string> names(const api::TrainJob& of, const RenderOptions& options) {
  const Result<std::vector<Json>> objects = rendered_objects(of, options);
  if (!objects.ok()) return {objects.error().message};
  std::vector<std::string> all;
  for (const Json& object : *objects) {
    all.push_back(object["kind"].get<std::string>() + " " + object["metadata"]["namespace"].get<std::string>() + "/" +
                  object["metadata"]["name"].get<std::string>());
  }
  return all;
}

TEST(RenderedObjects, are_the_service_the_policy_and_the_pods) {
  EXPECT_THAT(names(job(), {}), ElementsAre("Service default/a", "Pod default/a-0-0", "Pod default/a-1-0"));
  api::TrainJob with_policy = job();
  with_policy.meta.ns = "team";
  with_policy.spec.network_policy = api::NetworkPolicyMode::kIntraJob;
  EXPECT_THAT(names(with_policy, {.nodes = 1, .attempt = 2}),
              ElementsAre("Service team/a", "NetworkPolicy team/a", "Pod team/a-0-2"));
  EXPECT_THAT(names(with_policy, {.nodes = 1, .ns = "other"}),
              ElementsAre("Service other/a", "NetworkPolicy other/a", "Pod other/a-0-0"));
}

TEST(RenderedObjects, have_the_disruption_budget_that_the_job_asks_for) {
  api::TrainJob protected_job = job();
  protected_job.spec.disruption.budget = api::DisruptionBudget::kOneAtATime;
  EXPECT_THAT(names(protected_job, {.nodes = 1}),
              ElementsAre("Service default/a", "PodDisruptionBudget default/a", "Pod default/a-0-0"));
}

TEST(RenderedObjects, of_a_gang_have_its_group) {
  api::TrainJob gang = job();
  gang.spec.scheduling.gang = api::Gang::kNative;
  EXPECT_THAT(names(gang, {.nodes = 1}),
              ElementsAre("Service default/a", testing::StartsWith("PodGroup default/a-"), "Pod default/a-0-0"));
}

TEST(RenderedObjects, keep_the_users_shared_memory_whatever_its_slashes) {
  for (const char* path : {"/dev/shm", "/dev/shm/", "/dev//shm"}) {
    api::TrainJob with_own = job();
    with_own.spec.trainer.pod_template = {
        {"spec",
         {{"containers", {{{"name", "trainer"}, {"volumeMounts", {{{"name", "dshm"}, {"mountPath", path}}}}}}},
          {"volumes", {{{"name", "dshm"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", "8Gi"}}}}}}}}};
    const Result<std::vector<Json>> objects = rendered_objects(with_own, {.nodes = 1});
    ASSERT_TRUE(objects.ok()) << objects.error().message;
    const Json& spec = objects->back()["spec"];
    EXPECT_EQ(spec["containers"][0]["volumeMounts"].size(), 1U) << path;
    EXPECT_EQ(spec["volumes"].size(), 1U) << path;
  }
}

TEST(RenderedObjects, stay_within_the_elastic_bounds) {
  api::TrainJob elastic = job();
  elastic.spec.elastic = api::Elastic{.min_nodes = 2, .max_nodes = 3};
  EXPECT_EQ(names(elastic, {.nodes = 3}).size(), 4U);
  for (const int nodes : {1, 4}) EXPECT_THAT(names(elastic, {.nodes = nodes}).front(), HasSubstr("expected 2 to 3"));
}

TEST(RenderedObjects, show_no_token_no_uid_and_no_run) {
  const Result<std::vector<Json>> objects = rendered_objects(job(), {});
  ASSERT_TRUE(objects.ok());
  const Json& pod = objects->back();
  EXPECT_EQ(pod["metadata"]["ownerReferences"][0]["uid"], kUidPlaceholder);
  int tokens = 0;
  int runs = 0;
  for (const Json& variable : pod["spec"]["containers"][0]["env"]) {
    if (variable["name"] == "LOCKSTEP_RUN") {
      ++runs;
      EXPECT_EQ(variable["value"], kRunPlaceholder);
    }
    if (variable["name"] != "LOCKSTEP_TOKEN") continue;
    ++tokens;
    EXPECT_EQ(variable["value"], kTokenPlaceholder);
  }
  EXPECT_EQ(tokens, 1);
  EXPECT_EQ(runs, 1);
}

TEST(RenderedObjects, show_what_a_queue_is_asked_for) {
  api::TrainJob queued = job();
  queued.meta.labels["kueue.x-k8s.io/queue-name"] = "team";
  const Result<std::vector<Json>> objects = rendered_objects(queued, {.nodes = 3});
  ASSERT_TRUE(objects.ok());
  const Json& workload = objects->front();
  EXPECT_EQ(workload["kind"], "Workload");
  EXPECT_EQ(workload["metadata"]["name"], kWorkloadNamePlaceholder);
  EXPECT_EQ(workload["spec"]["queueName"], "team");
  EXPECT_EQ(workload["spec"]["podSets"][0]["count"], 3);
  EXPECT_THAT(dump_line(workload), testing::Not(HasSubstr("LOCKSTEP_TOKEN")));
  EXPECT_EQ(objects->size(), 5U);  // and the Service, and the pods
  queued.spec.managed_by = "kueue.x-k8s.io/multikueue";
  EXPECT_THAT(names(queued, {}), ElementsAre("Workload default/" + std::string(kWorkloadNamePlaceholder)));
}

TEST(RenderedObjects, name_what_makes_no_pod) {
  api::TrainJob broken = job();
  broken.spec.trainer.pod_template = {{"spec", {{"hostname", "mine"}}}};
  EXPECT_THAT(names(broken, {}).front(), HasSubstr("spec.trainer.podTemplate.spec.hostname"));
}

}  // namespace
}  // namespace lockstep::manifest
