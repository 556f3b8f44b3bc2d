#include "runner/contract/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using testing::HasSubstr;

// Returns decode(encode(m)), and checks that encoding it again gives the same line.
template <typename M>
M round_trip(const M& message) {
  const WorkerMessage in = message;
  const std::string line = encode(in);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Result<WorkerMessage> out = decode_worker_message(line);
  EXPECT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(encode(*out), line);
  return std::get<M>(*out);
}

template <typename M>
M round_trip_to_worker(const M& message) {
  const Result<AgentMessage> out = decode_agent_message(encode(AgentMessage(message)));
  EXPECT_TRUE(out.ok()) << out.error().message;
  return std::get<M>(*out);
}

TEST(Messages, have_the_lines_of_the_contract) {
  EXPECT_EQ(
      encode(WorkerMessage(Hello{.local_rank = 1, .pid = 77, .terms = "{}"})),
      R"({"kind":"lockstep-worker","local_rank":1,"package":"","pid":77,"protocol":1,"terms":"{}","type":"hello"})");
  EXPECT_EQ(encode(WorkerMessage(Done{})), R"({"type":"done"})");
  EXPECT_EQ(encode(AgentMessage(Cut{.generation = 5, .cause = "NodeLost"})),
            R"({"cause":"NodeLost","generation":5,"type":"cut"})");
  EXPECT_EQ(encode(AgentMessage(LeaveTogether{.generation = 5, .leaving_code = 143})),
            R"({"generation":5,"leaving_code":143,"type":"leave_together"})");
}

TEST(Messages, of_an_older_worker_have_the_defaults_of_what_it_does_not_say) {
  const auto hello = decode_worker_message(R"({"local_rank":1,"pid":77,"terms":"{}","type":"hello","newer":[1]})");
  ASSERT_TRUE(hello.ok()) << hello.error().message;
  EXPECT_EQ(std::get<Hello>(*hello).protocol, 1);
  EXPECT_EQ(std::get<Hello>(*hello).kind, kWorkerKind);
  const auto wrong = decode_worker_message(R"({"local_rank":1,"pid":77,"terms":"{}","type":"hello","protocol":"x"})");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr(R"(field "protocol" must be an integer)"));
}

TEST(Messages, of_an_older_agent_have_the_defaults_of_what_it_does_not_say) {
  const auto said = decode_agent_message(
      R"({"generation":4,"local_rank":0,"local_world_size":1,"nnodes":1,"rank":0,"type":"assignment","world_size":2})");
  ASSERT_TRUE(said.ok()) << said.error().message;
  const auto& assignment = std::get<Assignment>(*said);
  EXPECT_EQ(assignment.declared_world_size, 0);
  EXPECT_EQ(assignment.node_cores, 0);
  EXPECT_EQ(assignment.address, "");
}

TEST(Messages, of_another_protocol_are_refused_with_both_numbers) {
  Hello hello;
  EXPECT_EQ(refusal_of(hello), "");
  hello.protocol = 7;
  EXPECT_EQ(refusal_of(hello),
            "it, a lockstep-worker, speaks protocol 7, and this agent protocol 1: install the one that has the agent's "
            "version");
  hello.kind = kPythonKind;
  hello.package = "0.9.0";
  EXPECT_THAT(refusal_of(hello), HasSubstr("its package lockstep 0.9.0 speaks protocol 7, and this agent protocol 1"));
}

TEST(Messages, of_a_program_that_outlives_its_group_come_back) {
  EXPECT_TRUE(std::get<Outlives>(*decode_worker_message(encode(WorkerMessage(Outlives{true})))).leaves_together);
  EXPECT_FALSE(std::get<Outlives>(*decode_worker_message(R"({"type":"outlives"})")).leaves_together);
  EXPECT_EQ(round_trip(Replace{.generation = 3, .message = "a step behind"}).message, "a step behind");
}

