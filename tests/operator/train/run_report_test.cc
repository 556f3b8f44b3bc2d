// The reader of /status against its writer (runner/contract/run_status), so that the two cannot drift apart.
#include "operator/train/run_report.h"

#include <gtest/gtest.h>

#include <limits>

#include "runner/contract/run_status.h"

namespace lockstep::train {
namespace {

RunStatus full_status() {
  RunStatus status;
  status.job = "sasrec";
  status.generation = (uint64_t{3} << 32U) | 7U;
  status.phase = RunPhase::kRunning;
  status.nnodes = 2;
  status.wanted_nodes = 3;
  status.nodes = {{.node = 0, .host = "a", .attempt = 3, .state = "member"},
                  {.node = 1, .host = "b", .attempt = 1, .state = "lost"}};
  status.progress = Progress{.step = 250,
                             .total_steps = 1000,
                             .epoch = 3,
                             .num_epochs = 20,
                             .loss = 0.123456789,
                             .samples_per_second = 51234.5678,
                             .eta_seconds = 61.5};
  status.metrics = {{"NDCG@10", 0.51}, {"HR@10", std::numeric_limits<double>::quiet_NaN()}};
  status.last_checkpoint = CheckpointWritten{.step = 200, .path = "/ckpt"};
  status.origin = "resumed from /ckpt/step-00000200";
  status.restarts = 2;
  status.recent_failures = {{.rank = 1,
                             .node = 1,
                             .pid = 9,
                             .exit_code = 139,
                             .reason = "SignalSEGV",
                             .message = "m",
                             .time_unix_seconds = 77}};
  status.slowest = SlowestStatus{.rank = 1, .node = 1, .lag_seconds = 0.5};
  return status;
}

TEST(RunReport, reads_what_an_agent_writes) {
  const Result<RunReport> read = parse_run_report(dump_pretty(to_json(full_status())));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->is_running());
  EXPECT_EQ(read->generation, (uint64_t{3} << 32U) | 7U);
  EXPECT_EQ(read->num_nodes, 2);
  EXPECT_EQ(read->origin, "resumed from /ckpt/step-00000200");
  EXPECT_EQ(read->wanted_nodes, 3);
  ASSERT_EQ(read->agents.size(), 2U);
  EXPECT_EQ(read->agents[0].attempt, 3);
  EXPECT_EQ(read->agents[1].state, "lost");
  ASSERT_TRUE(read->progress.has_value());
  EXPECT_EQ(read->progress->step, 250);
  EXPECT_EQ(read->progress->percent, 25);
  EXPECT_EQ(read->progress->loss, "0.123457");
  EXPECT_EQ(read->progress->samples_per_second, "51234.6");
  EXPECT_EQ(read->progress->estimated_remaining_seconds, 62);
  ASSERT_EQ(read->metrics.size(), 1U);  // what is not a number is left out
  EXPECT_EQ(read->metrics[0].value, "0.51");
  EXPECT_EQ(read->checkpoint_step, 200);
  EXPECT_EQ(read->process_restarts, 2);
  ASSERT_EQ(read->failures.size(), 1U);
  EXPECT_EQ(read->failures[0].node, 1);
  EXPECT_EQ(read->failures[0].time, 77);
  ASSERT_TRUE(read->slowest.has_value());
  EXPECT_EQ(read->slowest->node_rank, 1);
}

TEST(RunReport, reads_as_much_from_the_summary) {
  const Result<RunReport> read = parse_run_report(dump_line(summary_of(full_status())));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->agents.size(), 2U);
  EXPECT_EQ(read->checkpoint_step, 200);
  EXPECT_EQ(read->failures.at(0).node, 1);
  ASSERT_TRUE(read->slowest.has_value());
  EXPECT_EQ(read->slowest->rank, 1);
  EXPECT_EQ(read->slowest->node_rank, 1);
}

