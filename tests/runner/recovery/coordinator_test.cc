#include "runner/recovery/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Outputs = std::vector<CoordinatorOutput>;

constexpr uint32_t kAttempt = 3;
constexpr int kTicksMax = 2'000;
constexpr uint64_t generation(uint32_t counter, uint32_t attempt = kAttempt) {
  return (uint64_t{attempt} << 32U) | counter;
}

CoordinatorOptions options_of(int min_nodes, int max_nodes) {
  CoordinatorOptions options;
  options.job = "sasrec";
  options.token = "secret";
  options.attempt = kAttempt;
  options.min_nodes = min_nodes;
  options.max_nodes = max_nodes;
  options.wanted_nodes = max_nodes;
  return options;
}

// A coordinator with a clock that the test moves. Node r's first connection is 100 + r.
class Job {
 public:
  explicit Job(const CoordinatorOptions& options) : state(options) { step(state, CoordinatorTick{}, now); }
  explicit Job(int nodes) : Job(options_of(nodes, nodes)) {}
  Job(int min_nodes, int max_nodes) : Job(options_of(min_nodes, max_nodes)) {}

  Outputs handle(const CoordinatorEvent& event) { return step(state, event, now); }
  Outputs send_on(ConnectionId connection, const NodeMessage& message) { return handle(NodeSent{connection, message}); }
  Outputs send(int node, const NodeMessage& message) { return send_on(connections.at(node), message); }
  Outputs drop(int node) { return handle(ConnectionEnded{connections.at(node), "reset"}); }

  // Ticks every kBeatInterval, as the agent would; all connected nodes but `silent` are heard.
  Outputs pass(std::chrono::milliseconds time, int silent = -1) {
    Outputs all;
    const TimePoint until = now + time;
    for (int ticks = 0; now < until; ++ticks) {
      if (ticks > kTicksMax) {
        ADD_FAILURE() << "it wants one Tick after the other: its agent would spin";
        break;
      }
      now = std::min(until, std::max(now, state.deadline.value_or(until)));
      for (const auto& [rank, node] : std::map<int, Node>(state.nodes)) {
        if (rank != silent && node.connection != 0) append(all, send_on(node.connection, Heartbeat{node.workers}));
      }
      append(all, handle(CoordinatorTick{}));
    }
    return all;
  }

  static Greet greet_of(int node, uint32_t attempt = 1, uint64_t incarnation = 7) {
    return Greet{kCoordinationProtocol, "sasrec", "secret", node, attempt, incarnation, "host" + std::to_string(node)};
  }
  Outputs join(int node, const Join& join, uint32_t attempt = 1, uint64_t incarnation = 7) {
    const ConnectionId connection = next_connection++;
    connections[node] = connection;
    send_on(connection, greet_of(node, attempt, incarnation));
    return send_on(connection, join);
  }
  Outputs join(int node, bool ready = false) { return join(node, Join{1, 0, ready}); }
  Outputs ready(int node) { return send(node, NodeReady{true, state.generation()}); }
  // Nodes 0 … nodes-1 join, ready; the last output is the placement.
  Outputs place(int nodes) {
    Outputs last;
    for (int node = 0; node < nodes; ++node) last = join(node, true);
    return last;
  }
  Outputs all_ready(int nodes) {
    Outputs last;
    for (int node = 0; node < nodes; ++node) last = ready(node);
    return last;
  }

  static void append(Outputs& all, Outputs more) {
    for (CoordinatorOutput& output : more) all.push_back(std::move(output));
  }

  CoordinatorState state;
  TimePoint now{1000s};
  std::map<int, ConnectionId> connections;
  ConnectionId next_connection = 100;
};

// The messages of one kind, with the connection they go to.
template <typename T>
std::vector<std::pair<ConnectionId, T>> sent(const Outputs& outputs) {
  std::vector<std::pair<ConnectionId, T>> found;
  for (const CoordinatorOutput& output : outputs) {
    const auto* send = std::get_if<Send>(&output);
    if (send == nullptr) continue;
    if (const T* message = std::get_if<T>(&send->message)) found.emplace_back(send->connection, *message);
  }
  return found;
}
template <typename T>
size_t count(const Outputs& outputs) {
  return sent<T>(outputs).size();
}
template <typename T>
std::vector<T> news(const Outputs& outputs) {
  std::vector<T> found;
  for (const CoordinatorOutput& output : outputs) {
    const auto* any = std::get_if<GroupNews>(&output);
    if (const T* one = any == nullptr ? nullptr : std::get_if<T>(any)) found.push_back(*one);
  }
  return found;
}
bool closes(const Outputs& outputs, ConnectionId connection) {
  for (const CoordinatorOutput& output : outputs) {
    const auto* close = std::get_if<Close>(&output);
    if (close != nullptr && close->connection == connection) return true;
  }
  return false;
}
std::string notes(const Outputs& outputs) {
  std::string text;
  for (const CoordinatorOutput& output : outputs) {
    if (const auto* note = std::get_if<Note>(&output)) text += note->text + "\n";
  }
  return text;
}
// The refusal that `connection` gets, which is closed at the same time.
Refused refusal(const Outputs& outputs, ConnectionId connection) {
  for (const auto& [to, refused] : sent<Refused>(outputs)) {
    if (to != connection) continue;
    EXPECT_TRUE(closes(outputs, connection));
    return refused;
  }
  ADD_FAILURE() << "nobody was refused";
  return {};
}

Refused refusal_of(const Job& job, int node, const Outputs& outputs) {
  return refusal(outputs, job.connections.at(node));
}

// ---- what ranks hold ----

StateClaim holds(int64_t step) {
  return {.lineage = 1, .step = step, .has_state = true, .complete = 7, .kept_from = 5, .can_take = false};
}
std::vector<int> ranks_in(const std::vector<Plan>& plans, Handover Plan::*transfer) {
  std::vector<int> ranks;
  for (const Plan& plan : plans) ranks.push_back((plan.*transfer).rank);
  return ranks;
}

TEST(Coordinator, tells_each_rank_what_to_do_from_what_all_hold) {
  Job job(2);
  job.join(0, Join{.nproc = 2, .ready = true});
  EXPECT_TRUE(sent<Assignment>(job.join(1, Join{.nproc = 2, .ready = true})).front().second.plans.empty())
      << "nobody holds anything";
  job.send(1, Broken{.generation = job.state.placed, .rank = 2, .cause = "SignalKILL"});
  job.send(0, NodeReady{true, job.state.placed, "", {holds(3), holds(3)}});
  // Rank 2 was started again.
  const auto placed = sent<Assignment>(job.send(1, NodeReady{true, job.state.placed, "", {{}, holds(3)}}));
  ASSERT_EQ(placed.size(), 2U);
  EXPECT_THAT(ranks_in(placed[0].second.plans, &Plan::state), ElementsAre(0, -1));
  EXPECT_THAT(ranks_in(placed[1].second.plans, &Plan::state), ElementsAre(1, -1));
  EXPECT_THAT(ranks_in(placed[1].second.plans, &Plan::results), ElementsAre(1, -1));
  EXPECT_EQ(placed[1].second.plans[1].source, 0);
}

TEST(Coordinator, learns_what_ranks_hold_when_it_is_a_new_one) {
  Job job(2);
  job.join(0, Join{.nproc = 1, .ready = true});
  const auto placed = sent<Assignment>(job.join(1, Join{.nproc = 1, .ready = true, .terms = "", .claims = {holds(3)}}));
  ASSERT_EQ(placed.size(), 2U);
  EXPECT_THAT(ranks_in(placed[0].second.plans, &Plan::state), ElementsAre(1));
  EXPECT_THAT(ranks_in(placed[1].second.plans, &Plan::state), ElementsAre(0));
}

TEST(Coordinator, forgets_what_ranks_held_before_they_were_started_again) {
  Job job(1);
  job.join(0, Join{.nproc = 1, .ready = true, .terms = "", .claims = {holds(3)}});
  const auto placed = sent<Assignment>(job.send(0, NodeReady{true, job.state.placed}));
  ASSERT_EQ(placed.size(), 1U);
  EXPECT_TRUE(placed[0].second.plans.empty());
}

// Nodes 0 and 1 went on without node 2, whose connection was cut, and are to let it in again.
Outputs let_in_again(Job& job, const StateClaim& claim_of_2) {
  job.place(3);
  job.drop(2);
  for (const int node : {0, 1}) job.send(node, NodeReady{true, job.state.placed, "", {holds(5)}});
  EXPECT_EQ(count<Assignment>(job.pass(job.state.options.rejoin_timeout)), 2U);
  job.join(2, Join{.nproc = 1, .ready = true, .terms = "", .claims = {claim_of_2}});
  job.send(0, NodeReady{true, job.state.placed, "", {holds(6)}});
  return job.send(1, NodeReady{true, job.state.placed, "", {holds(6)}});
}

TEST(Coordinator, takes_the_state_of_the_newest_group_and_not_of_a_node_that_went_on_alone) {
  for (const int64_t step : {5, 6, 9}) {
    Job job(2, 3);
    const auto placed = sent<Assignment>(let_in_again(job, holds(step)));
    ASSERT_EQ(placed.size(), 3U);
    EXPECT_EQ(placed[0].second.plans.at(0).source, 0);
    EXPECT_EQ(placed[2].second.plans.at(0).behind, 2) << "it may hold results that the others have made again";
  }
}

TEST(Coordinator, lets_a_node_in_as_it_is_that_has_missed_no_group) {
  Job job(2);
  job.place(2);
  job.drop(1);
  job.send(0, NodeReady{true, job.state.placed, "", {holds(5)}});
  const auto placed = sent<Assignment>(job.join(1, Join{.nproc = 1, .ready = true, .terms = "", .claims = {holds(5)}}));
  ASSERT_EQ(placed.size(), 2U);
  EXPECT_EQ(placed[1].second.plans.at(0).behind, -1);
}

// A node says what it likes. Its ranks are those that it has joined with.
TEST(Coordinator, takes_as_many_claims_as_a_node_has_ranks) {
  Job job(2);
  job.join(0, Join{.nproc = 2, .ready = true, .terms = "", .claims = {holds(3)}});
  const auto placed = sent<Assignment>(job.join(
      1, Join{.nproc = 2, .ready = true, .terms = "", .claims = {{}, holds(3), holds(9), holds(9), holds(9)}}));
  ASSERT_EQ(placed.size(), 2U);
  EXPECT_THAT(ranks_in(placed[0].second.plans, &Plan::state), ElementsAre(0, 1));
  EXPECT_THAT(ranks_in(placed[1].second.plans, &Plan::state), ElementsAre(2, -1));
}

TEST(Coordinator, reads_the_join_of_the_largest_node_with_what_its_ranks_hold) {
  constexpr StateClaim kLongest{.lineage = kKeepsNone,
                                .step = std::numeric_limits<int64_t>::min(),
                                .evaluated_step = std::numeric_limits<int64_t>::min(),
                                .generation = kKeepsNone,
                                .at_commit = kKeepsNone,
                                .complete = kKeepsNone,
                                .is_whole = false,
                                .can_take = false};
  const Join join{.nproc = kNprocMax,
                  .terms = std::string(size_t{64} << 10, 'x'),
                  .claims = std::vector<StateClaim>(kNprocMax, kLongest)};
  EXPECT_LT(encode(NodeMessage(join)).size(), kJoinBytesMax);
}

// ---- greeting ----

TEST(Coordinator, welcomes_an_agent_with_its_generation) {
  Job job(2);
  const Outputs outputs = job.send_on(50, Job::greet_of(1));
  ASSERT_EQ(count<Welcome>(outputs), 1U);
  EXPECT_EQ(sent<Welcome>(outputs)[0].second.generation, generation(0));
}

TEST(Coordinator, refuses_another_protocol_and_names_both) {
  Job job(2);
  Greet greet = Job::greet_of(1);
  greet.protocol = kCoordinationProtocol + 1;
  const Refused refused = refusal(job.send_on(50, greet), 50);
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("protocol " + std::to_string(kCoordinationProtocol + 1) +
                                         ", the coordinator " + std::to_string(kCoordinationProtocol)));
}

TEST(Coordinator, refuses_another_job_and_names_both) {
  Job job(2);
  Greet greet = Job::greet_of(1);
  greet.job = "gpt";
  const Refused refused = refusal(job.send_on(50, greet), 50);
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("\"gpt\""));
  EXPECT_THAT(refused.message, HasSubstr("\"sasrec\""));
}

TEST(Coordinator, notes_of_refusals_can_be_limited_by_the_caller) {
  Job job(2);
  Greet greet = Job::greet_of(1);
  greet.token = "wrong";
  const Outputs outputs = job.send_on(50, greet);
  const Note note = std::get<Note>(outputs.at(0));
  EXPECT_THAT(note.text, HasSubstr("refused: the agent of node 1"));
  EXPECT_TRUE(note.is_refusal);
  EXPECT_TRUE(note.is_warning);
}

TEST(Coordinator, the_text_of_a_peer_cannot_forge_a_log_line) {
  const std::string forged = "x\nlockstep: the job is complete\x1b[2J";
  const std::string shown = "x lockstep: the job is complete?[2J";
  Job job(2);
  Greet stranger = Job::greet_of(1);
  stranger.job = forged;
  Greet host = Job::greet_of(0);
  host.host = forged;
  const auto expect_one_line = [&](const Outputs& outputs) {
    const std::string text = notes(outputs);  // each followed by a line break
    EXPECT_THAT(text, HasSubstr(shown));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  };
  expect_one_line(job.send_on(50, stranger));
  job.send_on(51, host);
  expect_one_line(job.send_on(51, Join{}));
  expect_one_line(job.handle(ConnectionEnded{51, "reset"}));
}

