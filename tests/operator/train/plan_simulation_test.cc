// make_plan against a model cluster: pods start and fail, nodes go away, people suspend, resume, scale and delete
// pods, caches lag behind, and the operator dies after any action. What must hold at every moment is in `check_now`,
// what must come of it in the end in each test.
#include <gtest/gtest.h>

#include <set>

#include "operator/train/object_names.h"
#include "operator/train/plan.h"
#include "operator/train/pod_end.h"
#include "runner/base/json.h"
#include "tests/operator/train/golden_plan_text.h"
#include "tests/operator/train/model_cluster.h"

namespace lockstep::train {
namespace {

constexpr int kStormSteps = 120;
constexpr int kCalmSteps = 600;
constexpr int kRestSteps = 60;

// What one operator process knows: caches that lag, its own writes, and what it learned by asking.
class ModelOperator {
 public:
  ModelOperator(ModelCluster& cluster, bool may_lag) : cluster_(cluster), may_lag_(may_lag) { restart(); }

  // A new process lists everything anew.
  void restart() {
    read_changes(cluster_.changes().size());
    seen_jobs_ = cluster_.jobs().size();
    own_pods_.clear();
    first_pod_.reset();
    missing_.clear();
    wake_at_.reset();
  }

  [[nodiscard]] std::optional<api::UnixSeconds> wake_at() const { return wake_at_; }

  Observed observe_now() {
    catch_up();
    ClusterObjects objects{.job = api::trainjob_from_json(cluster_.jobs()[seen_jobs_ - 1]).value()};
    std::map<std::string, Json> pods = cached_pods_;
    for (const auto& [name, own] : own_pods_) {
      if (own.first < seen_changes_) continue;
      own.second ? void(pods[name] = *own.second) : void(pods.erase(name));
    }
    for (const auto& [name, pod] : pods) {
      objects.pods.push_back(view_of_pod(pod));
    }
    objects.service = cluster_.service();
    objects.nodes.emplace();
    for (const Json& node : cluster_.nodes()) objects.nodes->emplace(api::meta_of(node).name, view_of_node(node));
    Observed o = observe(std::move(objects), cluster_.now());
    o.settings.token_key = "key";
    o.first_pod = first_pod_;
    o.missing_pods = missing_;
    seen_ = o;
    return o;
  }

  // One reconcile; it dies after `dies_after` writes. Returns whether anything was done.
  bool reconcile(int dies_after) {
    const Observed o = observe_now();
    const Plan plan = make_plan(o);
    wake_at_ = plan.requeue_at;
    int writes = 0;
    if (plan.status) {
      if (!cluster_.write_status(static_cast<int64_t>(seen_jobs_), *plan.status)) {
        seen_jobs_ = cluster_.jobs().size();  // the watch will bring it
        return true;
      }
      seen_jobs_ = cluster_.jobs().size();
      if (++writes > dies_after) return restart(), true;
    }
    for (const Action& action : plan.actions) {
      if (!carry_out(action)) break;
      if (++writes > dies_after) return restart(), true;
    }
    return plan.status.has_value() || !plan.actions.empty();
  }

  // Carries out an action of a plan from an older view, as a process does that was stopped and goes on.
  bool carry_out(const Action& action) {
    if (const auto* look = std::get_if<LookUpPod>(&action.what)) {
      const auto it = cluster_.pods().find(look->name);
      if (it == cluster_.pods().end()) {
        missing_.insert(look->name);
      } else {
        keep(look->name);
      }
    } else if (const auto* service = std::get_if<CreateObject>(&action.what)) {
      cluster_.make_service(service->object);
    } else if (const auto* create = std::get_if<CreatePod>(&action.what)) {
      const Result<Json> pod = desired_pod(seen_, create->parameters);
      EXPECT_TRUE(pod.ok());
      cluster_.create_pod(*pod);  // 409: it is ours, and known from now on
      keep(create->name);
      if (create->is_first) first_pod_ = FirstPod{create->generation, ""};
    } else if (const auto* stop = std::get_if<StopServing>(&action.what)) {
      if (!cluster_.stop_serving(stop->name, stop->uid)) return false;
      keep(stop->name);
    } else if (const auto* remove = std::get_if<DeletePod>(&action.what)) {
      if (!cluster_.delete_pod(remove->name, remove->uid)) return false;
      keep(remove->name);
    }
    return true;
  }

