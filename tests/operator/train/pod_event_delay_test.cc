// How soon a job is looked at after an event of one of its pods.
#include "operator/train/pod_event_delay.h"

#include <gtest/gtest.h>

#include "operator/train/object_names.h"

namespace lockstep::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAtOnce{0};

class PodEventDelayTest : public testing::Test {
 protected:
  static Json pod(int node_rank, const Json& status = Json::object()) {
    return {{"metadata",
             {{"name", pod_name("sim", node_rank, 0)},
              {"namespace", "ns"},
              {"labels",
               {{std::string(kJobLabel), "sim"},
                {std::string(kNodeRankLabel), std::to_string(node_rank)},
                {std::string(kAttemptLabel), "0"}}},
              {"annotations", {{std::string(kNumNodesAnnotation), "3"}}}}},
            {"status", status}};
  }
  static Json running(int node_rank, bool is_ready) {
    return pod(node_rank,
               {{"phase", "Running"},
                {"podIP", "10.0.0." + std::to_string(node_rank + 1)},
                {"containerStatuses",
                 Json::array({{{"name", "trainer"}, {"ready", is_ready}, {"state", {{"running", Json::object()}}}}})}});
  }
  static Json deleting(Json pod) {
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
    return pod;
  }
  PodEventDelay::Turn turn_after(const Json& pod, bool is_gone = false) {
    const PodView now = view_of_pod(pod);
    const auto known = pods_.find(now.meta.key());
    const std::optional<PodView> before = known == pods_.end() ? std::nullopt : std::optional(known->second);
    is_gone ? void(pods_.erase(now.meta.key())) : void(pods_.insert_or_assign(now.meta.key(), now));
    return delay_.turn_after(before ? &*before : nullptr, is_gone ? nullptr : &now);
  }
  milliseconds hear(const Json& pod) { return turn_after(pod).wait; }
  milliseconds gone(const Json& pod) { return turn_after(pod, true).wait; }
  bool goes_first(const Json& pod, bool is_gone = false) { return turn_after(pod, is_gone).goes_first; }

  void all_ready() {
    for (int node_rank = 0; node_rank < 3; ++node_rank) hear(running(node_rank, true));
  }

  PodEventDelay delay_;
  std::map<api::ObjectKey, PodView> pods_;  // as they were heard of last
};

TEST_F(PodEventDelayTest, a_change_that_only_the_status_shows_waits_for_others) {
  EXPECT_EQ(hear(pod(1, {{"phase", "Pending"}})), milliseconds(1000));
  Json scheduled = pod(1, {{"phase", "Pending"}});
  scheduled["spec"]["nodeName"] = "node";
  EXPECT_EQ(hear(scheduled), milliseconds(1000));
  EXPECT_EQ(hear(running(1, false)), milliseconds(1000));
  EXPECT_EQ(hear(running(1, true)), milliseconds(1000));
}

TEST_F(PodEventDelayTest, a_pod_whose_label_names_another_job_counts_there) {
  all_ready();
  Json moved = running(2, true);
  moved["metadata"]["labels"][std::string(kJobLabel)] = "other";
  hear(moved);
  hear(running(1, false));
  EXPECT_EQ(hear(running(1, true)), milliseconds(1000)) << "two of three pods are ready";
  hear(running(2, false));
  EXPECT_EQ(hear(running(2, true)), kAtOnce) << "all three are";
}