TEST(Coordinator, refuses_a_wrong_token_and_does_not_tell_the_right_one) {
  for (const char* token : {"", "Secret", "secreT", "secret1"}) {
    Job job(2);
    Greet greet = Job::greet_of(1);
    greet.token = token;
    const Outputs outputs = job.send_on(50, greet);
    const Refused refused = refusal(outputs, 50);
    EXPECT_FALSE(refused.retry);
    EXPECT_THAT(refused.message, HasSubstr("LOCKSTEP_TOKEN"));
    EXPECT_THAT(refused.message + notes(outputs), Not(HasSubstr("secret")));
  }
}

TEST(Coordinator, refuses_a_node_rank_that_does_not_fit) {
  for (const int rank : {-2, 2}) {
    Job job(2);
    const Refused refused = refusal(job.send_on(50, Job::greet_of(rank)), 50);
    EXPECT_FALSE(refused.retry);
    EXPECT_THAT(refused.message, HasSubstr("node rank out of range: expected 0 to 1"));
  }
}

TEST(Coordinator, gives_agents_that_ask_the_lowest_number_that_is_free) {
  Job job(3);
  job.join(0);
  const auto number = [&job](ConnectionId connection, uint64_t incarnation) {
    const Outputs outputs = job.send_on(connection, Job::greet_of(kAnyNode, 1, incarnation));
    EXPECT_TRUE(closes(outputs, connection));
    const auto given = sent<NodeNumber>(outputs);
    return given.empty() ? -1 : given.front().second.node_rank;
  };
  EXPECT_EQ(number(500, 1), 1);
  EXPECT_EQ(number(501, 2), 2) << "1 was given away a moment ago";
  EXPECT_EQ(number(502, 1), 1) << "the same agent asks again";
  EXPECT_EQ(number(503, 3), -1) << "all are there or on their way";
  job.join(1);
  job.join(2);
  EXPECT_EQ(number(504, 3), -1);
  job.drop(2);
  EXPECT_EQ(number(505, 3), 2) << "its place is free";
}

TEST(Coordinator, a_number_that_is_not_used_is_given_again_after_a_while) {
  Job job(2);
  job.join(0);
  EXPECT_EQ(count<NodeNumber>(job.send_on(500, Job::greet_of(kAnyNode, 1, 1))), 1U);
  const Outputs refused = job.send_on(501, Job::greet_of(kAnyNode, 1, 2));
  ASSERT_EQ(count<Refused>(refused), 1U);
  EXPECT_TRUE(sent<Refused>(refused).front().second.retry);
  job.pass(kNumberHeld);
  EXPECT_EQ(count<NodeNumber>(job.send_on(502, Job::greet_of(kAnyNode, 1, 2))), 1U);
}

TEST(Coordinator, looks_at_protocol_job_token_and_rank_in_this_order) {
  Job job(2);
  Greet greet{kCoordinationProtocol + 1, "gpt", "wrong", 5, 1, 7, ""};
  EXPECT_THAT(refusal(job.send_on(50, greet), 50).message, HasSubstr("protocol"));
  greet.protocol = kCoordinationProtocol;
  EXPECT_THAT(refusal(job.send_on(51, greet), 51).message, HasSubstr("job"));
  greet.job = "sasrec";
  EXPECT_THAT(refusal(job.send_on(52, greet), 52).message, HasSubstr("token"));
  greet.token = "secret";
  EXPECT_THAT(refusal(job.send_on(53, greet), 53).message, HasSubstr("node rank out of range"));
}

TEST(Coordinator, tells_an_agent_whose_clock_was_set_back_what_to_do) {
  Job job(2);
  job.join(1, Join{1, 0, false}, /*attempt=*/1'800'000'000);
  job.drop(1);
  const Refused refused = refusal_of(job, 1, job.join(1, Join{1, 0, false}, /*attempt=*/1'700'000'000));
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("superseded by attempt 1800000000"));
  EXPECT_THAT(refused.message, HasSubstr("start its agent with LOCKSTEP_POD_ATTEMPT=1800000001"));
}

TEST(Coordinator, closes_whoever_does_not_greet_and_join) {
  Job job(2);
  EXPECT_TRUE(closes(job.send_on(50, NodeReady{true}), 50));
  EXPECT_TRUE(closes(job.send_on(51, Join{}), 51));
  job.send_on(52, Job::greet_of(1));
  EXPECT_TRUE(closes(job.send_on(52, NodeDone{}), 52));
  EXPECT_THAT(job.state.greetings, IsEmpty()) << "what is closed takes no room";
  EXPECT_THAT(job.state.nodes, IsEmpty());
  EXPECT_FALSE(job.state.end.has_value());
}

TEST(Coordinator, drops_a_greeting_that_does_not_join) {
  Job job(2);
  job.send_on(50, Job::greet_of(1));
  EXPECT_FALSE(closes(job.pass(kHeartbeatTimeout - 1s), 50));
  EXPECT_TRUE(closes(job.pass(2s), 50));
  EXPECT_TRUE(closes(job.send_on(50, Join{}), 50));
}

TEST(Coordinator, forgets_a_greeting_whose_connection_ends) {
  Job job(2);
  job.send_on(50, Job::greet_of(1));
  job.handle(ConnectionEnded{50, "reset"});
  EXPECT_TRUE(closes(job.send_on(50, Join{}), 50));
}

TEST(Coordinator, limits_the_greetings_that_are_open) {
  Job job(2);
  for (ConnectionId connection = 1; connection <= 2 * kGreetingsPerNode; ++connection) {
    EXPECT_EQ(count<Welcome>(job.send_on(connection, Job::greet_of(1))), 1U);
  }
  EXPECT_TRUE(refusal(job.send_on(50, Job::greet_of(1)), 50).retry);
}

// ---- joining ----

TEST(Coordinator, a_higher_attempt_supersedes_a_lower_one) {
  Job job(3);
  job.join(1, Join{}, 1, 7);
  const ConnectionId old = job.connections[1];
  const Outputs outputs = job.join(1, Join{}, 2, 8);
  const Refused refused = refusal(outputs, old);
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("superseded by attempt 2"));
  EXPECT_EQ(job.state.nodes.at(1).connection, job.connections[1]);
  EXPECT_EQ(job.state.tally.connected, 1);
}

TEST(Coordinator, a_lower_attempt_is_superseded_even_when_the_higher_one_is_lost) {
  Job job(3);
  job.join(1, Join{}, 2, 8);
  job.drop(1);
  const Refused refused = refusal_of(job, 1, job.join(1, Join{}, 1, 7));
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("superseded by attempt 2"));
}

TEST(Coordinator, the_same_agent_takes_over_its_own_place) {
  Job job(3);
  job.join(1);
  const ConnectionId old = job.connections[1];
  const Outputs outputs = job.join(1, true);
  EXPECT_EQ(count<Refused>(outputs), 0U);
  EXPECT_TRUE(closes(outputs, old));
  EXPECT_TRUE(job.state.nodes.at(1).ready);
  // What still arrives on the old connection does not count any more.
  EXPECT_TRUE(closes(job.send_on(old, NodeReady{false, generation(9)}), old));
  EXPECT_TRUE(job.state.nodes.at(1).ready);
  job.handle(ConnectionEnded{old, "reset"});
  EXPECT_EQ(job.state.tally.ready, 1);
}

TEST(Coordinator, an_agent_that_comes_back_may_be_less_ready_than_it_was) {
  Job job(2);
  job.join(1, true);
  job.join(1, false);
  EXPECT_EQ(count<Assignment>(job.join(0, true)), 0U);
}

TEST(Coordinator, the_successor_of_an_agent_that_was_leaving_stays) {
  Job job(2);
  job.join(1, true);
  job.send(1, Leave{143});
  job.join(1, Join{1, 0, true}, 2, 8);
  EXPECT_EQ(count<Assignment>(job.join(0, true)), 2U);
}

TEST(Coordinator, another_agent_of_the_same_attempt_waits_until_the_present_one_is_lost) {
  Job job(3);
  job.join(1, Join{}, 1, 7);
  const ConnectionId present = job.connections[1];
  const Refused refused = refusal_of(job, 1, job.join(1, Join{}, 1, 8));
  EXPECT_TRUE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("there already (host1)"));
  job.handle(ConnectionEnded{present, "reset"});
  EXPECT_EQ(count<Refused>(job.join(1, Join{}, 1, 8)), 0U);
  EXPECT_EQ(job.state.nodes.at(1).incarnation, 8U);
}

TEST(Coordinator, refuses_another_number_of_workers_and_names_both) {
  Job job(3);
  job.join(0, Join{4});
  const Refused refused = refusal_of(job, 1, job.join(1, Join{2}));
  EXPECT_FALSE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("node 1 starts 2 workers, node 0 starts 4"));
  EXPECT_FALSE(job.state.nodes.contains(1));
}

// ---- terms ----

WorkerBeat beat_at(int64_t step) {
  WorkerBeat beat;
  beat.step = step;
  beat.activity = Activity::kAwaiting;
  return beat;
}

constexpr const char* kTerms = R"({"lr":"0.1","number of samples":5})";
constexpr const char* kOtherTerms = R"({"lr":"0.2","number of samples":5})";

TEST(Coordinator, refuses_a_node_that_is_ready_with_other_terms_than_node_0_and_names_both) {
  Job job(3);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.send(0, NodeReady{true, generation(0), kTerms});
  const Outputs outputs = job.send(2, NodeReady{true, generation(0), kOtherTerms});
  const Refused refused = refusal_of(job, 2, outputs);
  EXPECT_FALSE(refused.retry);
  EXPECT_EQ(refused.message,
            "the agent of node 2 (host2) does not fit: --lr is 0.1 in node 0 (host0) and 0.2 in node 2 (host2); start "
            "all ranks with the same flags, data and version of lockstep");
  EXPECT_THAT(notes(outputs), HasSubstr("refused: the agent of node 2"));
  EXPECT_EQ(job.state.nodes.at(2).connection, 0U);
  EXPECT_EQ(job.state.tally.ready, 1);
  // The others wait for one that fits.
  job.send(1, NodeReady{true, generation(0), kTerms});
  EXPECT_EQ(count<Assignment>(job.join(2, Join{.nproc = 1, .ready = true, .terms = kTerms})), 3U);
}

TEST(Coordinator, refuses_those_who_differ_from_node_0_when_it_comes_last) {
  Job job(3);
  job.join(1, Join{.nproc = 1, .ready = true, .terms = kOtherTerms});
  job.join(2, Join{.nproc = 1, .ready = true, .terms = kTerms});
  const Outputs outputs = job.join(0, Join{.nproc = 1, .ready = true, .terms = kTerms});
  EXPECT_THAT(refusal_of(job, 1, outputs).message, HasSubstr("--lr is 0.1 in node 0 (host0) and 0.2 in node 1"));
  EXPECT_EQ(count<Refused>(outputs), 1U);
  EXPECT_EQ(job.state.tally.ready, 2);
}

TEST(Coordinator, refuses_a_join_with_other_terms_while_a_group_trains) {
  Job job(1, 2);
  job.join(0, Join{.nproc = 1, .ready = true, .terms = kTerms});
  job.pass(60s);
  ASSERT_EQ(job.state.group, GroupState::kPlaced);
  const Outputs outputs = job.join(1, Join{.nproc = 1, .ready = true, .terms = kOtherTerms});
  EXPECT_THAT(refusal_of(job, 1, outputs).message, HasSubstr("--lr"));
  EXPECT_EQ(count<Regroup>(job.pass(1s)), 0U);
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
}

TEST(Coordinator, compares_no_terms_of_workers_that_are_not_ready) {
  Job job(2);
  job.join(0, Join{.nproc = 1, .ready = true, .terms = kTerms});
  EXPECT_EQ(count<Refused>(job.join(1)), 0U);
  EXPECT_EQ(count<Refused>(job.send(1, NodeReady{false, generation(0), ""})), 0U);
}

TEST(Coordinator, forgets_the_terms_of_a_node_0_that_is_lost) {
  Job job(2);
  job.join(0, Join{.nproc = 1, .ready = true, .terms = kTerms});
  job.drop(0);
  EXPECT_EQ(count<Refused>(job.join(1, Join{.nproc = 1, .ready = true, .terms = kOtherTerms})), 0U);
  const Join same{.nproc = 1, .ready = true, .terms = kOtherTerms};
  EXPECT_EQ(count<Assignment>(job.join(0, same, 2, 8)), 2U);
}

BrokenBefore broken_before() {
  return {.seconds = 2.0, .committed_seconds = 3.0, .generation = generation(4, 2), .step = 70};
}

