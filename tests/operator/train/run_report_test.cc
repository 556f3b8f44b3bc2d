// The reader of /status against its writer (runner/contract/run_status), so that the two cannot drift apart.
#include "operator/train/run_report.h"

#include <gtest/gtest.h>

#include <limits>

#include "runner/contract/run_status.h"
#include "tests/runner/contract/recorded_status.h"

namespace lockstep::train {
namespace {

RunStatus full_status() {
  RunStatus status;
  status.job = "sasrec";
  status.job_namespace = "team-a";
  status.job_uid = "5f0c";
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

TEST(RunReport, reads_what_an_agent_of_the_first_release_writes) {
  const Result<RunReport> read = parse_run_report(kRecordedStatus, 2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->job_uid, "5f0c");
  EXPECT_EQ(read->generation, 7U);
  EXPECT_EQ(read->wanted_nodes, 2);
  EXPECT_EQ(read->checkpoint_step, 200);
  EXPECT_EQ(read->origin, "resumed from /c");
  ASSERT_EQ(read->agents.size(), 1U);
  EXPECT_EQ(read->agents[0].attempt, 9);
  ASSERT_TRUE(read->progress.has_value());
  EXPECT_EQ(read->progress->step, 333);
}

TEST(RunReport, reads_what_an_agent_writes) {
  const Result<RunReport> read = parse_run_report(dump_pretty(to_json(full_status())), 2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->job, "sasrec");
  EXPECT_EQ(read->job_namespace, "team-a");
  EXPECT_EQ(read->job_uid, "5f0c");
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
  const Result<RunReport> read = parse_run_report(dump_line(summary_of(full_status())), 2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->agents.size(), 2U);
  EXPECT_EQ(read->checkpoint_step, 200);
  EXPECT_EQ(read->failures.at(0).node, 1);
  ASSERT_TRUE(read->slowest.has_value());
  EXPECT_EQ(read->slowest->rank, 1);
  EXPECT_EQ(read->slowest->node_rank, 1);
}

TEST(RunReport, reads_an_agent_that_has_just_started) {
  const Result<RunReport> read = parse_run_report(dump_pretty(to_json(RunStatus{})), 2);
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
  const Result<RunReport> read = parse_run_report(dump_line(summary_of(status)), 2);
  ASSERT_TRUE(read.ok() && read->loading);
  EXPECT_EQ(read->loading->prepared, 1200);
  EXPECT_EQ(read->loading->to_prepare, 5000);
  EXPECT_TRUE(read->is_loading());
  status.loading->seconds_unchanged = 61.0;
  EXPECT_FALSE(parse_run_report(dump_line(summary_of(status)), 2)->is_loading());
  EXPECT_FALSE(parse_run_report(R"({"loading":{"secondsUnchanged":null}})", 2)->is_loading());
  EXPECT_FALSE(parse_run_report(R"({"loading":7})", 2)->is_loading());
}

TEST(RunReport, takes_parts_of_another_type_for_missing_ones) {
  const Result<RunReport> read = parse_run_report(
      R"({"generation":"x","phase":5,"nodes":{},"progress":[],"metrics":[1],"lastCheckpoint":3,)"
      R"("restarts":null,"recentFailures":[{"rank":"a"}],"slowest":{"rank":-1},"nnodes":1e300,"wantedNodes":-4})",
      2);
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
                     {"nodes", Json::array({{{"node", 0}, {"state", long_text}}})},
                     {"metrics", {{"HR@10", 0.5}, {long_text, 0.5}}},
                     {"recentFailures", failures}};
  const Result<RunReport> read = parse_run_report(body.dump(), 2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const std::string cut = long_text.substr(0, 1023) + "…";  // the 1,024th byte is the first half of a character
  EXPECT_EQ(read->reason, cut);
  EXPECT_EQ(read->phase, cut);
  EXPECT_LE(read->agents.at(0).state.size(), 16U);
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

std::string list_of(const std::string& entry, size_t bytes) {
  std::string list = "[" + entry;
  while (list.size() < bytes) list.append(",").append(entry);
  return list + "]";
}

// An agent is a user's image: 1 MiB of {},{},… would be 30 MB as a document, and 47 MB as failures that are kept.
TEST(RunReport, of_many_tiny_values_is_refused_before_a_document_is_made) {
  for (const char* list : {"nodes", "recentFailures", "metrics", "anything"}) {
    const std::string body = "{\"" + std::string(list) + "\":" + list_of("{}", size_t{1} << 20) + "}";
    const Result<RunReport> read = parse_run_report(body, 10'000);
    ASSERT_FALSE(read.ok()) << list;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(read.error().message.find("values; a summary has at most 100000"), std::string::npos)
        << read.error().message;
  }
  EXPECT_FALSE(parse_run_report("{\"nodes\":" + std::string(9'900, '[') + std::string(9'900, ']') + "}", 2).ok());
}

TEST(RunReport, keeps_ten_failures_and_each_agent_that_the_job_can_have_once) {
  const std::string nodes =
      list_of(R"({"node":0,"state":"member"},{"node":1,"attempt":3},{"node":2},{"node":-1},{})", 20'000);
  const std::string failures = list_of(R"({"node":0,"rank":1})", 20'000);
  const Result<RunReport> read = parse_run_report("{\"nodes\":" + nodes + ",\"recentFailures\":" + failures + "}", 2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->agents.size(), 2U);
  EXPECT_EQ(read->agents[0].state, "member");
  EXPECT_EQ(read->agents[1].attempt, 3);
  EXPECT_EQ(read->failures.size(), 10U);
}

TEST(RunReport, of_ten_thousand_agents_is_read_whole) {
  RunStatus status = full_status();
  status.nodes.clear();
  for (int node = 0; node < 10'000; ++node) {
    status.nodes.push_back(
        {.node = node, .host = std::string(60, 'h'), .attempt = 7, .state = "member", .ready = true});
  }
  const Result<RunReport> read = parse_run_report(dump_line(summary_of(status)), 10'000);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->agents.size(), 10'000U);
}

// Some are added up, others multiplied.
TEST(RunReport, takes_numbers_that_no_agent_writes_for_missing_ones) {
  const Result<RunReport> read = parse_run_report(
      R"({"nnodes":4294967298,"wantedNodes":4294967298,"nodes":[{"node":4294967296,"state":"member"}],)"
      R"("progress":{"step":-5,"totalSteps":9223372036854775807,"epoch":18446744073709551615,"percent":4294967396},)"
      R"("loading":{"prepared":9223372036854775807,"toPrepare":9223372036854775807,"secondsUnchanged":1},)"
      R"("lastCheckpoint":{"step":9223372036854775807},"slowest":{"rank":4294967296},"restarts":9223372036854775807})",
      2);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->num_nodes, 0);
  EXPECT_FALSE(read->wanted_nodes.has_value());
  EXPECT_TRUE(read->agents.empty());
  EXPECT_EQ(read->progress->step, 0);
  EXPECT_EQ(read->progress->total_steps, 0);
  EXPECT_EQ(read->progress->epoch, 0);
  EXPECT_EQ(read->progress->percent, 0);
  EXPECT_EQ(read->loading->to_prepare, 0);
  EXPECT_FALSE(read->checkpoint_step.has_value());
  EXPECT_FALSE(read->slowest.has_value());
  EXPECT_EQ(read->process_restarts, 1'000'000'000);
  EXPECT_FALSE(parse_run_report(R"({"progress":{"loss":1e999}})", 2).ok());
}

TEST(RunReport, refuses_what_is_no_object) {
  for (const char* body : {"", "[]", "7", "{", "not json"}) {
    const Result<RunReport> read = parse_run_report(body, 2);
    ASSERT_FALSE(read.ok()) << body;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace lockstep::train
