#include "runner/contract/coordination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGeneration = (uint64_t{7} << 32U) | 3U;

// Returns decode(encode(m)), and checks that encoding it again gives the same line.
template <typename M>
M to_coordinator(const M& message) {
  const std::string line = encode(NodeMessage(message));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Result<NodeMessage> out = decode_node_message(line);
  EXPECT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(encode(*out), line);
  return std::get<M>(*out);
}

template <typename M>
M to_member(const M& message) {
  const std::string line = encode(CoordinatorMessage(message));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Result<CoordinatorMessage> out = decode_coordinator_message(line);
  EXPECT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(encode(*out), line);
  return std::get<M>(*out);
}

TEST(Coordination, has_the_lines_of_the_contract) {
  EXPECT_EQ(encode(NodeMessage(NodeDone{})), R"({"type":"node_done"})");
  EXPECT_EQ(encode(NodeMessage(Leave{143})), R"({"code":143,"type":"leave"})");
  EXPECT_EQ(encode(CoordinatorMessage(CoordinatorBeat{})), R"({"type":"coordinator_beat"})");
  EXPECT_EQ(encode(CoordinatorMessage(Regroup{.generation = 5, .leaving = true})),
            R"({"generation":5,"leaving":true,"type":"regroup"})");
}

// An unauthenticated peer can send only a greeting, and nothing else is read from it.
TEST(Coordination, keeps_a_greeting_within_its_limit) {
  Greet greet;
  greet.job = std::string(253, 'j');
  greet.token = std::string(64, 't');
  greet.node_rank = std::numeric_limits<int>::max();
  greet.attempt = std::numeric_limits<uint32_t>::max();
  greet.incarnation = std::numeric_limits<uint64_t>::max();
  greet.host = std::string(253, 'h');
  const Greet back = to_coordinator(greet);
  EXPECT_EQ(back.protocol, kCoordinationProtocol);
  EXPECT_EQ(back.job, greet.job);
  EXPECT_EQ(back.token, greet.token);
  EXPECT_EQ(back.node_rank, greet.node_rank);
  EXPECT_EQ(back.attempt, greet.attempt);
  EXPECT_EQ(back.incarnation, greet.incarnation);
  EXPECT_EQ(back.host, greet.host);
  EXPECT_LT(encode(NodeMessage(greet)).size(), kGreetingBytesMax);
}

TEST(Coordination, keeps_what_a_node_says_about_itself) {
  Join join;
  join.nproc = 8;
  join.generation = kGeneration;
  join.ready = true;
  join.leaving_code = 143;
  join.done = true;
  join.broken_before = {.seconds = 1.5,
                        .silent_seconds = 5.0,
                        .committed_seconds = 1.75,
                        .generation = kGeneration,
                        .step = 120,
                        .step_in_flight = false};
  join.terms = R"({"lr":"0.1"})";
  const Join back = to_coordinator(join);
  EXPECT_EQ(back.nproc, 8);
  EXPECT_EQ(back.generation, kGeneration);
  EXPECT_TRUE(back.ready);
  EXPECT_EQ(back.leaving_code, 143);
  EXPECT_TRUE(back.done);
  EXPECT_EQ(back.broken_before.seconds, 1.5);
  EXPECT_EQ(back.broken_before.silent_seconds, 5.0);
  EXPECT_EQ(back.broken_before.committed_seconds, 1.75);
  EXPECT_EQ(back.broken_before.generation, kGeneration);
  EXPECT_EQ(back.broken_before.step, 120);
  EXPECT_FALSE(back.broken_before.step_in_flight);
  EXPECT_EQ(back.terms, R"({"lr":"0.1"})");
  EXPECT_LT(to_coordinator(Join{}).broken_before.seconds, 0.0);

  NodeReady ready;
  ready.ready = true;
  ready.generation = kGeneration;
  ready.terms = "{}";
  EXPECT_TRUE(to_coordinator(ready).ready);
  EXPECT_EQ(to_coordinator(ready).terms, "{}");
  EXPECT_EQ(to_coordinator(ready).generation, kGeneration);
  EXPECT_FALSE(to_coordinator(NodeReady{}).ready);

  EXPECT_EQ(to_coordinator(Leave{130}).code, 130);
  to_coordinator(NodeDone{});
  EXPECT_EQ(to_coordinator(CheckpointNews{77}).step, 77);

  const RestartDecision decision = to_coordinator(RestartDecision{.level = "pod",
                                                                  .reason = "SignalKILL",
                                                                  .line = "node 1 is started again",
                                                                  .gives_up = true,
                                                                  .is_exported = true});
  EXPECT_EQ(decision.level, "pod");
  EXPECT_EQ(decision.reason, "SignalKILL");
  EXPECT_EQ(decision.line, "node 1 is started again");
  EXPECT_TRUE(decision.gives_up);
  EXPECT_TRUE(decision.is_exported);
  EXPECT_FALSE(to_coordinator(RestartDecision{}).gives_up);

  const NodeFailed failed = to_coordinator(NodeFailed{.code = 3, .message = "no data", .ends_job = true});
  EXPECT_EQ(failed.code, 3);
  EXPECT_EQ(failed.message, "no data");
  EXPECT_TRUE(failed.ends_job);
}