// A new node 0 with another data set or another GPU: the nodes that hold the state wait for its successor.
TEST(Coordinator, refuses_a_node_0_that_differs_from_a_node_that_has_trained) {
  for (const bool node_0_is_first : {true, false}) {
    Job job(3);
    const auto join_0 = [&] { return job.join(0, Join{.nproc = 1, .ready = true, .terms = kOtherTerms}); };
    Outputs outputs;
    if (node_0_is_first) join_0();
    for (const int node : {1, 2}) {
      const Outputs joined =
          job.join(node, Join{.nproc = 1, .ready = true, .broken_before = broken_before(), .terms = kTerms});
      if (node == 1) outputs = joined;
    }
    if (!node_0_is_first) outputs = join_0();
    const Refused refused = refusal_of(job, 0, outputs);
    EXPECT_FALSE(refused.retry);
    EXPECT_THAT(refused.message,
                HasSubstr("the agent of node 0 (host0) does not fit: --lr is 0.1 in node 1 (host1) and"));
    EXPECT_EQ(count<Refused>(outputs), 1U);
    EXPECT_FALSE(job.state.end);
    EXPECT_EQ(job.state.tally.ready, 2);
  }
}

TEST(Coordinator, refuses_those_who_differ_from_a_node_0_that_has_trained) {
  Job job(2);
  job.join(1, Join{.nproc = 1, .ready = true, .broken_before = broken_before(), .terms = kOtherTerms});
  const Outputs outputs =
      job.join(0, Join{.nproc = 1, .ready = true, .broken_before = broken_before(), .terms = kTerms});
  EXPECT_THAT(refusal_of(job, 1, outputs).message, HasSubstr("0.1 in node 0"));
}

// Its workers are new, and so is what they read; the others hold steps.
TEST(Coordinator, refuses_a_node_0_whose_new_workers_differ_from_a_node_that_holds_steps) {
  Job job(2);
  for (const int node : {0, 1}) job.join(node, Join{.nproc = 1, .ready = true, .terms = kTerms});
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(7)}});
  job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  job.send(0, Heartbeat{{beat_at(0)}});
  job.send(1, NodeReady{true, job.state.placed, kTerms});
  const Outputs outputs = job.send(0, NodeReady{true, job.state.placed, kOtherTerms});
  EXPECT_THAT(refusal_of(job, 0, outputs).message, HasSubstr("0.1 in node 1 (host1) and 0.2 in node 0"));
}

TEST(Coordinator, says_when_terms_cannot_be_read) {
  Job job(2);
  job.join(0, Join{.nproc = 1, .ready = true, .terms = kTerms});
  const Outputs outputs = job.join(1, Join{.nproc = 1, .ready = true, .terms = "nonsense\nlockstep: all is well"});
  EXPECT_THAT(refusal_of(job, 1, outputs).message, HasSubstr("the terms of node 1"));
  EXPECT_THAT(notes(outputs), Not(HasSubstr("\nlockstep: all is well")));
}

TEST(Coordinator, refuses_a_number_of_workers_that_cannot_be) {
  for (const int nproc : {-1, 0, kNprocMax + 1}) {
    Job job(3);
    EXPECT_FALSE(refusal_of(job, 0, job.join(0, Join{nproc})).retry);
  }
}

TEST(Coordinator, never_places_an_agent_that_has_seen_its_successor) {
  Job job(2);
  job.join(0, true);
  const Outputs outputs = job.join(1, Join{1, generation(1, kAttempt + 1), true});
  const Refused refused = refusal_of(job, 1, outputs);
  EXPECT_TRUE(refused.retry);
  EXPECT_THAT(refused.message, HasSubstr("attempt 4"));
  EXPECT_EQ(count<Assignment>(outputs), 0U);
}

TEST(Coordinator, counts_on_from_the_highest_generation_of_its_own_attempt) {
  Job job(2);
  job.join(0, true);
  const Outputs outputs = job.join(1, Join{1, generation(41), true});
  ASSERT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_EQ(sent<Assignment>(outputs)[0].second.generation, generation(42));
}

TEST(Coordinator, a_generation_of_an_earlier_attempt_does_not_count) {
  Job job(2);
  job.join(0, true);
  const Outputs outputs = job.join(1, Join{1, generation(41, kAttempt - 1), true});
  ASSERT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_EQ(sent<Assignment>(outputs)[0].second.generation, generation(1));
}

TEST(Coordinator, refuses_a_generation_that_would_exhaust_the_counter) {
  Job job(2);
  EXPECT_FALSE(refusal_of(job, 1, job.join(1, Join{1, generation(UINT32_MAX)})).retry);
  EXPECT_EQ(job.state.counter, 0U);
}

TEST(Coordinator, a_second_join_on_a_connection_loses_the_node) {
  Job job(2);
  job.place(2);
  const ConnectionId connection = job.connections[1];
  const Outputs outputs = job.send(1, Join{});
  EXPECT_TRUE(closes(outputs, connection));
  EXPECT_EQ(count<CutGroup>(outputs), 1U);
}

// ---- placing ----

TEST(Coordinator, places_all_when_all_are_ready_after_it_began_the_generation) {
  Job job(2);
  job.join(1, Join{4, 0, true});
  const Outputs outputs = job.join(0, Join{4, 0, true});
  const auto placements = sent<Assignment>(outputs);
  ASSERT_EQ(placements.size(), 2U);
  EXPECT_EQ(placements[0].first, job.connections[0]);
  EXPECT_EQ(placements[0].second.rank, 0);
  EXPECT_EQ(placements[1].first, job.connections[1]);
  EXPECT_EQ(placements[1].second.rank, 4);
  for (const auto& [connection, placement] : placements) {
    EXPECT_EQ(placement.generation, generation(1));
    EXPECT_EQ(placement.world_size, 8);
    EXPECT_EQ(placement.nnodes, 2);
  }
  size_t begin = outputs.size();
  size_t first_placement = outputs.size();
  for (size_t i = outputs.size(); i-- > 0;) {
    if (const auto* begun = std::get_if<BeginGeneration>(&outputs[i])) {
      begin = i;
      EXPECT_EQ(begun->generation, generation(1));
    }
    const auto* send = std::get_if<Send>(&outputs[i]);
    if (send != nullptr && std::holds_alternative<Assignment>(send->message)) first_placement = i;
  }
  EXPECT_LT(begin, first_placement);
}

TEST(Coordinator, waits_for_a_node_whose_workers_are_not_ready) {
  Job job(2);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.join(1, false)), 0U);
  EXPECT_EQ(count<Assignment>(job.ready(1)), 2U);
}

TEST(Coordinator, a_node_that_is_not_ready_any_more_is_not_placed) {
  Job job(2);
  job.join(0, true);
  job.send(0, NodeReady{false, generation(0)});
  EXPECT_EQ(count<Assignment>(job.join(1, true)), 0U);
}

TEST(Coordinator, places_no_group_without_node_0) {
  Job job(1, 3);
  job.join(1, true);
  EXPECT_EQ(count<Assignment>(job.join(2, true)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(60s)), 0U);
  EXPECT_EQ(count<Assignment>(job.join(0, true)), 3U);
}

TEST(Coordinator, the_first_group_waits_for_the_wanted_nodes_until_rejoin_timeout) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  EXPECT_EQ(count<Assignment>(job.pass(29s)), 0U);
  const Outputs outputs = job.pass(1s);
  ASSERT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_EQ(sent<Assignment>(outputs)[0].second.nnodes, 2);
}

TEST(Coordinator, the_first_group_waits_also_for_those_who_follow_an_old_name) {
  CoordinatorOptions options = options_of(1, 3);
  options.dns_ttl = 20s;
  Job job(options);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.pass(49s)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(1s)), 1U);
  // Later ones do not.
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  EXPECT_EQ(count<Assignment>(job.ready(0)), 1U);
}

TEST(Coordinator, does_not_wait_to_the_next_beat_when_its_patience_ends) {
  CoordinatorOptions options = options_of(1, 2);
  options.rejoin_timeout = 2500ms;
  Job job(options);
  job.join(0, true);
  job.pass(2400ms);
  EXPECT_EQ(*job.state.deadline, TimePoint{1000s} + 2500ms);
  EXPECT_EQ(count<Assignment>(job.pass(100ms)), 1U);
}

TEST(Coordinator, needs_min_nodes) {
  Job job(2, 3);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.pass(100s)), 0U);
  EXPECT_EQ(count<Assignment>(job.join(2, true)), 2U);
}

TEST(Coordinator, places_the_lowest_wanted_nodes) {
  CoordinatorOptions options = options_of(1, 4);
  options.wanted_nodes = 2;
  Job job(options);
  job.join(3, true);
  job.join(1, true);
  const Outputs outputs = job.join(0, true);
  EXPECT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_THAT(job.state.members, ElementsAre(0, 1));
}

TEST(Coordinator, gives_up_after_rendezvous_timeout_and_names_the_missing) {
  Job job(3);
  job.join(0, true);
  job.join(1, false);
  EXPECT_EQ(count<EndJob>(job.pass(299s)), 0U);
  const Outputs outputs = job.pass(1s);
  ASSERT_EQ(count<EndJob>(outputs), 2U);
  const EndJob end = sent<EndJob>(outputs)[0].second;
  EXPECT_EQ(end.code, 10);
  EXPECT_THAT(end.message, HasSubstr("300 s"));
  EXPECT_THAT(end.message, HasSubstr("1 of 3 nodes are ready"));
  EXPECT_THAT(end.message, HasSubstr("node 1 (its workers are not ready), node 2 (not joined); see their logs"));
  EXPECT_THAT(end.message, HasSubstr("--nnodes MIN:MAX"));
  EXPECT_THAT(end.message, HasSubstr("--rendezvous_timeout_seconds"));
}

TEST(Coordinator, names_only_some_of_many_missing_nodes) {
  Job job(100);
  const std::string reason = decide_membership(job.state, job.now).reason;
  EXPECT_THAT(reason, HasSubstr("node 7 (not joined) and 92 more"));
}

TEST(Coordinator, says_once_what_it_waits_for) {
  Job job(2);
  job.join(0, true);
  EXPECT_THAT(notes(job.pass(1s)), HasSubstr("1 of 2 nodes are ready; missing: node 1 (not joined)"));
  EXPECT_EQ(notes(job.pass(3s)), "");
  job.join(1, false);
  EXPECT_THAT(notes(job.pass(1s)), HasSubstr("node 1 (its workers are not ready)"));
  job.ready(1);
  EXPECT_EQ(notes(job.pass(3s)), "");
}

TEST(Coordinator, says_it_again_when_it_waits_again) {
  Job job(2);
  job.join(0, true);
  job.join(1, false);
  const std::string said = notes(job.pass(1s));
  job.ready(1);
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  job.ready(0);
  EXPECT_EQ(notes(job.pass(1s)), said);
}

TEST(Coordinator, decides_anew_when_time_has_passed) {
  Job job(1, 2);
  job.join(0, true);
  EXPECT_TRUE(decide_membership(job.state, job.now + 29s).members.empty());
  EXPECT_EQ(decide_membership(job.state, job.now + 30s).members, std::vector<int>{0});
  ASSERT_TRUE(job.state.deadline);
  EXPECT_LE(*job.state.deadline, job.now + 30s);
  job.send(0, NodeReady{false, generation(0)});
  EXPECT_FALSE(decide_membership(job.state, job.now + 299s).gives_up);
  EXPECT_TRUE(decide_membership(job.state, job.now + 300s).gives_up);
  EXPECT_LE(*job.state.deadline, job.now + 300s);
}

// ---- a group breaks ----

TEST(Coordinator, a_broken_group_is_cut_at_every_member_once) {
  Job job(3);
  job.place(3);
  const Outputs outputs = job.send(1, Broken{generation(1), 1, "SignalKILL", "rank 1 was killed"});
  const auto cuts = sent<CutGroup>(outputs);
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_EQ(cuts[0].second.generation, generation(1));
  EXPECT_EQ(cuts[0].second.cause, "SignalKILL");
  EXPECT_THAT(cuts[0].second.message, HasSubstr("node 1 (host1): rank 1: rank 1 was killed"));
  EXPECT_THAT(notes(outputs), HasSubstr("SignalKILL"));
  EXPECT_EQ(count<CutGroup>(job.send(2, Broken{generation(1), -1, "PeerLost", ""})), 0U);
}

TEST(Coordinator, what_is_said_about_an_old_group_breaks_nothing) {
  Job job(2);
  job.place(2);
  EXPECT_THAT(job.send(1, Broken{generation(0), 1, "SignalKILL", ""}), IsEmpty());
  EXPECT_THAT(job.send(1, Broken{generation(1, 2), 1, "SignalKILL", ""}), IsEmpty());
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
}

TEST(Coordinator, a_node_outside_the_group_breaks_nothing) {
  CoordinatorOptions options = options_of(1, 3);
  options.wanted_nodes = 2;
  Job job(options);
  job.place(2);
  job.join(2, true);
  job.send(2, Broken{generation(1), 1, "SignalKILL", ""});
  job.ready(2);
  job.drop(2);
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
}

TEST(Coordinator, a_group_that_an_agent_knew_a_higher_generation_than_can_still_break) {
  Job job(1, 2);
  job.join(0, true);
  job.pass(30s);
  job.join(1, Join{1, generation(9)});
  EXPECT_EQ(count<CutGroup>(job.send(0, Broken{generation(1), 0, "SignalKILL", ""})), 1U);
  EXPECT_EQ(sent<Assignment>(job.ready(0))[0].second.generation, generation(10));
}