TEST(RunReport, reads_an_agent_that_has_just_started) {
  const Result<RunReport> read = parse_run_report(dump_pretty(to_json(RunStatus{})));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->phase, "Starting");
  EXPECT_FALSE(read->progress.has_value());
  EXPECT_FALSE(read->checkpoint_step.has_value());
  EXPECT_FALSE(read->slowest.has_value());
  EXPECT_FALSE(read->wanted_nodes.has_value());
}

TEST(RunReport, knows_whether_workers_come_further_with_their_data) {
  RunStatus status;
  status.loading = LoadingStatus{.prepared = 1200, .to_prepare = 5000, .seconds_unchanged = 59.0};
  const Result<RunReport> read = parse_run_report(dump_line(summary_of(status)));
  ASSERT_TRUE(read.ok() && read->loading);
  EXPECT_EQ(read->loading->prepared, 1200);
  EXPECT_EQ(read->loading->to_prepare, 5000);
  EXPECT_TRUE(read->is_loading());
  status.loading->seconds_unchanged = 61.0;
  EXPECT_FALSE(parse_run_report(dump_line(summary_of(status)))->is_loading());
  EXPECT_FALSE(parse_run_report(R"({"loading":{"secondsUnchanged":null}})")->is_loading());
  EXPECT_FALSE(parse_run_report(R"({"loading":7})")->is_loading());
}

TEST(RunReport, takes_parts_of_another_type_for_missing_ones) {
  const Result<RunReport> read = parse_run_report(
      R"({"generation":"x","phase":5,"nodes":{},"progress":[],"metrics":[1],"lastCheckpoint":3,)"
      R"("restarts":null,"recentFailures":[{"rank":"a"}],"slowest":{"rank":-1},"nnodes":1e300,"wantedNodes":-4})");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->generation, 0U);
  EXPECT_EQ(read->phase, "");
  EXPECT_FALSE(read->progress.has_value());
  EXPECT_FALSE(read->wanted_nodes.has_value());
}

// Whatever a report contains, the API server accepts the status that is made of it.
TEST(RunReport, cuts_what_is_too_long_and_drops_times_that_are_none) {
  std::string long_text = "x";
  while (long_text.size() < 1'000'000) long_text += "é";
  Json failures = Json::array();
  for (const int64_t time : {int64_t{1'795'255'200'000}, int64_t{-1}, int64_t{253'402'300'800}, int64_t{77}}) {
    failures.push_back({{"rank", 0}, {"node", 0}, {"reason", long_text}, {"message", long_text}, {"time", time}});
  }
  const Json body = {{"phase", long_text},
                     {"reason", long_text},
                     {"nodes", Json::array({{{"state", long_text}}})},
                     {"metrics", {{"HR@10", 0.5}, {long_text, 0.5}}},
                     {"recentFailures", failures}};
  const Result<RunReport> read = parse_run_report(body.dump());
  ASSERT_TRUE(read.ok()) << read.error().message;
  const std::string cut = long_text.substr(0, 1023) + "…";  // the 1,024th byte is the first half of a character
  EXPECT_EQ(read->reason, cut);
  EXPECT_EQ(read->phase, cut);
  EXPECT_EQ(read->agents.at(0).state, cut);
  ASSERT_EQ(read->metrics.size(), 1U);
  EXPECT_EQ(read->metrics[0].name, "HR@10");
  ASSERT_EQ(read->failures.size(), 4U);
  EXPECT_EQ(read->failures[0].reason, cut);
  EXPECT_EQ(read->failures[0].message, cut);
  EXPECT_EQ(read->failures[0].time, 0);
  EXPECT_EQ(read->failures[1].time, 0);
  EXPECT_EQ(read->failures[2].time, 0);
  EXPECT_EQ(read->failures[3].time, 77);
}

TEST(RunReport, refuses_what_is_no_object) {
  for (const char* body : {"", "[]", "7", "{", "not json"}) {
    const Result<RunReport> read = parse_run_report(body);
    ASSERT_FALSE(read.ok()) << body;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace lockstep::train