TEST(Messages, keep_the_bytes_of_store_requests) {
  StoreRequest request;
  request.id = std::numeric_limits<uint64_t>::max();
  request.generation = (uint64_t{7} << 32U) | 1U;
  request.op = StoreOp::kCompareSet;
  request.keys = {"k"};
  request.values = {std::string("\0\xff\n", 3), ""};
  request.amount = -5;
  request.timeout = std::chrono::milliseconds(1500);
  const StoreRequest back = round_trip(request);
  EXPECT_EQ(back.id, request.id);
  EXPECT_EQ(back.generation, request.generation);
  EXPECT_EQ(back.op, request.op);
  EXPECT_EQ(back.values, request.values);
  EXPECT_EQ(back.amount, -5);
  EXPECT_EQ(back.timeout, request.timeout);
}

TEST(Messages, know_every_store_operation) {
  for (int op = 0; op <= static_cast<int>(StoreOp::kAppend); ++op) {
    StoreRequest request;
    request.op = static_cast<StoreOp>(op);
    EXPECT_EQ(round_trip(request).op, request.op);
  }
}

TEST(Messages, keep_numbers_that_are_not_finite) {
  Progress progress;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  progress.lr = std::numeric_limits<double>::infinity();
  progress.grad_norm = -std::numeric_limits<double>::infinity();
  progress.samples_per_second = 0.1;
  const Progress back = round_trip(progress);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.lr, progress.lr);
  EXPECT_EQ(back.grad_norm, progress.grad_norm);
  EXPECT_EQ(back.samples_per_second, 0.1);
}

TEST(Messages, keep_metric_families) {
  MetricSample sample;
  sample.labels = {{"rank", "0"}, {"phase", "forward"}};
  sample.count = 3;
  sample.sum = 0.25;
  sample.buckets = {{0.1, 1}, {std::numeric_limits<double>::infinity(), 3}};
  const Metrics back = round_trip(Metrics{{MetricFamily{"n", "h", MetricType::kHistogram, {sample}}}});
  ASSERT_EQ(back.families.size(), 1U);
  EXPECT_EQ(back.families[0].type, MetricType::kHistogram);
  EXPECT_EQ(back.families[0].metrics[0].labels, sample.labels);
  EXPECT_EQ(back.families[0].metrics[0].buckets[1].cumulative_count, 3U);
  EXPECT_TRUE(std::isinf(back.families[0].metrics[0].buckets[1].upper_bound));
}

TEST(Messages, keep_why_a_worker_left_its_group) {
  const Left back = round_trip(Left{.generation = 4, .cause = "PeerLost", .message = "rank 1 is gone", .step = 12});
  EXPECT_EQ(back.generation, 4U);
  EXPECT_EQ(back.cause, "PeerLost");
  EXPECT_EQ(back.message, "rank 1 is gone");
  EXPECT_EQ(back.step, 12);
  EXPECT_FALSE(back.claim);
}

TEST(Messages, keep_what_a_rank_holds_when_it_has_left) {
  const Left left{.generation = 4,
                  .cause = "Cut",
                  .message = "",
                  .step = 12,
                  .claim = StateClaim{.lineage = 3,
                                      .step = 12,
                                      .evaluated_step = 8,
                                      .has_state = true,
                                      .generation = 4,
                                      .at_commit = 24,
                                      .complete = 25,
                                      .kept_from = 23,
                                      .is_whole = false,
                                      .can_take = false}};
  const Left back = round_trip(left);
  ASSERT_TRUE(back.claim);
  EXPECT_EQ(back.claim->lineage, 3U);
  EXPECT_EQ(back.claim->step, 12);
  EXPECT_EQ(back.claim->evaluated_step, 8);
  EXPECT_TRUE(back.claim->has_state);
  EXPECT_EQ(back.claim->generation, 4U);
  EXPECT_EQ(back.claim->at_commit, 24U);
  EXPECT_EQ(back.claim->complete, 25U);
  EXPECT_EQ(back.claim->kept_from, 23U);
  EXPECT_FALSE(back.claim->is_whole);
  EXPECT_FALSE(back.claim->can_take);
}