 private:
  void keep(const std::string& name) {
    const auto it = cluster_.pods().find(name);
    own_pods_[name] = {cluster_.changes().size() - 1,
                       it == cluster_.pods().end() ? std::nullopt : std::optional<Json>(it->second)};
  }

  void catch_up() {
    const auto somewhere = [&](size_t from, size_t to) {
      if (!may_lag_ || from >= to) return to;
      return from + static_cast<size_t>(cluster_.pick(static_cast<int>(to - from) + 1));
    };
    read_changes(somewhere(seen_changes_, cluster_.changes().size()));
    seen_jobs_ = somewhere(seen_jobs_, cluster_.jobs().size());
  }

  void read_changes(size_t to) {
    for (; seen_changes_ < to; ++seen_changes_) {
      const ModelCluster::Change& change = cluster_.changes()[seen_changes_];
      change.pod ? void(cached_pods_[change.name] = *change.pod) : void(cached_pods_.erase(change.name));
    }
  }

  ModelCluster& cluster_;
  const bool may_lag_;
  std::map<std::string, Json> cached_pods_;  // after the changes that were seen
  size_t seen_changes_ = 0;
  size_t seen_jobs_ = 1;
  std::map<std::string, std::pair<size_t, std::optional<Json>>> own_pods_;
  std::optional<FirstPod> first_pod_;
  Observed seen_;
  std::set<std::string> missing_;
  std::optional<api::UnixSeconds> wake_at_;
};

api::TrainJobStatus status_of(const ModelCluster& cluster) { return api::trainjob_from_json(cluster.job())->status; }

Json spec_with(const char* launcher) {
  return {{"trainer", {{"image", "runner"}, {"launcher", launcher}, {"numNodes", 3}}},
          {"restartPolicy", {{"maxRestarts", 1000}, {"noProgressRestarts", 1000}}},
          {"health", {{"startupTimeoutSeconds", 1'000'000}}}};
}

class Simulation : public testing::TestWithParam<unsigned> {
 protected:
  void check_now(const ModelCluster& cluster) {
    for (const auto& [node_rank, count] : cluster.live_serving_pods()) {
      ASSERT_LE(count, 1) << "node rank " << node_rank << " is served by several pods";
    }
    const api::TrainJobStatus status = status_of(cluster);
    for (const auto& [node_rank, attempt] : attempts_) {
      const auto now = status.attempts.find(node_rank);
      ASSERT_TRUE(now != status.attempts.end() && now->second >= attempt)
          << "the attempt of node rank " << node_rank << " fell";
    }
    attempts_ = status.attempts;
    std::set<std::pair<int, int>> counted;
    for (const api::RecentFailure& f : status.recent_failures) {
      ASSERT_TRUE(counted.insert({f.node, f.attempt}).second)
          << "node rank " << f.node << " attempt " << f.attempt << " twice";
    }
  }

  // Call after each reconcile. When it has made a pod, all pods of earlier attempts had ended, or were lost.
  void check_that_attempts_do_not_meet(const ModelCluster& cluster) {
    bool is_any_new = false;
    for (const auto& [name, pod] : cluster.pods()) is_any_new = seen_pods_.insert(name).second || is_any_new;
    if (!is_any_new) return;
    ClusterObjects objects{.job = api::trainjob_from_json(cluster.job()).value()};
    objects.nodes.emplace();
    for (const Json& node : cluster.nodes()) objects.nodes->emplace(api::meta_of(node).name, view_of_node(node));
    const Observed o = observe(std::move(objects), cluster.now());
    for (const auto& [name, pod] : cluster.pods()) {
      const PodView view = view_of_pod(pod);
      if (view.attempt >= o.job.status.attempt_of(view.node_rank)) continue;
      ASSERT_TRUE(has_ended(view) || is_lost(view, o)) << "a pod was made before " << name << " had ended";
    }
  }