TEST(Coordinator, the_next_group_is_placed_when_the_last_member_is_ready_and_says_why) {
  Job job(2);
  job.place(2);
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  EXPECT_EQ(count<Assignment>(job.ready(0)), 0U);
  const Outputs outputs = job.ready(1);
  ASSERT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_EQ(sent<Assignment>(outputs)[0].second.generation, generation(2));
  EXPECT_EQ(job.state.cause, "SignalKILL");
}

TEST(Coordinator, readiness_from_before_a_placement_does_not_count_after_it) {
  Job job(2);
  job.place(2);
  // A NodeReady that was on its way when the placement was sent does not mean that the workers have left …
  EXPECT_THAT(job.send(1, NodeReady{true, generation(0)}), IsEmpty());
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
  // … nor that they are ready for the next group.
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.send(1, NodeReady{true, generation(0)});
  EXPECT_EQ(count<Assignment>(job.ready(0)), 0U);
}

TEST(Coordinator, an_agent_that_joins_anew_is_believed_whatever_its_node_was_placed_in) {
  Job job(2);
  job.place(2);
  job.join(1, Join{1, 0, false}, 2, 8);
  job.ready(0);
  EXPECT_EQ(count<Assignment>(job.send(1, NodeReady{true, generation(0)})), 2U);
}

TEST(Coordinator, the_cause_is_taken_from_a_report_that_comes_after_those_of_lost_peers) {
  Job job(3);
  job.place(3);
  job.send(0, Broken{generation(1), -1, "PeerLost", ""});
  EXPECT_THAT(notes(job.send(1, Broken{generation(1), 1, "SignalSEGV", ""})), HasSubstr("SignalSEGV"));
  job.send(2, Broken{generation(1), 2, "OutOfMemory", ""});
  EXPECT_EQ(count<Assignment>(job.all_ready(3)), 3U);
  EXPECT_EQ(job.state.cause, "SignalSEGV");
}

TEST(Coordinator, a_lost_node_is_the_cause_of_a_lost_peer) {
  Job job(3);
  job.place(3);
  job.send(0, Broken{generation(1), -1, "PeerLost", ""});
  job.drop(2);
  EXPECT_EQ(job.state.cause, "NodeLost");
}

TEST(Coordinator, a_member_that_waits_again_has_left_the_group) {
  Job job(2);
  job.place(2);
  const Outputs outputs = job.ready(1);
  ASSERT_EQ(count<CutGroup>(outputs), 2U);
  EXPECT_EQ(sent<CutGroup>(outputs)[0].second.cause, "PeerLost");
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
}

TEST(Coordinator, a_member_of_a_placed_group_that_is_not_ready_breaks_nothing) {
  Job job(2);
  job.place(2);
  EXPECT_THAT(job.send(1, NodeReady{false, generation(1)}), IsEmpty());
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
}

TEST(Coordinator, a_member_that_is_lost_when_it_was_ready_is_waited_for) {
  Job job(2, 3);
  job.place(3);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.ready(1);
  job.drop(1);
  job.ready(0);
  EXPECT_EQ(count<Assignment>(job.ready(2)), 0U);
  EXPECT_EQ(count<Assignment>(job.join(1, true)), 3U);
}

TEST(Coordinator, a_lost_connection_breaks_the_group) {
  Job job(2);
  job.place(2);
  const Outputs outputs = job.drop(1);
  ASSERT_EQ(count<CutGroup>(outputs), 1U);
  EXPECT_EQ(sent<CutGroup>(outputs)[0].first, job.connections[0]);
  EXPECT_EQ(sent<CutGroup>(outputs)[0].second.cause, "NodeLost");
  EXPECT_THAT(notes(outputs), HasSubstr("node 1 (host1) is lost: its connection ended: reset"));
}

TEST(Coordinator, silence_breaks_the_group) {
  Job job(2);
  job.place(2);
  EXPECT_EQ(count<CutGroup>(job.pass(4s, 1)), 0U);
  const Outputs outputs = job.pass(1s, 1);
  EXPECT_TRUE(closes(outputs, job.connections[1]));
  ASSERT_EQ(count<CutGroup>(outputs), 1U);
  EXPECT_THAT(sent<CutGroup>(outputs)[0].second.message, HasSubstr("nothing heard for 5 s"));
  ASSERT_EQ(news<GroupBroke>(outputs).size(), 1U);
  EXPECT_GE(news<GroupBroke>(outputs)[0].detection_seconds, 5.0);
}

TEST(Coordinator, a_member_that_joins_again_breaks_the_group) {
  Job job(2);
  job.place(2);
  EXPECT_EQ(count<CutGroup>(job.join(1, true)), 2U);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
}

TEST(Coordinator, nobody_is_lost_because_the_coordinator_did_not_run) {
  Job job(2);
  job.place(2);
  job.send_on(60, Job::greet_of(1, 2));
  job.now += 60s;
  const Outputs outputs = job.handle(CoordinatorTick{});
  EXPECT_EQ(count<CutGroup>(outputs), 0U);
  EXPECT_FALSE(closes(outputs, 60));
  EXPECT_THAT(notes(outputs), HasSubstr("did not run for 60 s"));
  // The time that it did not run is not counted; the time after it is.
  EXPECT_EQ(count<CutGroup>(job.pass(4s, 1)), 0U);
  EXPECT_EQ(count<CutGroup>(job.pass(1s, 1)), 1U);
}

// Gaps that a busy machine makes do not count as a stop: half of the heartbeat timeout, or two beats if it is short.
TEST(Coordinator, a_late_tick_forgives_no_silence) {
  for (const auto& [timeout, gap] : {std::pair(5000ms, 2400ms), std::pair(2000ms, 1500ms)}) {
    Job job(2);
    job.state.options.heartbeat_timeout = timeout;
    job.place(2);
    job.now += gap;
    EXPECT_THAT(notes(job.handle(CoordinatorTick{})), Not(HasSubstr("did not run")));
    EXPECT_EQ(count<CutGroup>(job.pass(timeout - gap - 1ms, 1)), 0U);
    EXPECT_EQ(count<CutGroup>(job.pass(1ms, 1)), 1U) << timeout.count();
  }
}

TEST(Coordinator, no_wait_is_over_because_the_coordinator_did_not_run) {
  Job job(1, 2);
  job.join(0, true);
  job.now += 400s;
  EXPECT_EQ(count<Assignment>(job.handle(CoordinatorTick{})), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(29s)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(1s)), 1U);
}

TEST(Coordinator, no_group_is_late_because_the_coordinator_did_not_run) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  job.join(2, true);
  job.now += 400s;
  EXPECT_EQ(count<CutGroup>(job.handle(CoordinatorTick{})), 0U);
  EXPECT_EQ(count<CutGroup>(job.pass(29s)), 0U);
  EXPECT_EQ(count<CutGroup>(job.pass(1s)), 2U);
}

TEST(Coordinator, nobody_has_less_time_to_leave_because_the_coordinator_did_not_run) {
  Job job(3);
  job.place(3);
  job.send(2, Leave{143});
  job.now += 400s;
  EXPECT_EQ(count<Regroup>(job.handle(CoordinatorTick{})), 0U);
  EXPECT_EQ(count<Regroup>(job.pass(kLeaveGather - 1ms)), 0U);
  EXPECT_EQ(count<Regroup>(job.pass(1ms)), 3U);
}

TEST(Coordinator, node_0_waits_no_less_because_the_coordinator_did_not_run) {
  Job job(2);
  job.place(2);
  job.drop(1);
  job.send(0, NodeDone{});
  job.now += 400s;
  job.handle(CoordinatorTick{});
  EXPECT_FALSE(may_leave(job.state, job.now + 29s));
}

TEST(Coordinator, goes_on_with_fewer_after_rejoin_timeout) {
  Job job(2, 3);
  job.place(3);
  job.pass(100s);
  job.drop(1);
  job.ready(0);
  EXPECT_EQ(count<Assignment>(job.ready(2)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(29s)), 0U);
  const Outputs outputs = job.pass(1s);
  ASSERT_EQ(count<Assignment>(outputs), 2U);
  EXPECT_EQ(sent<Assignment>(outputs)[1].second.rank, 1);
  EXPECT_THAT(job.state.members, ElementsAre(0, 2));
  EXPECT_EQ(job.state.cause, "NodeLost");
}

TEST(Coordinator, a_lost_node_that_comes_back_in_time_has_its_old_rank) {
  Job job(2, 3);
  job.place(3);
  job.drop(1);
  job.ready(0);
  job.ready(2);
  const Outputs outputs = job.join(1, true);
  ASSERT_EQ(count<Assignment>(outputs), 3U);
  EXPECT_EQ(sent<Assignment>(outputs)[1].first, job.connections[1]);
  EXPECT_EQ(sent<Assignment>(outputs)[1].second.rank, 1);
}

TEST(Coordinator, does_not_wait_for_a_node_that_the_group_did_without) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  job.join(2, false);
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  job.ready(0);
  EXPECT_EQ(count<Assignment>(job.ready(1)), 2U);
}

TEST(Coordinator, does_not_wait_again_for_a_node_that_did_not_come_back) {
  Job job(1, 3);
  job.place(3);
  job.drop(2);
  job.ready(0);
  job.ready(1);
  job.pass(30s);
  job.send(1, Broken{generation(2), 1, "SignalKILL", ""});
  job.ready(0);
  job.ready(1);
  EXPECT_EQ(count<Assignment>(job.pass(kWithoutStepPauseInitial)), 2U) << "two groups broke without a step";
}

TEST(Coordinator, a_node_that_gives_up_alone_is_lost) {
  Job job(2);
  job.place(2);
  const Outputs outputs = job.send(1, NodeFailed{12, "a device fault", false});
  EXPECT_EQ(count<EndJob>(outputs), 0U);
  EXPECT_EQ(count<CutGroup>(outputs), 1U);
  EXPECT_TRUE(closes(outputs, job.connections[1]));
  EXPECT_THAT(notes(outputs), HasSubstr("a device fault"));
}

// ---- the newest state is written before the end ----

// A job of two nodes that has trained to step 7. Rank 0 was killed and started again, node 1 holds the state.
void lose_rank_0(Job& job) {
  job.place(2);
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(7)}});
  job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  job.send(0, Heartbeat{{beat_at(0)}});
  job.send(1, Heartbeat{{beat_at(7)}});
  job.ready(1);
}

TEST(Coordinator, nobody_leaves_before_rank_0_has_got_the_state) {
  Job job(2);
  lose_rank_0(job);
  EXPECT_EQ(count<StopJob>(job.send(1, Leave{143})), 0U);
  EXPECT_EQ(count<StopJob>(job.send(0, Leave{143})), 0U);
  EXPECT_EQ(count<StopJob>(job.pass(10s)), 0U);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
  EXPECT_EQ(count<StopJob>(job.pass(5s)), 0U) << "the group forms, and rank 0 receives";
  const Outputs outputs = job.send(0, Heartbeat{{beat_at(7)}});
  EXPECT_EQ(count<StopJob>(outputs), 2U);
  EXPECT_EQ(job.state.stop_code, 143);
}

TEST(Coordinator, a_node_that_leaves_alone_does_not_take_the_state_with_it) {
  Job job(1, 2);
  lose_rank_0(job);
  EXPECT_EQ(count<StopJob>(job.send(1, Leave{143})), 0U);
  job.ready(0);
  job.send(0, Heartbeat{{beat_at(7)}});
  const auto regroups = sent<Regroup>(job.pass(kLeaveGather));
  ASSERT_EQ(regroups.size(), 2U);
  EXPECT_FALSE(regroups[0].second.leaving);
  EXPECT_TRUE(regroups[1].second.leaving);
}

TEST(Coordinator, nobody_is_held_for_steps_that_are_in_a_checkpoint_or_that_rank_0_holds) {
  Job written(2);
  lose_rank_0(written);
  written.send(1, CheckpointNews{7});
  EXPECT_EQ(count<StopJob>(written.send(1, Leave{143})), 1U);

  Job held(2);
  held.place(2);
  for (const int node : {0, 1}) held.send(node, Heartbeat{{beat_at(7)}});
  held.send(1, Broken{held.state.placed, 1, "SignalKILL", ""});
  held.send(0, Heartbeat{{beat_at(7)}});
  held.send(1, Heartbeat{{beat_at(0)}});
  held.ready(0);
  EXPECT_EQ(count<StopJob>(held.send(0, Leave{143})), 1U);
}

// A heartbeat is sent every second. What a group has done since the last one is known when its nodes have heard of its
// end.
TEST(Coordinator, nobody_leaves_before_the_members_of_a_broken_group_have_said_what_they_hold) {
  Job job(2);
  job.place(2);
  job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  job.send(0, Heartbeat{{beat_at(0)}});
  EXPECT_EQ(count<StopJob>(job.send(0, Leave{143})), 0U) << "node 1 may have made steps";
  EXPECT_EQ(count<StopJob>(job.send(1, Heartbeat{{beat_at(3)}})), 0U) << "and has";
  EXPECT_EQ(count<StopJob>(job.send(1, Leave{143})), 0U);
  job.ready(1);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
  EXPECT_EQ(count<StopJob>(job.send(0, Heartbeat{{beat_at(3)}})), 2U);

  Job without_steps(2);
  without_steps.place(2);
  without_steps.send(0, Broken{without_steps.state.placed, 0, "SignalKILL", ""});
  without_steps.send(0, Heartbeat{{beat_at(0)}});
  without_steps.send(0, Leave{143});
  EXPECT_EQ(count<StopJob>(without_steps.send(1, Heartbeat{{beat_at(0)}})), 1U);
}