TEST_F(PodEventDelayTest, events_of_a_large_job_wait_longer) {
  const auto of_job = [](Json pod, int num_nodes) {
    pod["metadata"]["annotations"][std::string(kNumNodesAnnotation)] = std::to_string(num_nodes);
    return pod;
  };
  EXPECT_EQ(hear(of_job(running(1, true), 2'000)), milliseconds(1000));
  EXPECT_EQ(hear(of_job(running(2, true), 8'000)), milliseconds(4000));
  EXPECT_EQ(hear(of_job(pod(1, {{"phase", "Succeeded"}}), 1'000)), milliseconds(100));
  EXPECT_EQ(hear(of_job(pod(2, {{"phase", "Succeeded"}}), 8'000)), milliseconds(800));
  EXPECT_EQ(hear(of_job(running(3, true), 1'000'000'000)), milliseconds(5000));
}

TEST_F(PodEventDelayTest, the_last_pod_that_gets_ready_does_not_wait) {
  hear(running(0, true));
  EXPECT_GT(hear(running(1, true)), kAtOnce);
  EXPECT_EQ(hear(running(2, true)), kAtOnce);
  hear(running(1, false));
  EXPECT_EQ(hear(running(1, true)), kAtOnce) << "again the last";
}

TEST_F(PodEventDelayTest, of_pods_that_are_done_the_last_one_and_pod_0_do_not_wait) {
  all_ready();
  EXPECT_GT(hear(pod(1, {{"phase", "Succeeded"}})), kAtOnce);
  EXPECT_EQ(hear(pod(0, {{"phase", "Succeeded"}})), kAtOnce);
  EXPECT_EQ(hear(pod(2, {{"phase", "Succeeded"}})), kAtOnce);
}

TEST_F(PodEventDelayTest, the_end_of_a_failed_pod_does_not_wait) {
  all_ready();
  EXPECT_EQ(hear(pod(1, {{"phase", "Failed"}})), kAtOnce);
  EXPECT_EQ(hear(pod(2, {{"phase", "Running"},
                         {"containerStatuses",
                          Json::array({{{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", 1}}}}}}})}})),
            kAtOnce);
  EXPECT_EQ(hear(pod(0, {{"phase", "Running"},
                         {"conditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}})),
            kAtOnce);
}

TEST_F(PodEventDelayTest, a_readiness_that_is_lost_does_not_wait) {
  all_ready();
  EXPECT_EQ(hear(running(1, false)), kAtOnce);
}

TEST_F(PodEventDelayTest, a_deletion_does_not_wait) {
  all_ready();
  EXPECT_EQ(hear(deleting(running(1, true))), kAtOnce);
  EXPECT_EQ(gone(running(2, true)), kAtOnce) << "with --force";
}

TEST_F(PodEventDelayTest, the_last_deleted_pod_is_reconciled_at_once) {
  all_ready();
  for (int node_rank = 0; node_rank < 3; ++node_rank) hear(deleting(running(node_rank, true)));
  EXPECT_EQ(gone(deleting(running(0, true))), kAtOnce) << "a job that was made again may wait for this pod 0";
  EXPECT_GT(hear(deleting(pod(1, {{"phase", "Failed"}, {"podIP", "10.0.0.2"}}))), kAtOnce);
  EXPECT_GT(gone(deleting(pod(1))), kAtOnce);
  EXPECT_EQ(gone(deleting(running(2, true))), kAtOnce);
}

TEST_F(PodEventDelayTest, a_new_address_of_pod_0_does_not_wait) {
  hear(pod(0, {{"phase", "Pending"}}));
  EXPECT_EQ(hear(pod(0, {{"phase", "Pending"}, {"podIP", "10.0.0.1"}})), kAtOnce);
  EXPECT_EQ(hear(running(0, false)), kAtOnce);
  EXPECT_GT(hear(running(0, true)), kAtOnce);
}

TEST_F(PodEventDelayTest, ends_go_ahead_of_other_jobs_and_starts_do_not) {
  EXPECT_FALSE(goes_first(pod(0, {{"phase", "Pending"}, {"podIP", "10.0.0.1"}})));
  for (int node_rank = 0; node_rank < 3; ++node_rank) EXPECT_FALSE(goes_first(running(node_rank, true))) << node_rank;
  EXPECT_TRUE(goes_first(running(1, false))) << "no longer ready";
  EXPECT_FALSE(goes_first(running(1, true)));
  EXPECT_TRUE(goes_first(deleting(running(1, true))));
  EXPECT_TRUE(goes_first(deleting(running(1, true)), /*is_gone=*/true));
  EXPECT_TRUE(goes_first(pod(1, {{"phase", "Failed"}})));
  EXPECT_TRUE(goes_first(pod(1, {{"phase", "Failed"}}), /*is_gone=*/true));
  EXPECT_FALSE(goes_first(running(1, true))) << "its successor";
  EXPECT_FALSE(goes_first(pod(0, {{"phase", "Succeeded"}})));
  EXPECT_FALSE(goes_first(pod(1, {{"phase", "Succeeded"}})));
  EXPECT_TRUE(goes_first(pod(2, {{"phase", "Succeeded"}}))) << "the last one";
}

TEST_F(PodEventDelayTest, jobs_and_namespaces_are_kept_apart) {
  hear(running(0, true));
  hear(running(1, true));
  Json elsewhere = running(2, true);
  elsewhere["metadata"]["namespace"] = "other";
  EXPECT_GT(hear(elsewhere), kAtOnce);
}

}  // namespace
}  // namespace lockstep::train
