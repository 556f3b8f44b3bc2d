// To which pods the address of pod 0 is sent, and when there is nothing to send.
#include "operator/train/coordinator_news.h"

#include <gtest/gtest.h>

#include <functional>

namespace lockstep::train {
namespace {

PodView running(int node_rank, int attempt = 0) {
  PodView pod;
  pod.node_rank = node_rank;
  pod.attempt = attempt;
  pod.meta.uid = "uid-" + std::to_string(node_rank) + "-" + std::to_string(attempt);
  pod.started = true;
  pod.node = "node";
  pod.ip = "10.0." + std::to_string(attempt) + "." + std::to_string(node_rank);
  return pod;
}

struct Facts {
  Observed observed;
  api::TrainJobStatus status;
};

Facts three_nodes() {
  Facts input;
  input.observed.now = 1000;
  input.observed.settings.token_key = "key";
  input.observed.job.meta.uid = "uid";
  input.observed.job.spec.trainer.num_nodes = 3;
  input.observed.nodes = {{"node", NodeView{}}};
  for (int node_rank = 0; node_rank < 3; ++node_rank) {
    input.observed.pods.push_back(running(node_rank));
    input.status.attempts[node_rank] = 0;
  }
  return input;
}

struct Row {
  std::string what;
  std::function<void(Facts&)> change;
  std::string address;
  std::vector<std::string> uids;
};

TEST(CoordinatorNews, go_from_a_running_pod_0_to_the_other_running_pods) {
  const std::vector<Row> table = {
      {"all run", [](Facts&) {}, "10.0.0.0", {"uid-1-0", "uid-2-0"}},
      {"one has not started", [](Facts& s) { s.observed.pods[1].started = false; }, "10.0.0.0", {"uid-2-0"}},
      {"one has no address", [](Facts& s) { s.observed.pods[1].ip = ""; }, "10.0.0.0", {"uid-2-0"}},
      {"one goes", [](Facts& s) { s.observed.pods[2].deleting = true; }, "10.0.0.0", {"uid-1-0"}},
      {"one has ended and its pod runs on",
       [](Facts& s) {
         s.observed.pods[2].end = ContainerEnd{.container = "trainer", .exit_code = 1, .reason = "", .message = ""};
       },
       "10.0.0.0",
       {"uid-1-0"}},
      {"pod 0 has not started", [](Facts& s) { s.observed.pods[0].started = false; }, "", {}},
      {"pod 0 has no address", [](Facts& s) { s.observed.pods[0].ip = ""; }, "", {}},
      {"pod 0 goes", [](Facts& s) { s.observed.pods[0].deleting = true; }, "", {}},
      {"pod 0 has failed", [](Facts& s) { s.observed.pods[0].phase = PodPhase::kFailed; }, "", {}},
      {"pod 0's node is lost",
       [](Facts& s) {
         s.observed.pods[0].node = "lost";
         s.observed.nodes->emplace("lost", NodeView{.out_of_service = true});
       },
       "",
       {}},
      {"pod 0 is gone", [](Facts& s) { s.observed.pods.erase(s.observed.pods.begin()); }, "", {}},
      {"pod 0's next attempt was decided", [](Facts& s) { s.status.attempts[0] = 1; }, "", {}},
      {"pod 0's next attempt runs beside the old one",
       [](Facts& s) {
         s.status.attempts[0] = 1;
         s.observed.pods.insert(s.observed.pods.begin() + 1, running(0, 1));
       },
       "10.0.1.0",
       {"uid-1-0", "uid-2-0"}},
      {"another pod's next attempt runs beside the old one",
       [](Facts& s) {
         s.status.attempts[1] = 1;
         s.observed.pods.insert(s.observed.pods.begin() + 2, running(1, 1));
       },
       "10.0.0.0",
       {"uid-1-1", "uid-2-0"}},
      {"no attempt was written yet", [](Facts& s) { s.status.attempts.clear(); }, "10.0.0.0", {"uid-1-0", "uid-2-0"}},
      {"one pod alone", [](Facts& s) { s.observed.pods.resize(1); }, "", {}},
      {"another launcher", [](Facts& s) { s.observed.job.spec.trainer.launcher = api::Launcher::kTorchrun; }, "", {}},
  };
  for (const Row& row : table) {
    Facts input = three_nodes();
    row.change(input);
    const CoordinatorNews news = coordinator_news(input.observed, input.status);
    std::vector<std::string> uids;
    for (const CoordinatorNews::Pod& pod : news.pods) uids.push_back(pod.uid);
    EXPECT_EQ(news.address, row.address) << row.what;
    EXPECT_EQ(uids, row.uids) << row.what;
    EXPECT_EQ(news.token, row.uids.empty() ? "" : input.observed.token()) << row.what;
  }
}

TEST(CoordinatorNews, have_the_address_of_each_pod) {
  const Facts input = three_nodes();
  const CoordinatorNews news = coordinator_news(input.observed, input.status);
  ASSERT_EQ(news.pods.size(), 2U);
  EXPECT_EQ(news.pods[1], (CoordinatorNews::Pod{.uid = "uid-2-0", .ip = "10.0.0.2"}));
}

}  // namespace
}  // namespace lockstep::train
