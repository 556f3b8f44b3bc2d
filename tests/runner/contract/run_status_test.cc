#include "runner/contract/run_status.h"

#include <gtest/gtest.h>

#include <limits>

#include "runner/base/json_text.h"
#include "tests/runner/contract/recorded_status.h"

namespace lockstep {
namespace {

TEST(RunStatus, has_null_for_what_is_not_known) {
  const OrderedJson empty = to_json(RunStatus{});
  EXPECT_TRUE(empty.at("progress").is_null());
  EXPECT_TRUE(empty.at("lastCheckpoint").is_null());
  EXPECT_EQ(empty.at("phase"), "Starting");
  EXPECT_TRUE(empty.at("workers").is_array());
  EXPECT_TRUE(empty.at("coordinator").is_null());
  EXPECT_TRUE(empty.at("goodput").is_null());
  EXPECT_TRUE(empty.at("slowest").is_null());

  RunStatus status;
  status.progress = Progress{};
  status.progress->loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(to_json(status).at("progress").at("loss").is_null());
  EXPECT_TRUE(to_json(status).at("progress").at("percent").is_null());
  EXPECT_TRUE(to_json(status).at("progress").at("estimatedRemainingSeconds").is_null());
}

// The operator reads at most 2 MiB (operator/train/agent_client.h) and 100,000 values (run_report.cc).
TEST(RunStatus, has_a_summary_of_ten_thousand_nodes_that_the_operator_reads) {
  RunStatus status;
  status.slowest = SlowestStatus{.rank = 79'999, .node = 9'999, .lag_seconds = 0.5};
  const std::string job(45, 'j');  // the longest name of a TrainJob
  for (int node = 0; node < 10'000; ++node) {
    status.nodes.push_back({.node = node,
                            .host = job + "-" + std::to_string(node) + "-1000000000",
                            .attempt = 1'000'000'000,
                            .state = "member"});
  }
  const std::string before = dump_line(summary_of(status));
  for (int rank = 0; rank < 80'000; ++rank) {
    status.workers.push_back({.rank = rank, .node = rank / 8, .state = "joined", .step = 1'000'000});
  }
  EXPECT_EQ(dump_line(summary_of(status)), before) << "it does not grow with the ranks";
  EXPECT_LT(before.size(), (size_t{2} << 20) - (size_t{256} << 10)) << "with room for failures and recoveries";
  EXPECT_LT(size_of_json(before).values, 90'000U);
  EXPECT_EQ(summary_of(status).at("slowest").at("node"), 9'999);
}

TEST(RunStatus, says_which_trainjob_it_is_of) {
  EXPECT_TRUE(summary_of(RunStatus{}).at("jobUid").is_null());
  EXPECT_TRUE(summary_of(RunStatus{}).at("namespace").is_null());
  RunStatus status;
  status.job_namespace = "team-a";
  status.job_uid = "5f0c";
  EXPECT_EQ(summary_of(status).at("namespace"), "team-a");
  EXPECT_EQ(summary_of(status).at("jobUid"), "5f0c");
}

TEST(RunStatus, tells_all_it_knows_by_the_names_that_it_had) {
  RunStatus status;
  status.job = "job";
  status.job_namespace = "team-a";
  status.job_uid = "5f0c";
  status.workload = "sasrec";
  status.generation = 7;
  status.phase = RunPhase::kRecovering;
  status.start_time_unix_seconds = 1'700'000'000;
  status.world_size = 4;
  status.nnodes = status.wanted_nodes = 2;
  status.workers = {WorkerStatus{.rank = 1,
                                 .node = 1,
                                 .pid = 5,
                                 .state = "joined",
                                 .step = 3,
                                 .activity = Activity::kEvaluating,
                                 .phase = Phase::kValidation}};
  status.progress = Progress{.step = 333,
                             .total_steps = 1000,
                             .epoch = 1,
                             .num_epochs = 20,
                             .loss = 0.5,
                             .lr = 0.25,
                             .grad_norm = -1.0,
                             .samples_per_second = 512.0,
                             .eta_seconds = 61.5,
                             .data_wait_ratio = -1.0};
  status.metrics = {{"ndcg@10", 0.5}};
  status.last_checkpoint = CheckpointWritten{.step = 200, .path = "/c"};
  status.origin = "resumed from /c";
  status.restarts = 2;
  status.recent_failures = {WorkerFailure{.rank = 1,
                                          .node = 1,
                                          .pid = 4,
                                          .exit_code = 137,
                                          .reason = "SignalKILL",
                                          .message = "m",
                                          .step = 2,
                                          .generation = 6,
                                          .time_unix_seconds = 9}};
  status.nodes = {NodeStatus{.node = 1, .host = "h", .attempt = 9, .state = "member", .ready = false}};
  status.recoveries_total = status.redone_steps = 1;
  status.recoveries = {Recovery{.cause = "NodeLost",
                                .total_seconds = 0.5,
                                .redone_steps = 1,
                                .step = 334,
                                .world_size = 4,
                                .generation = 7,
                                .time_unix_seconds = 8,
                                .broken_ns = 5,
                                .committed_ns = 6}};
  status.goodput = GoodputStatus{.ratio = 0.75, .parts = {{.kind = "waiting", .cause = "startup", .seconds = 2}}};
  status.slowest = SlowestStatus{.rank = 1, .node = 1, .lag_seconds = 0.25};
  status.restart_level = RestartStatus{.restarts = 2, .budget_left = 8, .last_decision = "starting it again"};
  status.loading = LoadingStatus{.prepared = 3, .to_prepare = 9, .seconds_unchanged = 0.5};
  EXPECT_EQ(Json::parse(dump_line(to_json(status))), Json::parse(kRecordedStatus));
}

}  // namespace
}  // namespace lockstep