TEST(Coordinator, a_node_that_is_held_may_still_end) {
  Job job(2);
  lose_rank_0(job);
  job.send(1, Leave{143});
  const Outputs outputs = job.drop(1);
  EXPECT_THAT(notes(outputs), Not(HasSubstr("is lost"))) << "it was leaving";
  EXPECT_THAT(job.state.held, IsEmpty());
  EXPECT_EQ(count<StopJob>(job.send(0, Leave{143})), 1U) << "nobody holds the state any more";
}

TEST(Coordinator, who_was_leaving_when_rank_0_was_lost_is_held) {
  Job job(2);
  job.place(2);
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(7)}});
  job.send(1, Leave{143});
  const Outputs outputs = job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  EXPECT_EQ(count<CutGroup>(outputs), 2U);
  EXPECT_EQ(count<StopJob>(outputs), 0U);
  job.ready(1);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
}

TEST(Coordinator, a_job_that_gives_up_places_a_last_group_for_rank_0) {
  Job job(3);
  job.place(3);
  for (const int node : {0, 1, 2}) job.send(node, Heartbeat{{beat_at(7)}});
  job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  job.send(0, Heartbeat{{beat_at(0)}});
  job.drop(2);
  job.ready(0);
  job.ready(1);
  const Outputs outputs = job.pass(301s);
  EXPECT_EQ(count<EndJob>(outputs), 0U);
  EXPECT_EQ(count<Assignment>(outputs), 2U);
  const auto ends = sent<EndJob>(job.send(0, Heartbeat{{beat_at(7)}}));
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].second.code, 10);
  EXPECT_THAT(ends[0].second.message, HasSubstr("missing: node 2 (lost)"));
}

TEST(Coordinator, a_job_ends_when_its_last_group_breaks) {
  Job job(3);
  job.place(3);
  for (const int node : {0, 1, 2}) job.send(node, Heartbeat{{beat_at(7)}});
  job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
  job.send(0, Heartbeat{{beat_at(0)}});
  job.drop(2);
  job.ready(0);
  job.ready(1);
  job.pass(301s);
  Outputs outputs = job.drop(1);
  Job::append(outputs, job.pass(1s));
  EXPECT_EQ(count<EndJob>(outputs), 1U);
}

// ---- a group leaves together ----

TEST(Coordinator, a_group_that_can_grow_leaves_together_and_is_placed_with_all) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  EXPECT_EQ(count<Regroup>(job.join(2, false)), 0U);
  const Outputs outputs = job.ready(2);
  const auto regroups = sent<Regroup>(outputs);
  ASSERT_EQ(regroups.size(), 2U);
  EXPECT_EQ(regroups[0].second.generation, generation(1));
  EXPECT_FALSE(regroups[0].second.leaving);
  EXPECT_EQ(count<CutGroup>(job.ready(0)), 0U);
  const Outputs placed = job.ready(1);
  ASSERT_EQ(count<Assignment>(placed), 3U);
  ASSERT_EQ(news<GroupBroke>(placed).size(), 1U);
  EXPECT_EQ(news<GroupBroke>(placed)[0].cause, "Join");
  EXPECT_FALSE(news<GroupBroke>(placed)[0].step_in_flight) << "all have left together";
  ASSERT_EQ(news<GroupPlaced>(placed).size(), 1U);
  EXPECT_EQ(news<GroupPlaced>(placed)[0].nnodes, 3);
  EXPECT_EQ(count<CutGroup>(placed), 0U);
}

TEST(Coordinator, a_group_does_not_grow_beyond_the_wanted_nodes) {
  CoordinatorOptions options = options_of(1, 3);
  options.wanted_nodes = 2;
  Job job(options);
  job.place(2);
  EXPECT_EQ(count<Regroup>(job.join(2, true)), 0U);
  EXPECT_EQ(count<Regroup>(job.handle(SetWantedNodes{3})), 2U);
  EXPECT_THAT(job.handle(SetWantedNodes{3}), IsEmpty());
}

TEST(Coordinator, wanted_nodes_stay_within_their_bounds) {
  Job job(2, 3);
  job.handle(SetWantedNodes{1});
  EXPECT_EQ(job.state.options.wanted_nodes, 2);
  job.handle(SetWantedNodes{9});
  EXPECT_EQ(job.state.options.wanted_nodes, 3);
}

TEST(Coordinator, fewer_wanted_nodes_change_the_next_group_only) {
  Job job(1, 3);
  job.place(3);
  EXPECT_EQ(count<Regroup>(job.handle(SetWantedNodes{2})), 0U);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.all_ready(3);
  EXPECT_THAT(job.state.members, ElementsAre(0, 1));
}

TEST(Coordinator, a_group_that_does_not_leave_together_is_cut_after_rejoin_timeout) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  job.join(2, true);
  job.ready(1);
  EXPECT_EQ(count<CutGroup>(job.pass(29s)), 0U);
  const Outputs outputs = job.pass(1s);
  ASSERT_EQ(count<CutGroup>(outputs), 2U);
  EXPECT_EQ(sent<CutGroup>(outputs)[0].second.cause, "TimedOut");
  EXPECT_EQ(count<Assignment>(job.ready(0)), 3U);
}

TEST(Coordinator, does_not_wait_to_the_next_beat_when_others_have_had_their_time) {
  Job job(1, 3);
  job.place(3);
  job.pass(1300ms);
  job.send(2, Leave{143});
  job.pass(kLeaveGather - 1ms);
  EXPECT_EQ(job.state.deadline, job.now + 1ms);
  job.pass(1ms);
  job.drop(2);
  job.pass(kHeartbeatTimeout - 1ms);
  EXPECT_EQ(job.state.deadline, job.now + 1ms);
}

TEST(Coordinator, a_group_that_breaks_while_it_leaves_is_cut) {
  Job job(1, 2);
  job.join(0, true);
  job.pass(30s);
  job.join(1, true);
  EXPECT_EQ(count<CutGroup>(job.send(0, Broken{generation(1), 0, "SignalKILL", ""})), 1U);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
  EXPECT_EQ(job.state.cause, "SignalKILL");
}

TEST(Coordinator, a_node_that_leaves_alone_lets_the_others_go_on) {
  Job job(2, 3);
  job.place(3);
  EXPECT_THAT(notes(job.send(2, Leave{143})), HasSubstr("node 2 (host2) leaves"));
  EXPECT_EQ(count<Regroup>(job.pass(kLeaveGather - 1ms)), 0U);
  const Outputs outputs = job.pass(1ms);
  const auto regroups = sent<Regroup>(outputs);
  ASSERT_EQ(regroups.size(), 3U);
  EXPECT_FALSE(regroups[0].second.leaving);
  EXPECT_FALSE(regroups[1].second.leaving);
  EXPECT_TRUE(regroups[2].second.leaving);
  // The end of a node that leaves is not a loss.
  EXPECT_EQ(count<CutGroup>(job.drop(2)), 0U);
  EXPECT_FALSE(job.state.nodes.contains(2));
  job.ready(0);
  const Outputs placed = job.ready(1);
  ASSERT_EQ(count<Assignment>(placed), 2U);
  EXPECT_EQ(job.state.cause, "Leave");
}

TEST(Coordinator, with_fewer_than_min_nodes_the_others_wait_for_a_replacement) {
  Job job(2);
  job.place(2);
  job.send(1, Leave{143});
  job.pass(kLeaveGather);
  job.drop(1);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(100s)), 0U);
  EXPECT_EQ(count<Assignment>(job.join(1, Join{1, 0, true}, 2, 8)), 2U);
}

TEST(Coordinator, a_leaving_node_that_is_lost_before_the_group_was_told_breaks_it) {
  Job job(2, 3);
  job.place(3);
  job.send(2, Leave{143});
  EXPECT_EQ(count<CutGroup>(job.drop(2)), 2U);
  EXPECT_FALSE(job.state.nodes.contains(2));
}

TEST(Coordinator, who_falls_silent_is_lost_when_its_time_is_up_and_not_at_the_next_beat) {
  Job job(3);
  job.place(3);
  job.pass(2s);
  job.now += 300ms;
  job.send(1, Heartbeat{});
  const TimePoint heard = job.now;
  EXPECT_EQ(count<CutGroup>(job.pass(job.state.options.heartbeat_timeout - 1ms, 1)), 0U);
  EXPECT_EQ(job.state.deadline, heard + job.state.options.heartbeat_timeout);
  EXPECT_EQ(count<CutGroup>(job.pass(1ms, 1)), 2U);
  EXPECT_EQ(job.state.cause, "NodeLost");
}

TEST(Coordinator, looks_for_the_silent_at_intervals_however_many_there_are) {
  Job job(1, 3);
  job.place(3);
  job.send(1, Heartbeat{});
  job.now += kSilenceGather / 2;
  job.send(2, Heartbeat{});
  const TimePoint silence = job.state.nodes.at(1).last_heard + job.state.options.heartbeat_timeout;
  while (job.now < silence) {
    job.now = std::min(silence, job.now + kBeatInterval);
    job.send(0, Heartbeat{});
    job.handle(CoordinatorTick{});
  }
  EXPECT_EQ(job.state.tally.connected, 2) << "node 1 is lost";
  EXPECT_EQ(job.state.next_silence, job.now + kSilenceGather);
  job.now += kSilenceGather;
  job.handle(CoordinatorTick{});
  EXPECT_EQ(job.state.tally.connected, 1);
}

TEST(Coordinator, a_leaving_node_that_falls_silent_breaks_the_group) {
  Job job(2, 3);
  job.place(3);
  job.send(2, Leave{143});
  job.pass(kLeaveGather);
  EXPECT_EQ(count<CutGroup>(job.pass(6s, 2)), 2U);
}

TEST(Coordinator, the_others_leave_soon_after_the_node_that_left_or_are_cut) {
  Job job(2, 3);
  job.place(3);
  job.send(2, Leave{143});
  job.pass(kLeaveGather);
  job.drop(2);
  EXPECT_EQ(count<CutGroup>(job.pass(kHeartbeatTimeout - 1ms)), 0U);
  EXPECT_EQ(count<CutGroup>(job.pass(1ms)), 2U);
}

TEST(Coordinator, a_lost_spare_does_not_hurry_a_group_that_leaves_together) {
  CoordinatorOptions options = options_of(1, 4);
  options.wanted_nodes = 2;
  Job job(options);
  job.place(2);
  job.join(2, true);
  job.join(3, true);
  job.handle(SetWantedNodes{4});
  job.drop(3);
  EXPECT_EQ(count<CutGroup>(job.pass(20s)), 0U);
}

TEST(Coordinator, the_job_stops_when_all_members_leave) {
  Job job(2, 3);
  job.place(3);
  job.send(0, Leave{143});
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 0U);
  const Outputs outputs = job.send(1, Leave{130});
  const auto stops = sent<StopJob>(outputs);
  ASSERT_EQ(stops.size(), 3U);
  EXPECT_EQ(stops[0].second.code, 130);
  EXPECT_THAT(job.send(1, Leave{143}), IsEmpty());
  EXPECT_EQ(count<Regroup>(job.pass(60s)), 0U);
}

TEST(Coordinator, a_spare_that_leaves_a_job_that_stops_is_stopped_alone) {
  CoordinatorOptions options = options_of(1, 3);
  options.wanted_nodes = 2;
  Job job(options);
  job.place(2);
  job.join(2, true);
  job.send(0, Leave{143});
  EXPECT_EQ(count<StopJob>(job.send(1, Leave{143})), 2U);
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 1U);
}

TEST(Coordinator, a_job_that_stops_does_not_grow) {
  Job job(1, 2);
  job.join(0, true);
  job.pass(30s);
  job.send(0, Leave{143});
  EXPECT_EQ(count<Regroup>(job.join(1, true)), 0U);
}

TEST(Coordinator, one_node_alone_stops_at_once) {
  Job job(1);
  job.place(1);
  EXPECT_EQ(count<StopJob>(job.send(0, Leave{143})), 1U);
}

TEST(Coordinator, a_code_that_is_no_stop_counts_as_sigterm) {
  Job job(1);
  job.place(1);
  EXPECT_EQ(sent<StopJob>(job.send(0, Leave{7}))[0].second.code, 143);
}

TEST(Coordinator, places_no_group_once_the_job_stops) {
  Job job(1, 2);
  job.place(2);
  job.send(0, Leave{143});
  job.send(1, Leave{143});
  // A node that ends while it leaves breaks nothing.
  EXPECT_EQ(count<CutGroup>(job.drop(1)), 0U);
  job.join(1, Join{1, 0, true}, 2, 8);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  EXPECT_EQ(count<Assignment>(job.pass(400s)), 0U);
  EXPECT_EQ(count<EndJob>(job.pass(400s)), 0U);
}

TEST(Coordinator, a_leaving_node_without_a_group_is_stopped_at_once) {
  Job job(2, 3);
  job.join(0, true);
  job.join(1, true);
  const Outputs outputs = job.send(1, Leave{143});
  ASSERT_EQ(count<StopJob>(outputs), 1U);
  EXPECT_EQ(sent<StopJob>(outputs)[0].first, job.connections[1]);
  EXPECT_EQ(count<Assignment>(job.join(2, false)), 0U);
  EXPECT_EQ(count<Assignment>(job.ready(2)), 0U);
  EXPECT_EQ(count<Assignment>(job.pass(30s)), 2U);
  EXPECT_THAT(job.state.members, ElementsAre(0, 2));
}