TEST(Coordination, keeps_why_a_group_broke) {
  Broken broken;
  broken.generation = kGeneration;
  broken.rank = 5;
  broken.cause = "SignalKILL";
  broken.message = "rank 5 ended with signal 9 (SIGKILL)";
  broken.detection_seconds = 0.25;
  broken.exit_code = 137;
  const Broken back = to_coordinator(broken);
  EXPECT_EQ(back.generation, kGeneration);
  EXPECT_EQ(back.rank, 5);
  EXPECT_EQ(back.cause, "SignalKILL");
  EXPECT_EQ(back.message, broken.message);
  EXPECT_EQ(back.detection_seconds, 0.25);
  EXPECT_EQ(back.exit_code, 137);
  EXPECT_EQ(to_coordinator(Broken{}).rank, -1);
}

TEST(Coordination, keeps_the_beats_of_all_workers) {
  Heartbeat beat;
  for (size_t i = 0; i < std::max(kActivityCount, kPhaseCount); ++i) {
    WorkerBeat worker;
    worker.local_rank = static_cast<int>(i);
    worker.step = 100 + static_cast<int64_t>(i);
    worker.activity = static_cast<Activity>(i % kActivityCount);
    worker.phase = static_cast<Phase>(i % kPhaseCount);
    worker.seconds_unchanged = 0.5;
    worker.busy_seconds = 1.5;
    worker.generation = kGeneration;
    beat.workers.push_back(worker);
  }
  EXPECT_EQ(to_coordinator(beat).workers, beat.workers);
  EXPECT_TRUE(to_coordinator(Heartbeat{}).workers.empty());
}

TEST(Coordination, says_activities_and_phases_in_words) {
  WorkerBeat worker;
  worker.activity = Activity::kTraining;
  worker.phase = Phase::kGradSync;
  const std::string line = encode(NodeMessage(Heartbeat{{worker}}));
  EXPECT_THAT(line, HasSubstr(R"("activity":"training")"));
  EXPECT_THAT(line, HasSubstr(R"("phase":"grad_sync")"));
}

