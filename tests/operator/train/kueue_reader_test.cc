// What is read from the API server for a job with a queue, and when it is read again.
#include "operator/train/kueue_reader.h"

#include <gtest/gtest.h>

#include "operator/train/object_names.h"
#include "operator/train/trim.h"
#include "runner/base/json.h"
#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"
#include "tests/operator/control/test_objects.h"

namespace lockstep::train {
namespace {

using control::MemoryApiServer;

const kube::Resource& workload_kind() { return kube::kKueueWorkloads.front(); }

api::TrainJob queued_job() {
  api::TrainJob job;
  job.meta = {.name = "sim", .ns = "ns", .uid = "uid-1"};
  job.meta.labels[std::string(kQueueLabel)] = "team-queue";
  return job;
}

class KueueReaderTest : public testing::Test {
 protected:
  KueueReaderTest() {
    server_->intercept([](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
      if (request.path != kube::group_path(workload_kind())) return std::nullopt;
      const Json kinds{{"kind", "APIResourceList"}, {"resources", Json::array({{{"name", "workloads"}}})}};
      return kube::HttpResponse{.status = 200, .headers = {}, .body = kinds.dump()};
    });
    control::Journal journal;
    workloads_ = std::make_unique<control::OptionalInformer>(
        client_, control::OptionalInformer::Options{.versions = kube::kKueueWorkloads,
                                                    .informer = {.index = job_index},
                                                    .on_kind_change = [&] { journal.write("synced"); }});
    workloads_->start();
    workloads_->wanted();
    EXPECT_TRUE(journal.wait_for("synced"));
    workloads_->stop_and_join();  // from now on the cache has what a test assumes
  }

  void put(const Json& workload) { workloads_->wanted().cache->assume(server_->put(workload_kind(), workload)); }

  KueueView read(const api::TrainJob& job) {
    Result<std::optional<KueueView>> view = KueueReader(client_, workloads_.get()).read(job, memory_, 1000);
    EXPECT_TRUE(view.ok() && *view);
    return view.ok() && *view ? **view : KueueView();
  }

  std::shared_ptr<MemoryApiServer> server_ = std::make_shared<MemoryApiServer>();
  kube::Client client_{server_, {.retry_for = std::chrono::milliseconds(0)}};
  std::unique_ptr<control::OptionalInformer> workloads_;
  KueueMemory memory_;
};

Json workload_for(const api::TrainJob& job, const KueueView& kueue) {
  const Json pod = {{"spec", {{"containers", Json::array({{{"name", "trainer"}, {"image", "i"}}})}}}};
  return desired_workload(job, 1, pod, kueue);
}

TEST_F(KueueReaderTest, a_flavour_is_read_once_for_each_admission) {
  const auto set_tier = [this](const char* tier) {
    server_->put(kube::kueue_resource_flavors("v1beta2"),
                 {{"metadata", {{"name", "spot"}}}, {"spec", {{"nodeLabels", {{"tier", tier}}}}}});
  };
  const auto admit_at = [this](const char* time) {
    Json workload = workload_for(queued_job(), {.version = "v1beta2"});
    workload["status"] = {
        {"conditions", Json::array({{{"type", "Admitted"}, {"status", "True"}, {"lastTransitionTime", time}}})},
        {"admission",
         {{"podSetAssignments", Json::array({{{"name", "main"}, {"count", 1}, {"flavors", {{"cpu", "spot"}}}}})}}}};
    put(workload);
  };
  const auto tier_read = [this] {
    return text_field(*read(queued_job()).flavors.at("spot"), {"spec", "nodeLabels", "tier"});
  };
  set_tier("old");
  admit_at("2026-11-21T10:00:00Z");
  EXPECT_EQ(tier_read(), "old");
  set_tier("new");
  EXPECT_EQ(tier_read(), "old") << "all pods of an admission go to the same nodes";
  admit_at("2026-11-21T10:05:00Z");
  EXPECT_EQ(tier_read(), "new");
}

TEST_F(KueueReaderTest, the_priority_is_read_when_the_label_and_the_workload_differ) {
  server_->put(kube::kueue_priority_classes("v1beta2"), {{"metadata", {{"name", "high"}}}, {"value", 1000}});
  api::TrainJob job = queued_job();
  job.meta.labels[std::string(kWorkloadPriorityLabel)] = "high";
  const KueueView before = read(job);
  ASSERT_TRUE(before.priority);
  EXPECT_EQ(before.priority->value, 1000);
  put(workload_for(job, before));
  EXPECT_FALSE(read(job).priority) << "they are equal";
  const KueueView without_label = read(queued_job());
  ASSERT_TRUE(without_label.priority);
  EXPECT_TRUE(without_label.priority->group.empty()) << "the cluster has no default class";
}

TEST_F(KueueReaderTest, the_workload_of_a_deleted_job_is_looked_at_again_until_its_pod_has_ended_or_is_overdue) {
  Json workload = workload_for(queued_job(), {.version = "v1beta2"});
  workload["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
  put(workload);
  const api::UnixSeconds now = *api::parse_time("2026-11-21T10:00:00Z");
  control::Cache<PodView> pods(view_of_pod, pod_index);
  control::replace(
      pods,
      {{{"metadata",
         {{"name", "sim-0-0"},
          {"namespace", "ns"},
          {"uid", "pod"},
          {"resourceVersion", "1"},
          {"deletionTimestamp", "2026-11-21T10:01:00Z"},
          {"ownerReferences", owner_references(queued_job().meta)},
          {"labels",
           {{std::string(kJobLabel), "sim"}, {std::string(kNodeRankLabel), "0"}, {std::string(kAttemptLabel), "0"}}}}},
        {"status", {{"phase", "Running"}}}}});
  const auto release = [&](api::UnixSeconds at) {
    return KueueReader(client_, workloads_.get()).release_orphans(queued_job().meta.key(), "", pods, at);
  };
  const api::ObjectKey key{.ns = "ns", .name = workload_name(queued_job().meta)};
  EXPECT_TRUE(*release(now + 60));
  EXPECT_FALSE(server_->get(workload_kind(), key)->at("metadata").at("finalizers").empty());
  EXPECT_FALSE(*release(now + 3600));
  const auto left = server_->get(workload_kind(), key);
  EXPECT_TRUE(!left || !left->at("metadata").contains("finalizers") || left->at("metadata").at("finalizers").empty());
}

}  // namespace
}  // namespace lockstep::train