TEST(Coordinator, the_job_stops_when_all_leave_without_a_group) {
  Job job(2);
  job.join(0, true);
  job.join(1, false);
  job.send(0, Leave{143});
  EXPECT_EQ(count<StopJob>(job.send(1, Leave{143})), 1U);
  job.drop(0);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.join(1, Join{1, 0, true}, 2, 8)), 0U);
}

TEST(Coordinator, one_that_comes_and_leaves_before_node_0_does_not_stop_the_job) {
  Job job(2);
  job.join(1, true);
  job.send(1, Leave{143});
  job.drop(1);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.join(1, Join{1, 0, true}, 2, 8)), 2U);
}

// After a machine has slept for a moment, all nodes are lost, and another node leaves before node 0 is heard again.
TEST(Coordinator, one_that_leaves_while_node_0_is_lost_does_not_stop_the_job) {
  Job job(2);
  job.join(0);
  job.join(1);
  job.drop(0);
  job.send(1, Leave{143});
  job.drop(1);
  job.join(0, true);
  EXPECT_EQ(count<Assignment>(job.join(1, true)), 2U);
}

TEST(Coordinator, who_was_lost_when_the_job_was_stopped_is_told_when_it_is_back) {
  Job job(3);
  job.place(3);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.drop(2);
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(0)}});
  job.send(0, Leave{143});
  job.send(1, Leave{143});
  const auto stops = sent<StopJob>(job.join(2, true));
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_EQ(stops[0].second.code, 143);
}

TEST(Coordinator, a_spare_node_that_leaves_is_stopped_at_once) {
  CoordinatorOptions options = options_of(1, 3);
  options.wanted_nodes = 2;
  Job job(options);
  job.place(2);
  job.join(2, true);
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 1U);
  EXPECT_EQ(count<Regroup>(job.pass(10s)), 0U);
  job.join(2, Join{1, 0, false}, 2, 8);
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 1U);
  EXPECT_EQ(count<Regroup>(job.pass(10s)), 0U);
}

TEST(Coordinator, a_node_that_leaves_while_the_group_leaves_together_goes_with_it) {
  Job job(1, 4);
  job.join(0, true);
  job.join(1, true);
  job.join(2, true);
  job.pass(30s);
  job.join(3, true);
  const Outputs outputs = job.send(1, Leave{143});
  ASSERT_EQ(count<Regroup>(outputs), 1U);
  EXPECT_TRUE(sent<Regroup>(outputs)[0].second.leaving);
  // Its workers wait already: there is nothing to leave.
  job.ready(2);
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 1U);
  EXPECT_EQ(count<Assignment>(job.ready(0)), 2U);
  EXPECT_THAT(job.state.members, ElementsAre(0, 3));
}

TEST(Coordinator, a_group_that_breaks_stops_the_workers_of_who_was_leaving) {
  Job job(2, 3);
  job.place(3);
  job.send(2, Leave{143});
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(0)}});
  const Outputs outputs = job.send(2, Heartbeat{{beat_at(0)}});
  ASSERT_EQ(count<StopJob>(outputs), 1U);
  EXPECT_EQ(sent<StopJob>(outputs)[0].first, job.connections[2]);
  EXPECT_EQ(count<Regroup>(job.pass(10s)), 0U);
}

TEST(Coordinator, a_node_that_leaves_says_so_again_when_it_joins_again) {
  Job job(2, 3);
  job.place(3);
  job.join(2, Join{1, generation(1), true, 143});
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat_at(0)}});
  EXPECT_EQ(count<StopJob>(job.send(2, Heartbeat{{beat_at(0)}})), 1U);
  job.ready(0);
  EXPECT_EQ(count<Assignment>(job.ready(1)), 2U);
}

// ---- the end ----

TEST(Coordinator, complete_for_one_is_complete_for_all) {
  Job job(3);
  job.place(3);
  const Outputs outputs = job.send(1, NodeDone{});
  const auto ends = sent<EndJob>(outputs);
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_EQ(ends[0].second.code, 0);
  // Also for one whose worker failed at the very end, and for one that was away.
  EXPECT_EQ(count<EndJob>(job.send(2, NodeFailed{1, "a crash", true})), 0U);
  EXPECT_EQ(count<EndJob>(job.join(2, true)), 1U);
  EXPECT_EQ(count<Assignment>(job.pass(60s)), 0U);
}

TEST(Coordinator, shows_who_is_done) {
  Job job(2);
  job.place(2);
  job.send(1, NodeDone{});
  EXPECT_FALSE(job.state.nodes.at(0).done);
  EXPECT_TRUE(job.state.nodes.at(1).done);
  job.join(1, Join{1, 0, false}, 2, 8);
  EXPECT_FALSE(job.state.nodes.at(1).done);
}

TEST(Coordinator, a_node_that_was_done_elsewhere_completes_the_job) {
  Job job(2);
  job.join(0, true);
  EXPECT_EQ(count<EndJob>(job.join(1, Join{1, 0, false, 0, true})), 2U);
}

TEST(Coordinator, a_failure_for_good_ends_the_job_and_names_the_node) {
  Job job(2);
  job.place(2);
  const Outputs outputs = job.send(1, NodeFailed{3, "no data", true});
  ASSERT_EQ(count<EndJob>(outputs), 2U);
  EXPECT_EQ(sent<EndJob>(outputs)[0].second.code, 3);
  EXPECT_EQ(sent<EndJob>(outputs)[0].second.message, "node 1 (host1): no data");
}

// The agent of a new pod knows of no commit; the coordinator does.
TEST(Coordinator, an_error_of_the_input_is_final_only_before_the_first_commit) {
  const auto fail_after = [](const auto& prepare, int code, const std::string& message = "stale file handle") {
    Job job(2);
    job.place(2);
    prepare(job);
    return job.send(1, NodeFailed{code, message, true});
  };
  const auto nothing = [](Job&) {};
  const auto step = [](Job& job) { job.send(0, Heartbeat{{beat_at(1)}}); };
  const auto checkpoint = [](Job& job) { job.send(0, CheckpointNews{7}); };
  const auto survivor = [](Job& job) { job.join(0, Join{.nproc = 1, .broken_before = broken_before()}, 2, 8); };
  for (const int code : {2, 3}) {
    EXPECT_EQ(count<EndJob>(fail_after(nothing, code)), 2U) << code;
    for (const Outputs& outputs : {fail_after(step, code), fail_after(checkpoint, code), fail_after(survivor, code)}) {
      EXPECT_EQ(count<EndJob>(outputs), 0U) << code;
      EXPECT_EQ(count<Refused>(outputs), 1U) << "so that the node does not wait for the end of the job";
      EXPECT_THAT(notes(outputs), HasSubstr("stale file handle"));
    }
  }
  EXPECT_EQ(count<EndJob>(fail_after(step, 5)), 2U);
  EXPECT_EQ(count<EndJob>(fail_after(step, 2, "ConfigurationChanged: --lr is 0.1")), 2U);
}

// An agent of an earlier version calls its crash loop final.
TEST(Coordinator, a_crash_loop_of_one_node_does_not_end_the_job) {
  for (const int code : {1, 4, 11, 12, 13, 134, 137, 139}) {
    Job job(2);
    job.place(2);
    const Outputs outputs = job.send(1, NodeFailed{code, "crash loop", true});
    EXPECT_EQ(count<EndJob>(outputs), 0U) << code;
    EXPECT_TRUE(closes(outputs, job.connections[1])) << code;
  }
}

TEST(Coordinator, one_node_alone_is_not_named) {
  Job job(1);
  job.place(1);
  EXPECT_EQ(sent<EndJob>(job.send(0, NodeFailed{3, "no data", true}))[0].second.message, "no data");
}

TEST(Coordinator, nobody_is_cut_after_the_end) {
  Job job(3);
  job.place(3);
  job.send(1, NodeDone{});
  EXPECT_EQ(count<CutGroup>(job.drop(1)), 0U);
  EXPECT_EQ(count<CutGroup>(job.send(2, Broken{generation(1), 2, "SignalKILL", ""})), 0U);
  EXPECT_EQ(count<StopJob>(job.send(2, Leave{143})), 0U);
}

TEST(Coordinator, node_0_may_leave_when_all_have_heard_the_end_and_gone) {
  Job job(3);
  job.place(3);
  EXPECT_FALSE(may_leave(job.state, job.now));
  job.send(0, NodeDone{});
  EXPECT_FALSE(may_leave(job.state, job.now));
  job.drop(1);
  EXPECT_FALSE(may_leave(job.state, job.now));
  job.drop(2);
  EXPECT_TRUE(may_leave(job.state, job.now));
}

TEST(Coordinator, node_0_waits_for_a_lost_member_that_has_not_heard_the_end) {
  Job job(2);
  job.place(2);
  job.drop(1);
  job.send(0, NodeDone{});
  EXPECT_FALSE(may_leave(job.state, job.now + 29s));
  EXPECT_TRUE(may_leave(job.state, job.now + 30s));
  EXPECT_EQ(count<EndJob>(job.join(1, true)), 1U);
  job.drop(1);
  EXPECT_TRUE(may_leave(job.state, job.now));
}

TEST(Coordinator, node_0_that_came_back_to_a_complete_job_waits_for_the_others) {
  CoordinatorOptions options = options_of(2, 2);
  options.dns_ttl = 20s;
  Job job(options);
  job.join(0, Join{1, 0, false, 0, true});
  EXPECT_FALSE(may_leave(job.state, job.now + 49s));
  EXPECT_TRUE(may_leave(job.state, job.now + 50s));
  Job alone(1);
  alone.join(0, Join{1, 0, false, 0, true});
  EXPECT_TRUE(may_leave(alone.state, alone.now));
}

TEST(Coordinator, the_end_ends_a_leaving_together) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  job.join(2, true);
  job.send(0, NodeDone{});
  EXPECT_EQ(count<CutGroup>(job.pass(60s)), 0U);
  EXPECT_GT(*job.state.deadline, job.now);
}

TEST(Coordinator, nobody_waits_for_the_lost_after_a_failure) {
  Job job(3);
  job.place(3);
  job.drop(1);
  job.send(0, NodeFailed{3, "no data", true});
  EXPECT_FALSE(may_leave(job.state, job.now));
  EXPECT_TRUE(may_leave(job.state, job.now + kHeartbeatTimeout));
  job.drop(2);
  EXPECT_TRUE(may_leave(job.state, job.now));
}

// Ranks of a program end a group in the middle of a step. One sees that another has left before it is told to leave.
TEST(Coordinator, a_program_s_group_that_leaves_together_has_lost_nobody) {
  CoordinatorOptions options = options_of(2, 3);
  options.ranks_keep_state = false;
  Job job(options);
  job.join(0, true);
  job.join(1, true);
  job.pass(options.rejoin_timeout + options.dns_ttl);
  ASSERT_EQ(job.state.members.size(), 2U);
  job.join(2, true);
  EXPECT_EQ(count<CutGroup>(job.send(1, Broken{job.state.placed, -1, "PeerLost", ""})), 0U);
  job.ready(0);
  EXPECT_EQ(news<GroupBroke>(job.ready(1)).at(0).cause, "Join");
}

// ---- groups that come to nothing ----

void lose_each_other(Job& job) {
  job.send(1, Broken{job.state.placed, -1, "PeerLost", "gloo: connect to 10.0.0.7:41234 timed out"});
  job.ready(0);
}

// The number of placements that follow when both nodes are ready again.
size_t placements_of(Job& job) { return count<Assignment>(job.ready(1)); }

TEST(Coordinator, a_group_whose_ranks_lose_each_other_again_and_again_is_tried_with_growing_pauses) {
  Job job(2);
  job.place(2);
  lose_each_other(job);
  EXPECT_EQ(placements_of(job), 2U);  // at once: a worker may have died, and the report may be on its way
  for (const auto pause : {1s, 2s, 4s, 8s, 16s, 30s, 30s}) {
    lose_each_other(job);
    EXPECT_EQ(placements_of(job), 0U);
    EXPECT_EQ(count<Assignment>(job.pass(pause - 10ms)), 0U) << pause.count();
    EXPECT_EQ(count<Assignment>(job.pass(10ms)), 2U) << pause.count();
  }
}

// Ranks are killed sooner after each other than heartbeats come.
TEST(Coordinator, a_group_that_has_stepped_before_its_first_heartbeat_has_not_come_to_nothing) {
  Job job(2);
  job.place(2);
  for (int64_t step = 1; step < 9; ++step) {
    WorkerBeat survivor = beat_at(step);
    survivor.generation = job.state.placed;
    job.send(0, Broken{job.state.placed, 0, "SignalKILL", ""});
    job.send(0, Heartbeat{{beat_at(0)}});
    job.send(1, Heartbeat{{survivor}});
    job.ready(0);
    EXPECT_EQ(placements_of(job), 2U) << step;
  }
}