TEST(Coordination, keeps_the_bytes_of_store_calls_and_answers) {
  StoreCall call;
  call.local_rank = 3;
  call.request.id = std::numeric_limits<uint64_t>::max();
  call.request.generation = kGeneration;
  call.request.op = StoreOp::kSet;
  call.request.keys = {"k"};
  call.request.values = {std::string("\0\xff\n", 3)};
  const StoreCall back = to_coordinator(call);
  EXPECT_EQ(back.local_rank, 3);
  EXPECT_EQ(back.request.id, call.request.id);
  EXPECT_EQ(back.request.generation, kGeneration);
  EXPECT_EQ(back.request.op, StoreOp::kSet);
  EXPECT_EQ(back.request.values, call.request.values);

  StoreAnswerTo answer;
  answer.local_rank = 3;
  answer.reply.id = 9;
  answer.reply.status = StoreStatus::kStale;
  answer.reply.values = {"\xfe"};
  answer.reply.number = -4;
  answer.reply.message = "old";
  const StoreAnswerTo answered = to_member(answer);
  EXPECT_EQ(answered.local_rank, 3);
  EXPECT_EQ(answered.reply.id, 9U);
  EXPECT_EQ(answered.reply.status, StoreStatus::kStale);
  EXPECT_EQ(answered.reply.values, answer.reply.values);
  EXPECT_EQ(answered.reply.number, -4);
  EXPECT_EQ(answered.reply.message, "old");
}

TEST(Coordination, keeps_an_assignment) {
  Assignment placement;
  placement.generation = kGeneration;
  placement.rank = 4;
  placement.world_size = 6;
  placement.nnodes = 3;
  const Assignment back = to_member(placement);
  EXPECT_EQ(back.generation, kGeneration);
  EXPECT_EQ(back.rank, 4);
  EXPECT_EQ(back.world_size, 6);
  EXPECT_EQ(back.nnodes, 3);
}

TEST(Coordination, keeps_what_a_coordinator_orders) {
  EXPECT_EQ(to_member(Welcome{kGeneration}).generation, kGeneration);

  EXPECT_EQ(to_member(NodeNumber{3}).node_rank, 3);

  const Refused refused = to_member(Refused{.message = "wrong token", .retry = true});
  EXPECT_EQ(refused.message, "wrong token");
  EXPECT_TRUE(refused.retry);

  const CutGroup cut = to_member(CutGroup{.generation = kGeneration, .cause = "NodeLost", .message = "node 1"});
  EXPECT_EQ(cut.generation, kGeneration);
  EXPECT_EQ(cut.cause, "NodeLost");
  EXPECT_EQ(cut.message, "node 1");

  const Regroup regroup = to_member(Regroup{.generation = kGeneration, .leaving = true});
  EXPECT_EQ(regroup.generation, kGeneration);
  EXPECT_TRUE(regroup.leaving);

  EXPECT_EQ(to_member(StopJob{130}).code, 130);
  EXPECT_EQ(to_member(KillWorker{.local_rank = 2, .message = "hangs"}).local_rank, 2);
  EXPECT_EQ(to_member(KillWorker{.local_rank = 2, .message = "hangs"}).message, "hangs");
  EXPECT_EQ(to_member(EndJob{.code = 5, .message = "NaN"}).code, 5);
  EXPECT_EQ(to_member(EndJob{.code = 5, .message = "NaN"}).message, "NaN");
  EXPECT_EQ(to_member(CheckpointNews{77}).step, 77);
  to_member(CoordinatorBeat{});
}

TEST(Coordination, keeps_numbers_that_are_not_finite) {
  WorkerBeat worker;
  worker.busy_seconds = std::numeric_limits<double>::quiet_NaN();
  worker.seconds_unchanged = std::numeric_limits<double>::infinity();
  const Heartbeat back = to_coordinator(Heartbeat{{worker}});
  EXPECT_TRUE(std::isnan(back.workers.at(0).busy_seconds));
  EXPECT_TRUE(std::isinf(back.workers.at(0).seconds_unchanged));
}

TEST(Coordination, replaces_invalid_utf8_in_text) {
  EXPECT_EQ(to_member(EndJob{.code = 1, .message = "a\xff"}).message, "a\xef\xbf\xbd");
}

struct BadLine {
  std::string line;
  std::string says;
};