TEST(Messages, name_the_field_of_a_claim_that_is_wrong) {
  const std::string line =
      R"({"type":"left","generation":4,"cause":"Cut","message":"","step":1,"claim":{"has_state":true,"lineage":1,)";
  const Result<WorkerMessage> negative = decode_worker_message(line + R"("step":1,"complete":-1}})");
  ASSERT_FALSE(negative.ok());
  EXPECT_NE(negative.error().message.find(R"(in "claim": field "complete" must be an integer from 0)"),
            std::string::npos)
      << negative.error().message;
  EXPECT_FALSE(decode_worker_message(line + R"("at_commit":1}})").ok()) << "without a step";
  EXPECT_TRUE(decode_worker_message(line + R"("step":1}})").ok());
}

TEST(Messages, keep_when_a_group_went_on) {
  Resumed resumed;
  resumed.generation = (uint64_t{3} << 32U) | 2U;
  resumed.step = 121;
  resumed.formed_ns = 2;
  resumed.synced_ns = 3;
  resumed.committed_ns = std::numeric_limits<int64_t>::max();
  resumed.resumed_step = 120;
  resumed.origin = "rank 0";
  resumed.redone_steps = 0;
  const Resumed back = round_trip(resumed);
  EXPECT_EQ(back.generation, resumed.generation);
  EXPECT_EQ(back.step, 121);
  EXPECT_EQ(back.formed_ns, 2);
  EXPECT_EQ(back.synced_ns, 3);
  EXPECT_EQ(back.committed_ns, resumed.committed_ns);
  EXPECT_EQ(back.resumed_step, 120);
  EXPECT_EQ(back.redone_steps, 0);
  EXPECT_EQ(back.origin, "rank 0");
}

TEST(Messages, keep_an_assignment) {
  const Assignment back = round_trip_to_worker(Assignment{.generation = 4,
                                                          .rank = 3,
                                                          .local_rank = 1,
                                                          .world_size = 6,
                                                          .local_world_size = 2,
                                                          .nnodes = 3,
                                                          .declared_world_size = 8,
                                                          .node_cores = 12,
                                                          .address = "10.0.0.2"});
  EXPECT_EQ(back.generation, 4U);
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.local_rank, 1);
  EXPECT_EQ(back.world_size, 6);
  EXPECT_EQ(back.local_world_size, 2);
  EXPECT_EQ(back.nnodes, 3);
  EXPECT_EQ(back.declared_world_size, 8);
  EXPECT_EQ(back.node_cores, 12);
  EXPECT_EQ(back.address, "10.0.0.2");
  EXPECT_TRUE(back.plans.empty());
}

TEST(Messages, keep_the_plan_of_each_rank_and_give_it_to_that_rank_alone) {
  Assignment first;
  first.plans = {{.source = 2, .state = {.rank = 1, .size = 2}, .first_result = 10, .complete = 12, .is_lost = true},
                 {.source = 2, .results = {.rank = 0, .size = 3}, .behind = 4}};
  const Assignment back = round_trip_to_worker(first);
  ASSERT_EQ(back.plans.size(), 2U);
  const Assignment of_rank_0 = assignment_of(0, back);
  ASSERT_EQ(of_rank_0.plans.size(), 1U);
  EXPECT_EQ(of_rank_0.plans[0].source, 2);
  EXPECT_EQ(of_rank_0.plans[0].state.rank, 1);
  EXPECT_EQ(of_rank_0.plans[0].state.size, 2);
  EXPECT_EQ(of_rank_0.plans[0].results.rank, -1);
  EXPECT_EQ(of_rank_0.plans[0].first_result, 10U);
  EXPECT_EQ(of_rank_0.plans[0].complete, 12U);
  EXPECT_EQ(of_rank_0.plans[0].behind, -1);
  EXPECT_TRUE(of_rank_0.plans[0].is_lost);
  EXPECT_EQ(assignment_of(1, back).plans.at(0).behind, 4);
  EXPECT_TRUE(assignment_of(2, back).plans.empty());
  EXPECT_EQ(encode(AgentMessage(Assignment{})).find("plans"), std::string::npos) << "nothing to do is not said";
}

