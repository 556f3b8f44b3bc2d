// health.placementTimeoutSeconds: the policy alone, and the case that it is for: two jobs that each hold half of the
// nodes.
#include "operator/train/placement_timeout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "operator/train/desired_service.h"
#include "operator/train/object_names.h"
#include "operator/train/plan.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

api::TrainJobSpec spec_with(std::optional<int> seconds) {
  api::TrainJobSpec spec;
  spec.health.placement_timeout_seconds = seconds;
  return spec;
}

PlacementInput half_placed(api::UnixSeconds now, const std::string& uid = "job") {
  return {.capacity = {.desired = 4, .needed = 4, .num_scheduled = 2, .num_unscheduled = 2, .num_occupying = 2},
          .are_enough_ready = false,
          .job_uid = uid,
          .now = now};
}

TEST(PlacementTimeout, is_off_by_default) {
  Placement placement;
  EXPECT_FALSE(apply_placement_timeout(spec_with({}), half_placed(1'000'000), placement).gives_back);
  EXPECT_EQ(placement, Placement{});
}

TEST(PlacementTimeout, counts_from_when_too_few_machines_were_held) {
  Placement placement;
  const api::TrainJobSpec spec = spec_with(300);
  const PlacementTimeout first = apply_placement_timeout(spec, half_placed(1000), placement);
  EXPECT_FALSE(first.gives_back);
  EXPECT_EQ(first.requeue_at, 1300);
  EXPECT_FALSE(apply_placement_timeout(spec, half_placed(1299), placement).gives_back);
  const PlacementTimeout over = apply_placement_timeout(spec, half_placed(1300), placement);
  ASSERT_TRUE(over.gives_back);
  EXPECT_NE(over.gives_back->find("Of the 4 pods that are needed 2 had been scheduled after 300 s"), std::string::npos)
      << *over.gives_back;
  EXPECT_GE(placement.again_at, 1300 + kGiveBackFirstSeconds);
  EXPECT_LT(placement.again_at, 1300 + 2 * kGiveBackFirstSeconds);
}

TEST(PlacementTimeout, does_not_apply_to_a_job_with_enough_pods_or_none) {
  Placement placement;
  PlacementInput elastic = half_placed(1000);
  elastic.capacity.needed = 2;
  PlacementInput empty = half_placed(1000);
  empty.capacity = {.desired = 4, .needed = 4, .num_scheduled = 0, .num_unscheduled = 4, .num_occupying = 0};
  for (PlacementInput input : {elastic, empty}) {
    apply_placement_timeout(spec_with(300), input, placement);
    input.now = 9000;
    EXPECT_FALSE(apply_placement_timeout(spec_with(300), input, placement).gives_back);
  }
}

TEST(PlacementTimeout, waits_longer_each_time_up_to_a_bound_and_forgets_it_once_enough_were_ready) {
  const api::TrainJobSpec spec = spec_with(1);
  Placement placement;
  api::UnixSeconds now = 1000;
  for (const api::UnixSeconds base : {30, 60, 120, 240, 480, 600, 600, 600}) {
    apply_placement_timeout(spec, half_placed(now), placement);
    ASSERT_TRUE(apply_placement_timeout(spec, half_placed(++now), placement).gives_back);
    EXPECT_GE(placement.again_at - now, base);
    EXPECT_LT(placement.again_at - now, 2 * base);
    EXPECT_FALSE(apply_placement_timeout(spec, half_placed(placement.again_at - 1), placement).gives_back);
    now = placement.again_at;
  }
  PlacementInput ready = half_placed(now);
  ready.are_enough_ready = true;
  apply_placement_timeout(spec, ready, placement);
  EXPECT_EQ(placement, Placement{});
}

TEST(PlacementTimeout, differs_between_jobs) {
  std::set<api::UnixSeconds> waits;
  for (int job = 0; job < 20; ++job) {
    Placement placement{.short_since = 1};
    apply_placement_timeout(spec_with(1), half_placed(1000, "uid-" + std::to_string(job)), placement);
    waits.insert(placement.again_at);
  }
  EXPECT_GT(waits.size(), 10U);
}

// Nodes, a scheduler that serves jobs in turn, and one operator.
class SmallCluster {
 public:
  static constexpr size_t kMachines = 4;
  static constexpr api::UnixSeconds kTrainsFor = 60;

  void make_job(const std::string& name, Json health) {
    jobs_.push_back(
        {.object = {{"metadata", {{"name", name}, {"namespace", "ns"}, {"uid", name}, {"generation", 1}}},
                    {"spec", {{"trainer", {{"image", "runner"}, {"numNodes", kMachines}}}, {"health", health}}}}});
  }

  void live(api::UnixSeconds seconds) {
    for (const api::UnixSeconds end = now_ + seconds; now_ < end; now_ += 10) {
      for (Job& job : jobs_) check(job);
      schedule();
      for (Job& job : jobs_) train(job);
    }
  }