template <typename Message>
void expect_refused(const Result<Message>& message, const BadLine& bad) {
  ASSERT_FALSE(message.ok()) << bad.line;
  EXPECT_EQ(message.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(message.error().message, HasSubstr(bad.says)) << bad.line;
}

TEST(Coordination, names_what_is_wrong_with_a_members_line) {
  const std::vector<BadLine> cases{
      {"", "not valid JSON"},
      {R"({"type":"leave","code":1)", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{}", "\"type\""},
      {R"({"type":null})", "\"type\""},
      {R"({"type":"nonsense"})", "unknown type \"nonsense\""},
      {R"({"type":"welcome","generation":1})", "unknown type \"welcome\""},
      {R"({"type":"hello","local_rank":0,"pid":1})", "unknown type \"hello\""},
      {R"({"type":"leave"})", "message \"leave\": field \"code\" is missing"},
      {R"({"type":"node_ready","ready":1,"generation":0})", "\"ready\" must be true or false"},
      {R"({"type":"join","nproc":1.5})", "\"nproc\" must be an integer"},
      {R"({"type":"greet","protocol":1,"job":"","token":"","node_rank":0,"attempt":4294967296})",
       "\"attempt\" must be an integer from 0 to 4294967295"},
      {R"({"type":"heartbeat","workers":{}})", "\"workers\" must be an array"},
      {R"({"type":"heartbeat","workers":[1]})", "\"workers[0]\" must be an object"},
      {R"({"type":"heartbeat","workers":[{"local_rank":0,"step":0,"activity":"sleeping"}]})",
       "in \"workers[0]\": field \"activity\" must be one of loading, awaiting"},
      {R"({"type":"store_call","local_rank":0,"request":{"id":1}})", "in \"request\": field \"generation\" is missing"},
      {R"({"type":"checkpoint_news","step":"7"})", "\"step\" must be an integer"},
  };
  for (const BadLine& c : cases) expect_refused(decode_node_message(c.line), c);
}

TEST(Coordination, names_what_is_wrong_with_a_coordinators_line) {
  const std::vector<BadLine> cases{
      {"nonsense", "not valid JSON"},
      {R"({"type":"join"})", "unknown type \"join\""},
      {R"({"type":"welcome","generation":-1})", "\"generation\" must be an integer from 0"},
      {R"({"type":"regroup","generation":1,"leaving":"yes"})", "\"leaving\" must be true or false"},
      {R"({"type":"end_job","code":0})", "message \"end_job\": field \"message\" is missing"},
      {R"({"type":"assignment","generation":1,"rank":99999999999})", "\"rank\" must be an integer from"},
      {R"({"type":"store_answer_to","local_rank":0,"reply":{"id":1,"status":"maybe"}})",
       "in \"reply\": field \"status\" must be one of ok, timeout"},
  };
  for (const BadLine& c : cases) expect_refused(decode_coordinator_message(c.line), c);
}

TEST(Coordination, ignores_fields_of_a_newer_peer) {
  EXPECT_TRUE(decode_node_message(R"({"type":"leave","code":143,"colour":"blue"})").ok());
  EXPECT_TRUE(decode_coordinator_message(R"({"type":"coordinator_beat","colour":"blue"})").ok());
}

TEST(Coordination, an_answer_is_the_same_line_whether_its_values_were_encoded_before_or_not) {
  StoreReply reply{.id = 5, .status = StoreStatus::kOk, .values = {"a\n", "", "\"values\":[]"}, .number = 3};
  reply.message = "of \"values\":[]";
  const std::string whole = encode(CoordinatorMessage(StoreAnswerTo{.local_rank = 2, .reply = reply}));
  EXPECT_EQ(encode_answer(2, reply, encode_values(reply.values)), whole);
}

TEST(Coordination, long_texts_are_cut_and_long_lists_refused_where_they_are_read) {
  const NodeFailed failed{.code = 1, .message = std::string(kMessageTextBytesMax + 100, 'x'), .ends_job = false};
  const auto read = decode_node_message(encode(NodeMessage(failed)));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::get<NodeFailed>(*read).message, std::string(kMessageTextBytesMax, 'x') + "…");
  const Heartbeat beats{.workers = std::vector<WorkerBeat>(kMessageListMax + 1)};
  const auto refused = decode_node_message(encode(NodeMessage(beats)));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("\"workers\" must be an array of at most 65536"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace lockstep