TEST(Messages, keep_all_others) {
  EXPECT_EQ(round_trip(Evaluation{.epoch = 2, .metrics = {{"ndcg@10", 0.5}}}).metrics.at("ndcg@10"), 0.5);
  EXPECT_EQ(round_trip(CheckpointWritten{.step = 9, .path = "/p"}).path, "/p");
  EXPECT_EQ(round_trip(Failing{.code = 3, .message = "m", .rank = 1, .step = 2, .generation = 4}).message, "m");
  round_trip(Done{});
  EXPECT_EQ(round_trip_to_worker(Cut{.generation = 4, .cause = "NodeLost"}).cause, "NodeLost");
  EXPECT_EQ(round_trip_to_worker(LeaveTogether{.generation = 4, .leaving_code = 130}).leaving_code, 130);
  StoreReply reply;
  reply.status = StoreStatus::kTimeout;
  reply.values = {"\xff"};
  EXPECT_EQ(round_trip_to_worker(reply).values, reply.values);
  EXPECT_EQ(round_trip_to_worker(reply).status, StoreStatus::kTimeout);
}

TEST(Messages, replace_invalid_utf8_in_text) {
  EXPECT_EQ(round_trip(Failing{.code = 1, .message = "a\xff", .rank = 0, .step = 0, .generation = 0}).message,
            "a\xef\xbf\xbd");
}

struct BadLine {
  std::string line;
  std::string says;
};

TEST(Messages, name_what_is_wrong) {
  const std::vector<BadLine> cases{
      {"", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{}", "\"type\""},
      {R"({"type":3})", "\"type\""},
      {R"({"type":"nonsense"})", "unknown type \"nonsense\""},
      {R"({"type":"assignment"})", "unknown type"},
      {R"({"type":"hello","pid":1})", "message \"hello\": field \"local_rank\" is missing"},
      {R"({"type":"hello","local_rank":"1","pid":1})", "\"local_rank\" must be an integer"},
      {R"({"type":"hello","local_rank":99999999999,"pid":1})", "\"local_rank\" must be an integer from"},
      {R"({"type":"left","generation":-1,"cause":"","message":"","step":0})",
       "\"generation\" must be an integer from 0"},
      {R"({"type":"left","generation":1,"cause":7,"message":"","step":0})", "\"cause\" must be a string"},
      {R"({"type":"beat","step":1,"phase":"training"})", "unknown type \"beat\""},
      {R"({"type":"evaluation","epoch":1,"metrics":{"a":"x"}})", "\"metrics.a\" must be a number"},
      {R"({"type":"metrics","families":[{"name":"n"}]})", "in \"families[0]\": field \"help\" is missing"},
      {R"({"type":"store","id":1,"generation":1,"op":"steal","keys":[],"values":[],"amount":0,"timeout_ms":0})",
       "\"op\" must be one of set, get"},
      {R"({"type":"store","id":1,"generation":1,"op":"set","keys":["k"],"values":["0g"],"amount":0,"timeout_ms":0})",
       "\"values\" must be bytes in lower-case hex"},
      {R"({"type":"store","id":1,"generation":1,"op":"get","keys":["k"],"values":[],"amount":0,"timeout_ms":-1})",
       "\"timeout_ms\" must be at least 0"},
  };
  for (const BadLine& c : cases) {
    const Result<WorkerMessage> message = decode_worker_message(c.line);
    ASSERT_FALSE(message.ok()) << c.line;
    EXPECT_EQ(message.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(message.error().message, HasSubstr(c.says));
  }
}

TEST(Messages, name_what_is_wrong_with_the_agents_too) {
  const std::vector<BadLine> cases{
      {R"({"type":"hello","local_rank":0,"pid":1})", "unknown type \"hello\""},
      {R"({"type":"cut","generation":1})", "message \"cut\": field \"cause\" is missing"},
      {R"({"type":"leave_together","generation":1,"leaving_code":true})", "\"leaving_code\" must be an integer"},
  };
  for (const BadLine& c : cases) {
    const Result<AgentMessage> message = decode_agent_message(c.line);
    ASSERT_FALSE(message.ok()) << c.line;
    EXPECT_EQ(message.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(message.error().message, HasSubstr(c.says));
  }
}

TEST(Messages, ignore_fields_of_a_newer_peer) {
  EXPECT_TRUE(decode_worker_message(R"({"type":"hello","local_rank":0,"pid":1,"terms":"","colour":"blue"})").ok());
}

}  // namespace
}  // namespace lockstep