  [[nodiscard]] api::TrainJobStatus status(size_t job) const {
    return api::trainjob_from_json(jobs_[job].object)->status;
  }
  [[nodiscard]] size_t placed(size_t job) const {
    const auto& pods = jobs_[job].pods;
    return static_cast<size_t>(
        std::count_if(pods.begin(), pods.end(), [](const auto& pod) { return runs(pod.second); }));
  }

 private:
  struct Job {
    Json object;
    std::map<std::string, Json> pods;
    api::UnixSeconds trains_since = 0;
  };

  static bool runs(const Json& pod) {
    return !text_field(pod, {"spec", "nodeName"}).empty() && text_field(pod, {"status", "phase"}) != "Succeeded";
  }

  void check(Job& job) {
    const Result<api::TrainJob> owner = api::trainjob_from_json(job.object);
    ASSERT_TRUE(owner.ok()) << owner.error().message;
    ClusterObjects objects{.job = *owner};
    for (const auto& [name, pod] : job.pods) objects.pods.push_back(view_of_pod(pod));
    objects.service = desired_service(*owner);
    Observed o = observe(std::move(objects), now_);
    o.first_pod = FirstPod{1, ""};
    const Plan plan = make_plan(o);
    if (plan.status) job.object["status"] = api::to_json(*plan.status);
    for (const Action& action : plan.actions) {
      if (const auto* create = std::get_if<CreatePod>(&action.what)) {
        Json pod = *desired_pod(o, create->parameters);
        const std::string& name = create->name;
        pod["metadata"]["uid"] = name;
        pod["metadata"]["creationTimestamp"] = api::format_time(now_);
        pod["status"] = {{"phase", "Pending"}};
        job.pods.emplace(name, std::move(pod));
      } else if (const auto* remove = std::get_if<DeletePod>(&action.what)) {
        job.pods.erase(remove->name);
      }
    }
  }

  // One pod of each job in turn: what makes two jobs that begin together hold half of the nodes each.
  void schedule() {
    size_t used = 0;
    for (size_t job = 0; job < jobs_.size(); ++job) used += placed(job);
    for (size_t turn = 0; turn < kMachines; ++turn) {
      for (Job& job : jobs_) {
        const auto waiting = std::find_if(job.pods.begin(), job.pods.end(), [](const auto& pod) {
          return text_field(pod.second, {"spec", "nodeName"}).empty();
        });
        if (waiting == job.pods.end()) continue;
        Json& pod = waiting->second;
        if (used == kMachines) {
          pod["status"]["conditions"] = Json::array(
              {{{"type", "PodScheduled"}, {"status", "False"}, {"reason", "Unschedulable"}, {"message", "all taken"}}});
          continue;
        }
        ++used;
        pod["spec"]["nodeName"] = "node";
        pod["status"] = {{"phase", "Running"}, {"conditions", Json::array()}};
      }
    }
  }

  void train(Job& job) {
    const auto running =
        std::count_if(job.pods.begin(), job.pods.end(), [](const auto& pod) { return runs(pod.second); });
    if (running < static_cast<std::ptrdiff_t>(kMachines)) {
      job.trains_since = 0;
      return;
    }
    if (job.trains_since == 0) job.trains_since = now_;
    const bool is_done = job.trains_since + kTrainsFor <= now_;
    for (auto& [name, pod] : job.pods) {
      Json state = {{"running", Json::object()}};
      if (is_done) state = {{"terminated", {{"exitCode", 0}}}};
      pod["status"] = {{"phase", is_done ? "Succeeded" : "Running"},
                       {"conditions", Json::array({{{"type", "Ready"}, {"status", is_done ? "False" : "True"}}})},
                       {"containerStatuses",
                        Json::array({{{"name", "trainer"}, {"ready", !is_done}, {"state", std::move(state)}}})}};
    }
  }

  std::vector<Job> jobs_;
  api::UnixSeconds now_ = 1'795'255'200;
};

constexpr api::UnixSeconds kHour = 3600;

TEST(TwoJobsWithHalfOfTheMachinesEach, deadlock_without_a_placement_timeout) {
  SmallCluster cluster;
  cluster.make_job("a", Json::object());
  cluster.make_job("b", Json::object());
  cluster.live(kHour);
  for (const size_t job : {0, 1}) {
    EXPECT_EQ(cluster.placed(job), 2U);
    EXPECT_EQ(cluster.status(job).phase, api::JobPhase::kStarting) << cluster.status(job).message;
    EXPECT_EQ(cluster.status(job).reason, "Unschedulable");
  }
}

TEST(TwoJobsWithHalfOfTheMachinesEach, train_one_after_the_other_with_a_placement_timeout) {
  SmallCluster cluster;
  cluster.make_job("a", {{"placementTimeoutSeconds", 120}});
  cluster.make_job("b", {{"placementTimeoutSeconds", 120}});
  cluster.live(kHour);
  for (const size_t job : {0, 1}) {
    EXPECT_EQ(cluster.status(job).phase, api::JobPhase::kComplete) << cluster.status(job).message;
    EXPECT_EQ(cluster.status(job).restarts.total, 0);
    EXPECT_TRUE(cluster.status(job).recent_failures.empty());
  }
}

}  // namespace
}  // namespace lockstep::train