  // Goes on until nothing is left to do; then the job must be complete.
  void come_to_rest(ModelCluster& cluster, ModelOperator& op) {
    for (int step = 0; step < kCalmSteps; ++step) {
      cluster.live(true);
      const bool did_something = op.reconcile(1000);
      check_now(cluster);
      rested_ = did_something || !cluster.is_finished() ? 0 : rested_ + 1;
      if (rested_ > kRestSteps) break;
      if (op.wake_at() && *op.wake_at() > cluster.now()) cluster.pass_time((*op.wake_at() - cluster.now()) / 20);
      if (HasFatalFailure()) return;
    }
    ASSERT_TRUE(cluster.is_finished()) << status_of(cluster).message;
    EXPECT_TRUE(status_of(cluster).conditions.is_true(api::condition::kComplete)) << status_of(cluster).message;
    for (const auto& [name, pod] : cluster.pods()) {
      const std::string phase = text_field(pod, {"status", "phase"});
      EXPECT_TRUE(phase == "Succeeded" || phase == "Failed") << name << " is left over";
    }
  }

  std::map<int, int> attempts_;
  std::set<std::string> seen_pods_;
  int rested_ = 0;  // steps without anything to do
};

TEST_P(Simulation, a_storm_of_failures_ends_in_completion_and_counts_each_once) {
  ModelCluster cluster(GetParam(), spec_with("Lockstep"));
  ModelOperator op(cluster, true);
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    if (cluster.pick(2) == 0) op.reconcile(cluster.pick(3) == 0 ? cluster.pick(4) : 1000);
    check_now(cluster);
    if (HasFatalFailure()) return;
  }
  come_to_rest(cluster, op);
  if (HasFatalFailure()) return;
  const api::TrainJobStatus status = status_of(cluster);
  // Every restart is one attempt of one pod, and has a failure of its own.
  int64_t raised = 0;
  for (const auto& [node_rank, attempt] : status.attempts) raised += attempt;
  EXPECT_EQ(raised, status.restarts.pod);
  EXPECT_EQ(status.restarts.gang, 0);
}

TEST_P(Simulation, suspends_resumes_and_scalings_in_the_storm_end_in_completion) {
  Json spec = spec_with("Lockstep");
  spec["elastic"] = {{"minNodes", 1}, {"maxNodes", 4}};
  ModelCluster cluster(GetParam(), spec);
  ModelOperator op(cluster, true);
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    if (cluster.pick(15) == 0) cluster.change_spec({{"suspend", cluster.pick(2) == 0}});
    if (cluster.pick(15) == 0) cluster.change_spec({{"trainer", {{"numNodes", 1 + cluster.pick(4)}}}});
    op.reconcile(cluster.pick(3) == 0 ? cluster.pick(4) : 1000);
    check_now(cluster);
    if (HasFatalFailure()) return;
  }
  cluster.change_spec({{"suspend", false}});
  come_to_rest(cluster, op);
}

TEST_P(Simulation, holds_by_the_operator_and_changes_of_the_spec_in_the_storm_end_in_completion) {
  ModelCluster cluster(GetParam(), spec_with("Lockstep"));
  ModelOperator op(cluster, true);
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    const auto pods = cluster.pods();
    for (const auto& [name, pod] : pods) {
      if (text_field(pod, {"status", "phase"}) == "Running" && cluster.pick(40) == 0) {
        cluster.fail(name, 2, R"({"reason":"ConfigurationChanged","message":"--lr is 1 and was 2"})");
      }
    }
    if (cluster.pick(15) == 0) cluster.change_spec({{"suspend", cluster.pick(4) == 0}});
    op.reconcile(cluster.pick(3) == 0 ? cluster.pick(4) : 1000);
    check_now(cluster);
    if (HasFatalFailure()) return;
  }
  // What is left of them is repaired.
  for (int step = 0; step < kCalmSteps && !cluster.is_finished(); ++step) {
    cluster.live(true);
    op.reconcile(1000);
    if (status_of(cluster).phase == api::JobPhase::kSuspended) cluster.change_spec({{"suspend", false}});
  }
  come_to_rest(cluster, op);
}