// Here rank 0 survives, so its agent says with the break what it holds: the first that it says of this group.
TEST(Coordinator, a_group_whose_rank_0_has_stepped_before_its_first_heartbeat_has_not_come_to_nothing) {
  Job job(2);
  job.place(2);
  for (int64_t step = 3; step < 30; step += 3) {
    WorkerBeat survivor = beat_at(step);
    survivor.activity = Activity::kTraining;
    survivor.generation = job.state.placed;
    job.send(0, Heartbeat{{survivor}});
    job.send(1, Broken{job.state.placed, 1, "SignalKILL", ""});
    job.send(1, Heartbeat{{beat_at(0)}});
    job.ready(0);
    EXPECT_EQ(placements_of(job), 2U) << step;
  }
}

// All ranks, and with them the steps up to 85, are lost. What the next groups make is progress, although it is less.
// A checkpoint that it did not go on from says nothing of its steps.
TEST(Coordinator, a_group_that_makes_lost_steps_again_has_not_come_to_nothing) {
  Job job(2);
  job.place(2);
  job.send(0, CheckpointNews{100});
  for (int64_t step : {85, 3, 6, 9, 12, 15}) {
    const uint64_t placed = job.state.placed;
    WorkerBeat shown = beat_at(step);
    shown.generation = placed;
    for (const int node : {0, 1}) job.send(node, Heartbeat{{shown}});
    job.send(1, Broken{placed, 1, "SignalKILL", ""});
    if (step == 85) job.send(0, Broken{placed, 0, "SignalKILL", ""});
    job.ready(0);
    EXPECT_EQ(placements_of(job), 2U) << step;
  }
}

TEST(Coordinator, a_group_whose_ranks_hold_only_what_they_have_restored_has_come_to_nothing) {
  Job job(2);
  job.place(2);
  for (int groups = 0; groups < 3; ++groups) {
    WorkerBeat restored = beat_at(200);
    restored.generation = job.state.placed;
    job.send(1, Broken{job.state.placed, 1, "Crash", ""});
    for (const int node : {0, 1}) job.send(node, Heartbeat{{restored}});
    job.ready(0);
    EXPECT_EQ(placements_of(job), groups < 2 ? 2U : 0U) << groups;
  }
}

TEST(Coordinator, groups_that_come_to_nothing_end_the_job_with_the_reason) {
  Job job(2);
  job.place(2);
  std::optional<EndJob> end;
  const TimePoint began = job.now;
  for (int groups = 0; groups < 100 && !end; ++groups) {
    lose_each_other(job);
    job.ready(1);
    const auto ends = sent<EndJob>(job.pass(10s));
    if (!ends.empty()) end = ends[0].second;
  }
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 10);
  EXPECT_THAT(end->message, HasSubstr("groups in a row broke before their first step, within 300 s"));
  EXPECT_THAT(end->message, HasSubstr("10.0.0.7:41234 timed out"));
  EXPECT_THAT(end->message, HasSubstr("do the nodes reach each other on all ports"));
  EXPECT_LE(job.now - began, 311s);
}

TEST(Coordinator, no_group_came_to_nothing_in_the_time_that_the_coordinator_did_not_run) {
  Job job(2);
  job.place(2);
  for (int groups = 0; groups < 2; ++groups) {
    lose_each_other(job);
    job.ready(1);
    job.pass(2s);
  }
  lose_each_other(job);
  job.ready(1);
  job.now += 400s;
  const Outputs outputs = job.handle(CoordinatorTick{});
  EXPECT_EQ(count<EndJob>(outputs), 0U);
  EXPECT_EQ(count<Assignment>(outputs) + count<Assignment>(job.pass(10s)), 2U);
}

// If a node is missing, that is the reason that is given, whatever happened before.
TEST(Coordinator, groups_that_came_to_nothing_do_not_hide_who_is_missing) {
  for (const int groups_without_step : {1, 2}) {
    Job job(2);
    job.place(2);
    for (int groups = 0; groups < groups_without_step; ++groups) {
      lose_each_other(job);
      if (groups + 1 < groups_without_step) job.ready(1);
    }
    const auto ends = sent<EndJob>(job.pass(301s));
    ASSERT_FALSE(ends.empty()) << groups_without_step;
    EXPECT_THAT(ends[0].second.message, HasSubstr("no group could be formed for 300 s")) << groups_without_step;
    EXPECT_THAT(ends[0].second.message, HasSubstr("node 1 (its workers are not ready)")) << groups_without_step;
  }
}

TEST(Coordinator, a_group_that_has_done_a_step_did_not_come_to_nothing) {
  Job job(2);
  job.place(2);
  for (int groups = 0; groups < 50; ++groups) {
    WorkerBeat beat;
    beat.activity = Activity::kTraining;
    beat.generation = job.state.placed;
    for (const int64_t step : {groups, groups + 1}) {
      beat.step = step;
      job.send(0, Heartbeat{{beat}});
    }
    lose_each_other(job);
    ASSERT_EQ(placements_of(job), 2U) << groups;
    job.pass(10s);
  }
  EXPECT_FALSE(job.state.end);
}

TEST(Coordinator, only_groups_in_a_row_came_to_nothing) {
  Job job(2);
  job.place(2);
  lose_each_other(job);
  ASSERT_EQ(placements_of(job), 2U);
  WorkerBeat beat;
  beat.activity = Activity::kTraining;
  beat.generation = job.state.placed;
  for (const int64_t step : {4, 5}) {
    beat.step = step;
    job.send(0, Heartbeat{{beat}});
  }
  lose_each_other(job);
  ASSERT_EQ(placements_of(job), 2U);
  lose_each_other(job);
  EXPECT_EQ(placements_of(job), 2U) << "it is the first one again";
}

TEST(Coordinator, a_step_counts_for_its_own_group_only) {
  Job job(2);
  job.place(2);
  WorkerBeat beat;
  beat.activity = Activity::kTraining;
  beat.generation = job.state.placed;
  for (const int64_t step : {4, 5}) {
    beat.step = step;
    job.send(0, Heartbeat{{beat}});
  }
  for (const size_t placements : {2U, 2U, 0U}) {  // the second and the third came to nothing
    lose_each_other(job);
    EXPECT_EQ(placements_of(job), placements);
  }
}

TEST(Coordinator, one_group_that_came_to_nothing_is_no_reason_to_end) {
  Job job(2);
  job.place(2);
  lose_each_other(job);
  job.pass(299'900ms);
  job.now += 200ms;
  EXPECT_EQ(placements_of(job), 2U);
}

TEST(Coordinator, a_placement_tells_the_ranks_of_all_wanted_nodes) {
  Job job(1, 2);
  job.join(0, true);
  const auto placements = sent<Assignment>(job.pass(30s));
  ASSERT_EQ(placements.size(), 1U);
  EXPECT_EQ(placements[0].second.nnodes, 1);
  EXPECT_EQ(placements[0].second.declared_world_size, 2);
}

TEST(Coordinator, a_group_that_was_left_together_did_not_come_to_nothing) {
  Job job(2, 3);
  job.state.options.wanted_nodes = 2;
  job.place(2);
  lose_each_other(job);
  ASSERT_EQ(placements_of(job), 2U);
  job.pass(400s);  // longer than rendezvous_timeout
  job.handle(SetWantedNodes{3});
  job.join(2, true);
  job.all_ready(2);
  EXPECT_FALSE(job.state.end) << job.state.end->message;
  EXPECT_EQ(job.state.group, GroupState::kPlaced);
}

TEST(Coordinator, a_state_that_a_rank_receives_is_no_step) {
  Job job(2);
  job.place(2);
  for (int groups = 0; groups < 2; ++groups) {
    WorkerBeat beat;
    beat.generation = job.state.placed;
    for (const int64_t step : {0, 50}) {
      beat.activity = step == 0 ? Activity::kRestoring : Activity::kTraining;
      beat.step = step;
      job.send(0, Heartbeat{{beat}});
    }
    lose_each_other(job);
    EXPECT_EQ(placements_of(job), groups == 0 ? 2U : 0U);
  }
}

// A connection that closes at each transfer of the state, a worker that dies in it, a node that is never ready in time.
TEST(Coordinator, groups_come_to_nothing_whatever_they_break_of) {
  const auto of_a_worker = [](Job& job) {
    job.send(1, Broken{job.state.placed, 1, "SignalKILL", "killed"});
    job.ready(0);
    return job.ready(1);
  };
  const auto late_told = [](Job& job) {
    lose_each_other(job);
    job.send(1, Broken{job.state.placed, 1, "SignalKILL", "killed"});
    return job.ready(1);
  };
  const auto of_readiness = [](Job& job) {
    job.send(1, Broken{job.state.placed, -1, kNotReady, "its workers were not ready"});
    job.ready(0);
    return job.ready(1);
  };
  const auto of_a_node = [](Job& job) {
    job.drop(1);
    job.ready(0);
    return job.join(1, true);
  };
  for (const std::function<Outputs(Job&)>& breaks :
       std::vector<std::function<Outputs(Job&)>>{of_a_worker, late_told, of_readiness, of_a_node}) {
    Job job(2);
    job.place(2);
    EXPECT_EQ(count<Assignment>(breaks(job)), 2U);
    EXPECT_EQ(count<Assignment>(breaks(job)), 0U);
    EXPECT_EQ(count<Assignment>(job.pass(1s)), 2U);
    std::optional<EndJob> end;
    for (int groups = 0; groups < 100 && !end; ++groups) {
      breaks(job);
      if (const auto ends = sent<EndJob>(job.pass(10s)); !ends.empty()) end = ends[0].second;
    }
    ASSERT_TRUE(end);
    EXPECT_EQ(end->code, 10);
    EXPECT_THAT(end->message, HasSubstr("groups in a row broke before their first step"));
    EXPECT_THAT(end->message, Not(HasSubstr("on all ports")));
  }
}

// ---- store, checkpoints, beats ----

StoreCall get_of(uint64_t generation, int local_rank = 0) {
  StoreRequest request;
  request.id = 5;
  request.generation = generation;
  return {local_rank, request};
}

TEST(Coordinator, a_store_call_of_the_placed_group_is_asked) {
  Job job(2);
  job.join(0, Join{.nproc = 2, .ready = true});
  job.join(1, Join{.nproc = 2, .ready = true});
  const Outputs outputs = job.send(1, get_of(generation(1), 1));
  ASSERT_EQ(outputs.size(), 1U);
  const auto& ask = std::get<AskStore>(outputs[0]);
  EXPECT_EQ(ask.connection, job.connections[1]);
  EXPECT_EQ(ask.local_rank, 1);
  EXPECT_EQ(ask.request.id, 5U);
}

TEST(Coordinator, a_store_call_of_any_other_group_is_stale) {
  Job job(1, 3);
  job.join(0, true);
  job.join(1, true);
  job.pass(30s);
  job.join(2, false);
  const auto expect_stale = [](const Outputs& outputs) {
    ASSERT_EQ(count<StoreAnswerTo>(outputs), 1U);
    const StoreAnswerTo answer = sent<StoreAnswerTo>(outputs)[0].second;
    EXPECT_EQ(answer.reply.status, StoreStatus::kStale);
    EXPECT_EQ(answer.reply.id, 5U);
    EXPECT_EQ(answer.local_rank, 0);
  };
  expect_stale(job.send(1, get_of(generation(0))));
  expect_stale(job.send(2, get_of(generation(1))));
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  expect_stale(job.send(1, get_of(generation(1))));
}

TEST(Coordinator, a_store_call_of_a_worker_that_the_node_has_not_is_refused) {
  Job job(2);
  job.place(2);
  for (const int local_rank : {-1, 1, 1'000'000}) {
    const Outputs outputs = job.send(1, get_of(generation(1), local_rank));
    ASSERT_EQ(outputs.size(), 1U) << local_rank;
    ASSERT_EQ(count<StoreAnswerTo>(outputs), 1U) << local_rank;
    const StoreAnswerTo answer = sent<StoreAnswerTo>(outputs)[0].second;
    EXPECT_EQ(answer.reply.status, StoreStatus::kInvalid);
    EXPECT_THAT(answer.reply.message, HasSubstr("the node's are 0 to 0"));
  }
}

TEST(Coordinator, news_of_a_checkpoint_go_to_all_others_once) {
  Job job(3);
  job.place(3);
  const Outputs outputs = job.send(0, CheckpointNews{100});
  const auto news = sent<CheckpointNews>(outputs);
  ASSERT_EQ(news.size(), 2U);
  EXPECT_EQ(news[0].first, job.connections[1]);
  EXPECT_EQ(news[0].second.step, 100);
  EXPECT_THAT(job.send(1, CheckpointNews{100}), IsEmpty());
}

TEST(Coordinator, beats_once_in_an_interval_for_all) {
  Job job(2);
  job.place(2);
  const Outputs outputs = job.pass(3s);
  EXPECT_EQ(count<CoordinatorBeat>(outputs), 6U);
}

TEST(Coordinator, beats_once_in_an_interval_however_often_it_is_asked) {
  Job job(2);
  job.place(2);
  EXPECT_EQ(count<CoordinatorBeat>(job.pass(kBeatInterval)), 2U);
  job.now += 1ms;
  EXPECT_EQ(count<CoordinatorBeat>(job.handle(CoordinatorTick{})), 0U);
}

TEST(Coordinator, without_a_group_the_job_stops_when_all_that_are_there_leave) {
  Job job(2);
  job.join(0);
  job.join(1);
  job.send(0, Leave{143});
  EXPECT_EQ(job.state.stop_code, 0);
  job.send(1, Leave{143});
  EXPECT_EQ(job.state.stop_code, 143);
}

WorkerBeat beat_of(double seconds_unchanged, Phase phase, uint64_t in_generation = generation(1)) {
  WorkerBeat beat;
  beat.activity = Activity::kTraining;
  beat.phase = phase;
  beat.seconds_unchanged = seconds_unchanged;
  beat.generation = in_generation;
  return beat;
}

TEST(Coordinator, a_hanging_worker_is_killed_once) {
  Job job(2);
  job.place(2);
  job.send(0, Heartbeat{{beat_of(600, Phase::kGradSync)}});
  EXPECT_EQ(count<KillWorker>(job.send(1, Heartbeat{{beat_of(600, Phase::kForward)}})), 0U);
  const Outputs outputs = job.pass(2s);
  EXPECT_EQ(count<CutGroup>(outputs), 0U) << "it is clear who hangs";
  const auto kills = sent<KillWorker>(outputs);
  ASSERT_EQ(kills.size(), 1U);
  EXPECT_EQ(kills[0].first, job.connections[1]);
  EXPECT_EQ(kills[0].second.local_rank, 0);
  EXPECT_THAT(kills[0].second.message, HasSubstr("rank 1 (node 1)"));
  EXPECT_THAT(notes(outputs), HasSubstr("rank 1 (node 1)"));
  // In the next group the worker is judged anew.
  job.send(1, Broken{generation(1), 1, "Timeout", ""});
  job.all_ready(2);
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward, generation(2))}});
  EXPECT_EQ(count<KillWorker>(job.pass(1s)), 1U);
}

