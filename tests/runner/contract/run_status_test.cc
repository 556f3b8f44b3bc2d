#include "runner/contract/run_status.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

TEST(RunStatus, has_null_for_what_is_not_known) {
  const OrderedJson empty = to_json(RunStatus{});
  EXPECT_TRUE(empty.at("progress").is_null());
  EXPECT_TRUE(empty.at("lastCheckpoint").is_null());
  EXPECT_EQ(empty.at("phase"), "Starting");
  EXPECT_TRUE(empty.at("workers").is_array());

  RunStatus status;
  status.progress = Progress{};
  status.progress->loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(to_json(status).at("progress").at("loss").is_null());
  EXPECT_TRUE(to_json(status).at("progress").at("percent").is_null());
  EXPECT_TRUE(to_json(status).at("progress").at("estimatedRemainingSeconds").is_null());
}

TEST(RunStatus, tells_all_it_knows) {
  RunStatus status;
  status.job = "job";
  status.workload = "sasrec";
  status.generation = 7;
  status.phase = RunPhase::kRecovering;
  status.workers = {WorkerStatus{.rank = 1, .pid = 5, .state = "joined", .step = 3, .phase = "training"}};
  status.progress = Progress{};
  status.progress->step = 333;
  status.progress->total_steps = 1000;
  status.metrics = {{"ndcg@10", 0.5}};
  status.last_checkpoint = CheckpointWritten{.step = 200, .path = "/c"};
  status.restarts = 2;
  status.recent_failures = {WorkerFailure{.rank = 1,
                                          .pid = 4,
                                          .exit_code = 137,
                                          .reason = "SignalKILL",
                                          .message = "m",
                                          .step = 2,
                                          .generation = 6,
                                          .time_unix_seconds = 9}};
  const OrderedJson json = to_json(status);
  EXPECT_EQ(json.at("phase"), "Recovering");
  EXPECT_EQ(json.at("workers").at(0).at("state"), "joined");
  EXPECT_EQ(json.at("progress").at("percent"), 33);
  EXPECT_EQ(json.at("metrics").at("ndcg@10"), 0.5);
  EXPECT_EQ(json.at("lastCheckpoint").at("step"), 200);
  EXPECT_EQ(json.at("recentFailures").at(0).at("exitCode"), 137);
}

}  // namespace
}  // namespace lockstep