// Each pod's last words name a step beyond those before: the input has worked, and a machine is at fault.
TEST_P(Simulation, errors_of_the_input_after_the_first_step_end_in_completion) {
  ModelCluster cluster(GetParam(), spec_with("Lockstep"));
  ModelOperator op(cluster, true);
  int steps = 0;
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    const auto pods = cluster.pods();
    for (const auto& [name, pod] : pods) {
      if (text_field(pod, {"status", "phase"}) != "Running" || cluster.pick(20) != 0) continue;
      cluster.fail(name, 2 + cluster.pick(2), R"({"message":"stale","rank":0,"step":)" + std::to_string(++steps) + "}");
    }
    op.reconcile(cluster.pick(3) == 0 ? cluster.pick(4) : 1000);
    check_now(cluster);
    if (HasFatalFailure()) return;
  }
  come_to_rest(cluster, op);
}

TEST_P(Simulation, gangs_end_in_completion) {
  Json spec = spec_with(GetParam() % 2 == 0 ? "Torchrun" : "None");
  if (GetParam() % 4 < 2) spec["checkpoint"]["volume"]["emptyDir"] = Json::object();
  ModelCluster cluster(GetParam(), spec);
  ModelOperator op(cluster, true);
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    op.reconcile(cluster.pick(3) == 0 ? cluster.pick(4) : 1000);
    check_now(cluster);
    check_that_attempts_do_not_meet(cluster);
    if (HasFatalFailure()) return;
  }
  come_to_rest(cluster, op);
  EXPECT_EQ(status_of(cluster).restarts.pod, 0);
}

// A leader that was stopped while it carried out a plan goes on after another has taken over. For a moment it may make
// a pod of an old attempt; the agents settle that (the higher attempt stays), and the new leader takes it away.
TEST_P(Simulation, an_old_leader_that_wakes_up_does_no_lasting_harm) {
  ModelCluster cluster(GetParam(), spec_with("Lockstep"));
  ModelOperator op(cluster, true);
  ModelOperator old(cluster, true);
  std::vector<Action> left;
  for (int step = 0; step < kStormSteps; ++step) {
    cluster.live(false);
    if (step % 10 == 0) left = make_plan(old.observe_now()).actions;
    if (step % 10 == 7) {
      for (const Action& action : left) old.carry_out(action);
    }
    op.reconcile(1000);
  }
  for (int step = 0; step < kCalmSteps; ++step) {
    cluster.live(true);
    op.reconcile(1000);
    if (op.wake_at() && *op.wake_at() > cluster.now()) cluster.pass_time((*op.wake_at() - cluster.now()) / 20);
  }
  EXPECT_TRUE(status_of(cluster).conditions.is_true(api::condition::kComplete)) << status_of(cluster).message;
  check_now(cluster);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Simulation, testing::Range(1U, 61U));

// A crash loop ends: after noProgressRestarts restarts without a step, or maxRestarts where no steps are reported.
TEST(CrashLoop, ends_by_itself) {
  for (const char* launcher : {"Lockstep", "Torchrun"}) {
    ModelCluster cluster(7, {{"trainer", {{"image", "runner"}, {"launcher", launcher}, {"numNodes", 1}}},
                             {"health", {{"startupTimeoutSeconds", 1'000'000}}}});
    ModelOperator op(cluster, false);
    int ends = 0;
    for (int step = 0; step < 2000 && !cluster.is_finished(); ++step) {
      op.reconcile(1000);
      cluster.pass_time(10);
      const auto pods = cluster.pods();
      for (const auto& [name, pod] : pods) {
        if (text_field(pod, {"status", "phase"}) != "Pending") continue;
        cluster.fail(name, 1);
        ++ends;
      }
    }
    const api::TrainJobStatus status = status_of(cluster);
    ASSERT_TRUE(status.conditions.is_true(api::condition::kFailed)) << launcher;
    EXPECT_EQ(status.reason, launcher == std::string("Lockstep") ? "NoProgress" : "TooManyRestarts");
    EXPECT_EQ(ends, launcher == std::string("Lockstep") ? 4 : 11);
  }
}

}  // namespace
}  // namespace lockstep::train