TEST(Coordinator, who_hangs_in_its_device_while_its_group_is_broken_is_killed) {
  Job job(2);
  job.place(2);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.ready(0);
  job.send(1, Heartbeat{{beat_of(600, Phase::kDevice)}});
  const Outputs outputs = job.pass(1s);
  EXPECT_EQ(count<CutGroup>(outputs), 0U) << "there is no group to leave";
  const auto kills = sent<KillWorker>(outputs);
  ASSERT_EQ(kills.size(), 1U);
  EXPECT_EQ(kills[0].first, job.connections[1]);
}

void all_stuck(Job& job, uint64_t in_generation, int64_t step) {
  WorkerBeat beat = beat_of(600, Phase::kGradSync, in_generation);
  beat.step = step;
  for (const int node : {0, 1}) job.send(node, Heartbeat{{beat}});
}

// If all were killed, all states would be lost because one worker hangs.
TEST(Coordinator, a_group_that_is_stuck_in_a_collective_is_broken_before_anybody_is_killed) {
  Job job(2);
  job.place(2);
  all_stuck(job, generation(1), 7);
  const Outputs outputs = job.pass(2s);
  EXPECT_EQ(count<KillWorker>(outputs), 0U);
  const auto cuts = sent<CutGroup>(outputs);
  ASSERT_EQ(cuts.size(), 2U);
  EXPECT_EQ(cuts[0].second.cause, "TimedOut");
  EXPECT_THAT(cuts[0].second.message, HasSubstr("in a collective"));
  // After further steps a group may be freed in this way again.
  job.all_ready(2);
  all_stuck(job, generation(2), 8);
  EXPECT_EQ(count<CutGroup>(job.pass(2s)), 2U);
  // A group that has made no step since then is not freed: its workers are killed.
  job.all_ready(2);
  all_stuck(job, generation(3), 8);
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 2U);
}

TEST(Coordinator, who_sits_in_its_device_when_the_others_have_left_is_killed) {
  Job job(2);
  job.place(2);
  job.send(0, Heartbeat{{beat_of(600, Phase::kGradSync)}});
  job.send(1, Heartbeat{{beat_of(600, Phase::kDevice)}});
  EXPECT_EQ(count<CutGroup>(job.pass(1s)), 2U);
  WorkerBeat waits = beat_of(1, Phase::kWaiting);
  waits.activity = Activity::kAwaiting;
  job.send(0, Heartbeat{{waits}});
  job.send(1, Heartbeat{{beat_of(602, Phase::kDevice)}});
  const auto kills = sent<KillWorker>(job.pass(1s));
  ASSERT_EQ(kills.size(), 1U);
  EXPECT_EQ(kills[0].first, job.connections[1]);
  EXPECT_THAT(kills[0].second.message, HasSubstr("waiting for its device"));
}

TEST(Coordinator, a_worker_that_hangs_when_its_group_is_gone_is_killed) {
  Job job(2);
  job.place(2);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  WorkerBeat waits = beat_of(900, Phase::kWaiting);
  waits.activity = Activity::kAwaiting;
  job.send(0, Heartbeat{{waits}});
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward)}});
  const auto kills = sent<KillWorker>(job.pass(2s));
  ASSERT_EQ(kills.size(), 1U);
  EXPECT_EQ(kills[0].first, job.connections[1]);
  // Whatever coordinator had placed it; and again when it was not heard.
  job.join(1, Join{1, generation(1, kAttempt - 1), false});
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward, generation(1, kAttempt - 1))}});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 1U);
}

// Node 0 waits for node 1, whose worker has shown no progress for `seconds_unchanged`.
void keep_waiting(Job& job, double seconds_unchanged) {
  job.place(2);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.send(1, Heartbeat{{beat_of(seconds_unchanged, Phase::kForward)}});
}

// ---- long work while the others wait ----

struct LongWork {
  const char* name;
  Activity activity;
  Phase phase;
  bool is_waited_for;
};
constexpr std::array kLongWork{
    LongWork{"its data, before its first group", Activity::kLoading, Phase::kStartup, true},
    LongWork{"an evaluation", Activity::kEvaluating, Phase::kValidation, true},
    LongWork{"an evaluation, which waits for the others' figures", Activity::kEvaluating, Phase::kWaiting, false},
    LongWork{"a checkpoint that it reads", Activity::kRestoring, Phase::kStartup, true},
    LongWork{"a state that it is to receive", Activity::kRestoring, Phase::kWaiting, false},
    LongWork{"the last checkpoint", Activity::kCheckpointing, Phase::kCheckpointStall, true},
    LongWork{"a checkpoint between two steps", Activity::kTraining, Phase::kCheckpointStall, true},
    LongWork{"a step of a group that is no more", Activity::kTraining, Phase::kForward, false},
    LongWork{"the forming of a group", Activity::kForming, Phase::kOther, false},
    LongWork{"an assignment", Activity::kAwaiting, Phase::kWaiting, false},
};

WorkerBeat beat_of(const LongWork& work, std::chrono::seconds unchanged) {
  WorkerBeat beat = beat_of(static_cast<double>(unchanged.count()), work.phase);
  beat.activity = work.activity;
  if (work.activity == Activity::kLoading) beat.generation = 0;
  return beat;
}

// Node 0 waits for node 1, which was in a group with it.
void break_and_wait(Job& job) {
  job.place(2);
  job.send(0, Broken{generation(1), 0, "SignalKILL", ""});
  job.ready(0);
}

// An evaluation of six minutes, a checkpoint of many gigabytes: five minutes of waiting are no reason to end the job.
TEST(Coordinator, waits_for_a_member_that_shows_progress_in_long_work_however_long_it_takes) {
  for (const LongWork& work : kLongWork) {
    Job job(2);
    break_and_wait(job);
    job.send(1, Heartbeat{{beat_of(work, 2s)}});
    const auto ends = sent<EndJob>(job.pass(299s));
    EXPECT_TRUE(ends.empty()) << work.name;
    EXPECT_EQ(count<EndJob>(job.pass(900s)) == 0, work.is_waited_for) << work.name;
    if (!work.is_waited_for) continue;
    EXPECT_EQ(count<Assignment>(job.ready(1)), 2U) << work.name;
  }
}

TEST(Coordinator, gives_up_when_the_progress_of_long_work_has_ended_for_as_long) {
  for (const LongWork& work : kLongWork) {
    if (!work.is_waited_for) continue;
    Job job(2);
    break_and_wait(job);
    job.send(1, Heartbeat{{beat_of(work, 0s)}});
    ASSERT_EQ(count<EndJob>(job.pass(500s)), 0U) << work.name;
    std::vector<std::pair<ConnectionId, EndJob>> ends;
    int unchanged = 0;
    for (; ends.empty() && unchanged < 400; ++unchanged) {
      job.send(1, Heartbeat{{beat_of(work, std::chrono::seconds(unchanged))}});
      ends = sent<EndJob>(job.pass(1s));
    }
    ASSERT_FALSE(ends.empty()) << work.name;
    EXPECT_NEAR(unchanged, 300, 3) << work.name;
    EXPECT_EQ(ends[0].second.code, 10);
    EXPECT_THAT(ends[0].second.message,
                HasSubstr("no group could be formed for 300 s after the last sign of progress"));
    EXPECT_THAT(ends[0].second.message, HasSubstr("node 1 (its workers are not ready)"));
  }
}

TEST(Coordinator, ignores_times_of_progress_that_make_no_sense) {
  for (const double unchanged : {std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300}) {
    Job job(2);
    break_and_wait(job);
    WorkerBeat beat = beat_of(unchanged, Phase::kValidation);
    beat.activity = Activity::kEvaluating;
    job.send(1, Heartbeat{{beat}});
    EXPECT_LE(job.state.worked_at, job.now);
  }
}

// With the default timeouts the job would end (rendezvous_timeout, 300 s) before a worker counts as hanging
// (stall_timeout, 600 s).
TEST(Coordinator, a_worker_that_keeps_the_others_waiting_is_killed_in_time_for_another_one_to_come) {
  Job job(2);
  keep_waiting(job, 500);
  EXPECT_EQ(count<KillWorker>(job.pass(238s)), 0U);  // they have not waited for long
  EXPECT_EQ(count<KillWorker>(job.pass(4s)), 1U);
}

TEST(Coordinator, a_worker_that_works_is_waited_for) {
  Job job(2);
  keep_waiting(job, 239);
  EXPECT_EQ(count<KillWorker>(job.pass(250s)), 0U);
}

TEST(Coordinator, a_group_that_has_stood_for_long_keeps_nobody_waiting) {
  Job job(2);
  job.place(2);
  job.send(1, Heartbeat{{beat_of(500, Phase::kForward)}});
  EXPECT_EQ(count<KillWorker>(job.pass(250s)), 0U);
}

TEST(Coordinator, a_short_stall_timeout_holds_in_a_long_wait_too) {
  CoordinatorOptions options = options_of(2, 2);
  options.stall_timeout = 20s;
  Job job(options);
  keep_waiting(job, 1);
  EXPECT_EQ(count<KillWorker>(job.pass(245s)), 0U);
  job.send(1, Heartbeat{{beat_of(20, Phase::kForward)}});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 1U);
}

TEST(Coordinator, a_short_wait_is_halved_for_the_hanging) {
  CoordinatorOptions options = options_of(2, 2);
  options.rendezvous_timeout = 40s;
  Job job(options);
  keep_waiting(job, 30);
  EXPECT_EQ(count<KillWorker>(job.pass(18s)), 0U);
  EXPECT_EQ(count<KillWorker>(job.pass(4s)), 1U);
}

TEST(Coordinator, a_worker_is_not_killed_for_the_beat_of_the_one_before_it) {
  Job job(2);
  job.place(2);
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward)}});
  job.send(1, Broken{generation(1), 1, "SignalKILL", ""});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 0U);
}

TEST(Coordinator, a_worker_in_a_collective_is_not_killed_for_a_peer_that_was_lost) {
  Job job(2);
  job.place(2);
  job.send(0, Heartbeat{{beat_of(600, Phase::kGradSync)}});
  job.drop(1);
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 0U);
}

TEST(Coordinator, a_worker_that_was_never_in_a_group_is_left_to_its_agent) {
  Job job(2);
  job.join(0, true);
  job.join(1, false);
  job.send(1, Heartbeat{{beat_of(900, Phase::kStartup, 0)}});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 0U);
}

TEST(Coordinator, a_beat_of_another_group_or_of_no_worker_of_the_node_blames_nobody) {
  Job job(2);
  job.place(2);
  WorkerBeat stray = beat_of(600, Phase::kForward);
  stray.local_rank = 1;
  job.send(0, Heartbeat{{stray}});
  EXPECT_TRUE(job.state.nodes.at(0).workers.empty()) << "/status would show a rank that does not exist";
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward, generation(0))}});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 0U);
  job.send(1, Heartbeat{{beat_of(600, Phase::kForward), stray}});
  EXPECT_EQ(count<KillWorker>(job.pass(2s)), 0U);
}

TEST(Coordinator, the_slowest_rank_is_known_and_forgotten_with_its_group) {
  Job job(2);
  job.place(2);
  for (int64_t step = 0; step <= 40; step += 10) {
    for (int node = 0; node < 2; ++node) {
      WorkerBeat beat = beat_of(0, Phase::kForward);
      beat.step = step;
      beat.busy_seconds = static_cast<double>(step) * (node == 1 ? 0.5 : 0.1);
      job.send(node, Heartbeat{{beat}});
    }
    job.pass(1s);
  }
  EXPECT_EQ(job.state.stragglers.slowest()->rank, 1);
  job.send(1, Broken{generation(1), 1, "Timeout", ""});
  job.all_ready(2);
  EXPECT_FALSE(job.state.stragglers.slowest());
}

}  // namespace
}  // namespace lockstep
