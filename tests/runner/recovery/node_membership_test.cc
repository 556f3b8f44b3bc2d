// A node's place in the group, and the coordinator that it follows. (node_workers_test.cc: the lives of its workers.)
#include "runner/recovery/node_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/runner/recovery/node_scenario.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr int kTicksMax = 2'000;

constexpr uint64_t generation_of(uint32_t counter, uint32_t attempt = 3) {
  return (uint64_t{attempt} << 32U) | counter;
}

// A node of two workers that has not found a coordinator yet.
class Scenario : public NodeScenario {
 public:
  Scenario() {
    coordinator_answers = false;
    first = handle(Started{});
  }

  NodeOutputs find_coordinator(uint64_t at = generation_of(0)) { return handle(CoordinatorFound{Welcome{at}}); }
  NodeOutputs place(uint32_t counter) {
    return receive(Assignment{.generation = generation_of(counter), .rank = 4, .world_size = 8, .address = ""});
  }
  // All workers wait for an assignment: they have read their data, or have left their group as they were told.
  NodeOutputs get_ready(const std::string& terms = "") {
    NodeOutputs all;
    for (int rank = 0; rank < state.options.nproc; ++rank) {
      append(all, handle(WorkerHello{rank, terms}));
      append(all, handle(WorkerLeft{rank, state.placed, kLeftCut, ""}));
    }
    return all;
  }
  NodeOutputs end_all(int code) {
    NodeOutputs all;
    for (int rank = 0; rank < state.options.nproc; ++rank) {
      const bool is_alive = state.workers[static_cast<size_t>(rank)].alive();
      if (is_alive) append(all, handle(WorkerEnded{.local_rank = rank, .pid = 1, .code = code}));
    }
    return all;
  }
  // A worker ends with an error that ends the job, as far as this node knows.
  NodeOutputs fail(int code = 5) { return handle(WorkerEnded{.local_rank = 1, .code = code, .message = "not finite"}); }
  void join_and_place() {
    find_coordinator();
    get_ready();
    place(1);
  }
  // With `beats`, the coordinator is heard before each tick.
  NodeOutputs pass(std::chrono::milliseconds time, bool beats) {
    NodeOutputs all;
    const TimePoint until = now + time;
    for (int ticks = 0; now < until; ++ticks) {
      if (ticks > kTicksMax) {
        ADD_FAILURE() << "it wants one tick after the other: its agent would spin";
        break;
      }
      now = std::min(until, std::max(now, state.deadline.value_or(until)));
      if (beats) receive(CoordinatorBeat{});
      append(all, handle(NodeTick{}));
    }
    return all;
  }
  // The code and the message with which the job has ended for this node.
  [[nodiscard]] std::optional<int> end_code() const {
    return state.job_ended ? std::optional(state.job_ended->code) : std::nullopt;
  }
  [[nodiscard]] std::string end_message() const { return state.job_ended ? state.job_ended->message : ""; }

  NodeOutputs first;

 private:
  static void append(NodeOutputs& all, const NodeOutputs& more) { all.insert(all.end(), more.begin(), more.end()); }
};

// ---- finding a coordinator ----

TEST(NodeMembership, begins_by_seeking) {
  Scenario node;
  EXPECT_NE(find<FindCoordinator>(node.first), nullptr);
  EXPECT_EQ(node.state.deadline, node.now + kBeatInterval);
}

TEST(NodeMembership, wants_to_look_when_its_search_is_over_and_no_beat_later) {
  Scenario node;
  node.get_ready();
  node.pass(299'500ms, false);
  EXPECT_EQ(node.state.deadline, TimePoint{1300s});
  node.pass(500ms, false);
  EXPECT_EQ(node.end_code(), 10);
}

TEST(NodeMembership, tells_the_terms_of_workers_that_are_ready) {
  Scenario node;
  EXPECT_EQ(sent<Join>(node.find_coordinator())->terms, "");
  EXPECT_EQ(sent<NodeReady>(node.get_ready("{}"))->terms, "{}");
  node.handle(CoordinatorLost{"reset"});
  EXPECT_EQ(sent<Join>(node.find_coordinator())->terms, "{}");
  node.place(1);
  node.handle(CoordinatorLost{"reset"});
  EXPECT_EQ(sent<Join>(node.find_coordinator(generation_of(1)))->terms, "");
}

TEST(NodeMembership, joins_the_coordinator_that_was_found) {
  Scenario node;
  const NodeOutputs outputs = node.find_coordinator(generation_of(5));
  ASSERT_TRUE(sent<Join>(outputs));
  EXPECT_EQ(sent<Join>(outputs)->nproc, 2);
  EXPECT_EQ(sent<Join>(outputs)->generation, generation_of(5));
  EXPECT_FALSE(sent<Join>(outputs)->ready);
  EXPECT_EQ(sent<Join>(outputs)->leaving_code, 0);
  EXPECT_FALSE(sent<Join>(outputs)->done);
}

TEST(NodeMembership, rejects_a_coordinator_of_an_older_attempt) {
  Scenario node;
  node.find_coordinator(generation_of(1, 3));
  node.handle(CoordinatorLost{"reset"});
  const NodeOutputs outputs = node.find_coordinator(generation_of(900, 2));
  EXPECT_FALSE(sent<Join>(outputs));
  EXPECT_NE(find<FindCoordinator>(outputs), nullptr);
  ASSERT_NE(find<Remark>(outputs), nullptr);
  EXPECT_THAT(find<Remark>(outputs)->line, HasSubstr("attempt 2, one of attempt 3"));
}

TEST(NodeMembership, goes_back_to_a_coordinator_of_the_same_attempt_whatever_its_counter) {
  Scenario node;
  node.join_and_place();
  node.handle(CoordinatorLost{"reset"});
  const NodeOutputs outputs = node.find_coordinator(generation_of(0));
  ASSERT_TRUE(sent<Join>(outputs));
  EXPECT_EQ(sent<Join>(outputs)->generation, generation_of(1));
}

TEST(NodeMembership, says_everything_again_to_the_next_coordinator) {
  Scenario node;
  node.get_ready();
  node.handle(CheckpointNews{70});
  const NodeOutputs outputs = node.find_coordinator();
  ASSERT_TRUE(sent<Join>(outputs));
  EXPECT_TRUE(sent<Join>(outputs)->ready);
  ASSERT_TRUE(sent<CheckpointNews>(outputs));
  EXPECT_EQ(sent<CheckpointNews>(outputs)->step, 70);
  node.handle(CoordinatorLost{"reset"});
  EXPECT_FALSE(sent<CheckpointNews>(node.find_coordinator()));
}

TEST(NodeMembership, says_to_each_coordinator_that_it_failed) {
  Scenario node;
  node.fail();
  for (int i = 0; i < 2; ++i) {
    const NodeOutputs outputs = node.find_coordinator();
    ASSERT_TRUE(sent<NodeFailed>(outputs));
    EXPECT_THAT(sent<NodeFailed>(outputs)->message, HasSubstr("not finite"));
    node.handle(CoordinatorLost{"reset"});
  }
}

TEST(NodeMembership, says_that_it_is_done_to_the_next_coordinator) {
  Scenario node;
  node.end_all(0);
  EXPECT_TRUE(sent<Join>(node.find_coordinator())->done);
}

TEST(NodeMembership, a_refusal_for_good_ends_the_node_with_2) {
  Scenario node;
  const NodeOutputs outputs = node.handle(CoordinatorRefused{Refused{"another token", false}});
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.end_code(), 2);
  EXPECT_EQ(node.end_message(), "another token");
  EXPECT_THAT(node.find_coordinator(), IsEmpty());
}

TEST(NodeMembership, the_text_of_a_refusal_cannot_forge_a_log_line) {
  const std::string forged = "x\nlockstep: the job is complete\x1b[2J";
  Scenario ended;
  ended.handle(CoordinatorRefused{Refused{forged, false}});
  EXPECT_EQ(ended.end_message(), "x lockstep: the job is complete?[2J");
  Scenario told;
  told.find_coordinator();
  told.receive(EndJob{3, forged});
  EXPECT_EQ(told.end_message(), "x lockstep: the job is complete?[2J");
  Scenario seeks_on;
  seeks_on.handle(CoordinatorRefused{Refused{forged, true}});
  EXPECT_EQ(seeks_on.state.last_problem, "refused: x lockstep: the job is complete?[2J");
}

TEST(NodeMembership, seeks_on_after_a_refusal_that_may_change) {
  Scenario node;
  node.join_and_place();
  const NodeOutputs outputs = node.handle(CoordinatorRefused{Refused{"there already", true}});
  EXPECT_NE(find<FindCoordinator>(outputs), nullptr);
  EXPECT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_FALSE(node.end_code());
  EXPECT_THAT(node.state.last_problem, HasSubstr("there already"));
}

int notes_with(const NodeOutputs& outputs, const std::string& text) {
  int count = 0;
  for (const NodeOutput& output : outputs) {
    const auto* const note = std::get_if<Remark>(&output);
    count += note != nullptr && note->line.find(text) != std::string::npos ? 1 : 0;
  }
  return count;
}

// Two agents have the same node rank: the log of the second one must say why it waits.
TEST(NodeMembership, says_once_that_it_is_refused) {
  Scenario node;
  const CoordinatorRefused refused{Refused{"there already", true}};
  EXPECT_EQ(notes_with(node.handle(refused), "refused: there already"), 1);
  EXPECT_EQ(notes_with(node.handle(refused), "refused"), 0);
  EXPECT_EQ(notes_with(node.handle(CoordinatorRefused{Refused{"too many greetings", true}}), "too many greetings"), 1);
  node.find_coordinator();
  EXPECT_EQ(notes_with(node.handle(refused), "refused: there already"), 1);
}

TEST(NodeMembership, says_what_to_do_when_a_clock_was_set_back) {
  Scenario counted;
  counted.find_coordinator(generation_of(1, 3));
  counted.handle(CoordinatorLost{"reset"});
  const NodeOutputs declined = counted.find_coordinator(generation_of(1, 2));
  EXPECT_EQ(notes_with(declined, "one of attempt 3 was seen before"), 1);
  EXPECT_EQ(notes_with(declined, "LOCKSTEP_POD_ATTEMPT"), 0);
  Scenario timed;
  timed.find_coordinator(generation_of(1, 1'800'000'000));
  timed.handle(CoordinatorLost{"reset"});
  EXPECT_EQ(notes_with(timed.find_coordinator(generation_of(1, 1'700'000'000)),
                       "start its agent with LOCKSTEP_POD_ATTEMPT=1800000001"),
            1);
}

TEST(NodeMembership, a_coordinator_that_was_found_has_the_heartbeat_timeout_for_its_first_word) {
  Scenario s;
  s.get_ready();
  s.pass(s.state.options.rendezvous_timeout - 1s, false);
  s.find_coordinator();
  s.pass(2s, false);
  EXPECT_FALSE(s.end_code());
  s.receive(CoordinatorBeat{});
  s.pass(s.state.options.heartbeat_timeout + 10s, true);
  EXPECT_FALSE(s.end_code());
  // A coordinator that never sends anything does not count as found.
  Scenario silent;
  silent.get_ready();
  silent.pass(silent.state.options.rendezvous_timeout - 1s, false);
  silent.find_coordinator();
  silent.pass(silent.state.options.heartbeat_timeout + 1s, false);
  EXPECT_TRUE(silent.end_code());
}

TEST(NodeMembership, without_a_coordinator_for_rendezvous_timeout_the_node_ends_with_10) {
  Scenario node;
  node.get_ready();
  node.handle(CoordinatorRefused{Refused{"there already", true}});
  node.pass(299s, false);
  EXPECT_FALSE(node.end_code());
  const NodeOutputs outputs = node.pass(1s, false);
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.end_code(), 10);
  EXPECT_EQ(node.end_message(),
            "no coordinator for 300 s: refused: there already; check that node 0 runs and that --coordinator names it, "
            "or wait longer with --rendezvous_timeout_seconds");

  Scenario seeker;
  seeker.get_ready();
  seeker.handle(SearchFailed{"connection refused"});
  seeker.pass(301s, false);
  EXPECT_THAT(seeker.end_message(), HasSubstr("for 300 s: connection refused; check"));
}

TEST(NodeMembership, says_that_steps_are_lost_with_node_0) {
  Scenario node;
  node.join_and_place();
  node.handle(CoordinatorLost{"reset"});
  node.pass(301s, false);
  EXPECT_THAT(node.end_message(), HasSubstr("node 0, which alone writes checkpoints, is gone"));
}

TEST(NodeMembership, a_coordinator_that_welcomes_and_never_speaks_is_no_coordinator) {
  Scenario node;
  node.get_ready();
  for (int i = 0; i < 100 && !node.end_code(); ++i) {
    node.find_coordinator();
    node.pass(5s, false);
  }
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.now, TimePoint{1300s});
}

TEST(NodeMembership, time_without_a_coordinator_counts_from_the_last_word_heard) {
  Scenario node;
  node.get_ready();
  node.pass(200s, false);
  node.find_coordinator();
  node.pass(60s, true);
  node.handle(CoordinatorLost{"reset"});
  node.pass(299s, false);
  EXPECT_FALSE(node.end_code());
  node.pass(1s, false);
  EXPECT_TRUE(node.end_code());
}

TEST(NodeMembership, another_coordinator_takes_the_place_of_the_present_one) {
  Scenario node;
  node.join_and_place();
  const NodeOutputs outputs = node.find_coordinator(generation_of(0, 4));
  EXPECT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_TRUE(sent<Join>(outputs));
  EXPECT_TRUE(node.state.joined);
}

// ---- losing it ----

TEST(NodeMembership, leaves_the_group_when_the_coordinator_is_lost) {
  Scenario node;
  node.join_and_place();
  const NodeOutputs outputs = node.handle(CoordinatorLost{"reset"});
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_EQ(find<CutGroup>(outputs)->generation, generation_of(1));
  EXPECT_EQ(find<CutGroup>(outputs)->cause, "CoordinatorLost");
  EXPECT_EQ(find<CutGroup>(outputs)->message, "reset");
  EXPECT_NE(find<FindCoordinator>(outputs), nullptr);
}

TEST(NodeMembership, workers_that_wait_are_not_cut) {
  Scenario node;
  node.find_coordinator();
  node.get_ready();
  EXPECT_EQ(find<CutGroup>(node.handle(CoordinatorLost{"reset"})), nullptr);
  Scenario left;
  left.join_and_place();
  left.get_ready();
  EXPECT_EQ(find<CutGroup>(left.handle(CoordinatorLost{"reset"})), nullptr);
}

TEST(NodeMembership, a_silent_coordinator_is_lost) {
  Scenario node;
  node.join_and_place();
  node.pass(60s, true);
  EXPECT_EQ(find<FindCoordinator>(node.pass(4999ms, false)), nullptr);
  const NodeOutputs outputs = node.pass(1ms, false);
  EXPECT_NE(find<FindCoordinator>(outputs), nullptr);
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_THAT(find<CutGroup>(outputs)->message, HasSubstr("nothing heard from the coordinator for 5 s"));
}

TEST(NodeMembership, no_coordinator_is_lost_because_the_agent_did_not_run) {
  Scenario node;
  node.join_and_place();
  node.now += 60s;
  EXPECT_EQ(find<FindCoordinator>(node.handle(NodeTick{})), nullptr);
  EXPECT_EQ(find<FindCoordinator>(node.pass(4s, false)), nullptr);
  EXPECT_NE(find<FindCoordinator>(node.pass(1s, false)), nullptr);
}

TEST(NodeMembership, a_late_tick_forgives_no_silence) {
  for (const auto& [timeout, gap] : {std::pair(5000ms, 2400ms), std::pair(2000ms, 1500ms)}) {
    Scenario node;
    node.state.options.heartbeat_timeout = timeout;
    node.join_and_place();
    node.now += gap;
    EXPECT_EQ(find<FindCoordinator>(node.handle(NodeTick{})), nullptr);
    EXPECT_EQ(find<FindCoordinator>(node.pass(timeout - gap - 1ms, false)), nullptr);
    EXPECT_NE(find<FindCoordinator>(node.pass(1ms, false)), nullptr) << timeout.count();
  }
}

TEST(NodeMembership, time_that_the_agent_did_not_run_is_no_time_without_a_coordinator) {
  Scenario node;
  node.get_ready();
  node.now += 400s;
  node.handle(NodeTick{});
  EXPECT_FALSE(node.end_code());
  node.pass(299s, false);
  EXPECT_FALSE(node.end_code());
  node.pass(1s, false);
  EXPECT_TRUE(node.end_code());
}

TEST(NodeMembership, what_comes_from_a_coordinator_that_was_lost_is_not_heard) {
  Scenario node;
  node.join_and_place();
  node.handle(CoordinatorLost{"reset"});
  EXPECT_THAT(node.receive(EndJob{0, ""}), IsEmpty());
}

// ---- placements ----

TEST(NodeMembership, hands_a_placement_to_workers_that_wait) {
  Scenario node;
  node.find_coordinator();
  node.get_ready();
  const NodeOutputs outputs = node.place(1);
  ASSERT_NE(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(find<Assignment>(outputs)->rank, 4);
  EXPECT_FALSE(node.state.ready);
}

TEST(NodeMembership, takes_no_placement_that_is_not_newer_than_all_before) {
  Scenario node;
  node.find_coordinator(generation_of(4));
  node.get_ready();
  EXPECT_THAT(node.place(4), IsEmpty());
  EXPECT_NE(find<Assignment>(node.place(5)), nullptr);
  node.get_ready();
  EXPECT_THAT(node.place(5), IsEmpty());
}

TEST(NodeMembership, a_placement_that_comes_when_a_worker_has_ended_is_broken_at_once) {
  Scenario node;
  node.find_coordinator();
  node.get_ready();
  node.handle(WorkerEnded{.local_rank = 1, .code = 139});
  const NodeOutputs outputs = node.place(1);
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  ASSERT_TRUE(sent<Broken>(outputs));
  EXPECT_EQ(sent<Broken>(outputs)->generation, generation_of(1));
  EXPECT_EQ(sent<Broken>(outputs)->cause, kNotReady);
  // What the node says next is known to be said after the placement.
  EXPECT_EQ(sent<NodeReady>(node.get_ready())->generation, generation_of(1));
}

StateClaim state_at(int64_t step) { return {.lineage = 1, .step = step, .has_state = true}; }
std::vector<int64_t> steps_of(const std::vector<StateClaim>& claims) {
  std::vector<int64_t> steps;
  for (const StateClaim& claim : claims) steps.push_back(claim.has_state ? claim.step : -1);
  return steps;
}

TEST(NodeMembership, says_what_its_workers_held_when_they_left) {
  Scenario node;
  node.join_and_place();
  node.handle(WorkerLeft{0, generation_of(1), "Cut", "", state_at(5)});
  const NodeReady ready = get_sent<NodeReady>(node.handle(WorkerLeft{1, generation_of(1), "Cut", "", state_at(6)}));
  EXPECT_THAT(steps_of(ready.claims), ElementsAre(5, 6));
  // The next coordinator knows nothing of it.
  node.handle(CoordinatorLost{"reset"});
  EXPECT_THAT(steps_of(get_sent<Join>(node.find_coordinator()).claims), ElementsAre(5, 6));
  // What it held is gone with a worker that ends; and in the next group each may come to hold something else.
  node.handle(WorkerEnded{.local_rank = 1, .code = 139});
  EXPECT_THAT(steps_of(get_sent<NodeReady>(node.handle(WorkerHello{1})).claims), ElementsAre(5, -1));
  node.place(2);
  node.handle(WorkerLeft{0, generation_of(2), "Cut", ""});
  EXPECT_THAT(get_sent<NodeReady>(node.handle(WorkerLeft{1, generation_of(2), "Cut", ""})).claims, IsEmpty());
}

// Between the node's word that it was ready and the placement, a worker has ended and is back. Where the plans count on
// what it held, the group cannot be.
TEST(NodeMembership, a_placement_that_counts_on_a_state_which_is_gone_is_broken_at_once) {
  Scenario node;
  node.join_and_place();
  node.handle(WorkerLeft{0, generation_of(1), "Cut", "", state_at(5)});
  node.handle(WorkerLeft{1, generation_of(1), "Cut", "", state_at(5)});
  node.handle(WorkerEnded{.local_rank = 1, .code = 139});
  node.handle(WorkerHello{1});
  Assignment placement{.generation = generation_of(2), .world_size = 2, .local_world_size = 2};
  placement.plans = {{.source = 0}, {.source = 0}};
  const NodeOutputs outputs = node.receive(placement);
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(get_sent<Broken>(outputs).generation, generation_of(2));
  EXPECT_EQ(get_sent<Broken>(outputs).cause, kNotReady);
  EXPECT_EQ(get_sent<NodeReady>(outputs).generation, generation_of(2));
  EXPECT_THAT(steps_of(get_sent<NodeReady>(outputs).claims), ElementsAre(5, -1));
  // The next one is made with that.
  placement.generation = generation_of(3);
  placement.plans[0].state = {.rank = 0, .size = 2};
  placement.plans[1].state = {.rank = 1, .size = 2};
  EXPECT_NE(find<Assignment>(node.receive(placement)), nullptr);
}

TEST(NodeMembership, cuts_the_group_that_its_workers_are_in_and_no_other) {
  Scenario node;
  node.join_and_place();
  EXPECT_EQ(find<CutGroup>(node.receive(CutGroup{generation_of(0), "NodeLost", ""})), nullptr);
  const NodeOutputs outputs = node.receive(CutGroup{generation_of(1), "NodeLost", "node 2\nis lost"});
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_EQ(find<CutGroup>(outputs)->generation, generation_of(1));
  EXPECT_EQ(find<CutGroup>(outputs)->cause, "NodeLost");
  EXPECT_EQ(find<CutGroup>(outputs)->message, "node 2 is lost");
  node.get_ready();
  EXPECT_EQ(find<CutGroup>(node.receive(CutGroup{generation_of(1), "NodeLost", ""})), nullptr);
}

BrokenBefore broken_before(Scenario& node, std::optional<Commit> commit) {
  const NodeOutputs outputs = node.handle(CoordinatorFound{Welcome{generation_of(0, 4)}, commit});
  const std::optional<Join> join = sent<Join>(outputs);
  return !join ? BrokenBefore{.seconds = -2.0} : join->broken_before;
}

// What a new coordinator is told about the group of the lost one.
struct Outlived {
  std::string what;
  std::function<void(Scenario&)> end;
  bool step_in_flight;
};

TEST(NodeMembership, tells_the_next_coordinator_when_its_group_broke) {
  const std::vector<Outlived> all{
      {"the coordinator is lost", [](Scenario& node) { node.handle(CoordinatorLost{"reset"}); }, true},
      {"a peer is lost",
       [](Scenario& node) {
         node.receive(CutGroup{generation_of(1), "SignalKILL", ""});
       },
       true},
      {"its own worker ended", [](Scenario& node) { node.handle(WorkerEnded{.local_rank = 0, .code = 137}); }, true},
      {"all leave together",
       [](Scenario& node) {
         node.receive(Regroup{generation_of(1), false});
       },
       false},
      {"all leave together, and one is lost meanwhile",
       [](Scenario& node) {
         node.receive(Regroup{generation_of(1), false});
         node.receive(CutGroup{generation_of(1), "SignalKILL", ""});
       },
       true},
  };
  for (const Outlived& outlived : all) {
    Scenario node;
    EXPECT_LT(sent<Join>(node.find_coordinator())->broken_before.seconds, 0.0) << "it was in none";
    node.get_ready();
    node.place(1);
    node.now += 1s;
    const TimePoint committed = node.now;
    outlived.end(node);
    node.now += 1s;
    node.get_ready();
    node.handle(CoordinatorLost{"reset"});
    node.now += 2s;
    const BrokenBefore before = broken_before(node, {{.step = 120, .at = committed}});
    EXPECT_DOUBLE_EQ(before.seconds, 3.0) << outlived.what;
    EXPECT_LT(before.silent_seconds, 0.0) << outlived.what;
    EXPECT_DOUBLE_EQ(before.committed_seconds, 3.0) << outlived.what;
    EXPECT_EQ(before.generation, generation_of(1)) << outlived.what;
    EXPECT_EQ(before.step, 120);
    EXPECT_EQ(before.step_in_flight, outlived.step_in_flight) << outlived.what;
  }
}

TEST(NodeMembership, tells_the_next_coordinator_how_long_the_lost_one_had_been_silent) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  const TimePoint committed = node.now;
  node.receive(CoordinatorBeat{});
  node.pass(6s, false);
  const BrokenBefore before = broken_before(node, {{.step = 120, .at = committed}});
  EXPECT_DOUBLE_EQ(before.seconds, 1.0);
  EXPECT_DOUBLE_EQ(before.silent_seconds, 5.0);
}

TEST(NodeMembership, tells_of_no_group_in_which_nothing_was_committed) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  node.handle(CoordinatorLost{"reset"});
  EXPECT_LT(broken_before(node, std::nullopt).seconds, 0.0);
  EXPECT_LT(broken_before(node, {{.step = 7, .at = TimePoint(1000s)}}).seconds, 0.0) << "in the process before";
}

TEST(NodeMembership, tells_of_the_group_that_worked_and_not_of_those_that_came_to_nothing_since) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  const TimePoint in_the_first = node.now;
  const auto break_and_place = [&node](uint32_t next) {
    node.receive(CutGroup{generation_of(next - 1), "SignalKILL", ""});
    node.get_ready();
    node.now += 1s;
    node.place(next);
    node.now += 1s;
  };
  break_and_place(2);
  break_and_place(3);
  const TimePoint in_the_third = node.now;
  node.handle(CoordinatorLost{"reset"});
  node.now += 1s;
  const BrokenBefore first = broken_before(node, {{.step = 120, .at = in_the_first}});
  EXPECT_EQ(first.generation, generation_of(1));
  EXPECT_DOUBLE_EQ(first.seconds, 5.0);
  const BrokenBefore third = broken_before(node, {{.step = 130, .at = in_the_third}});
  EXPECT_EQ(third.generation, generation_of(3));
  EXPECT_DOUBLE_EQ(third.seconds, 1.0);
}

TEST(NodeMembership, remembers_so_many_groups_that_came_to_nothing) {
  Scenario node;
  node.find_coordinator();
  for (uint32_t n = 1; n <= 2 * kGroupEndsKept; ++n) {
    node.get_ready();
    node.place(n);
    node.receive(CutGroup{generation_of(n), "PeerLost", ""});
    node.receive(CutGroup{generation_of(n), "PeerLost", ""});
  }
  ASSERT_EQ(node.state.group_ends.size(), kGroupEndsKept);
  EXPECT_EQ(node.state.group_ends.back().generation, generation_of(2 * kGroupEndsKept));
}

TEST(NodeMembership, kills_a_worker_that_hangs_in_a_group_only) {
  Scenario node;
  node.find_coordinator();
  node.get_ready();
  EXPECT_THAT(node.receive(KillWorker{1, "no progress"}), IsEmpty());
  node.place(1);
  EXPECT_THAT(node.receive(KillWorker{2, "not one of ours"}), IsEmpty());
  const NodeOutputs outputs = node.receive(KillWorker{1, "no\nprogress"});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(std::get<DumpStacks>(outputs[0]).local_rank, 1);
  EXPECT_EQ(std::get<KillProcess>(outputs[1]).local_rank, 1);
  EXPECT_THAT(get<RestartDecision>(node.handle(WorkerEnded{.local_rank = 1, .code = 137})).line,
              HasSubstr("no progress"));
}

// ---- what the workers do ----

TEST(NodeMembership, tells_once_that_the_workers_wait_and_since_which_generation) {
  Scenario node;
  node.join_and_place();
  const NodeOutputs outputs = node.get_ready();
  ASSERT_TRUE(sent<NodeReady>(outputs));
  EXPECT_TRUE(sent<NodeReady>(outputs)->ready);
  EXPECT_EQ(sent<NodeReady>(outputs)->generation, generation_of(1));
  EXPECT_THAT(node.get_ready(), IsEmpty());
  EXPECT_FALSE(sent<NodeReady>(node.handle(WorkerEnded{.local_rank = 1, .code = 139}))->ready);
}

TEST(NodeMembership, tells_how_its_worker_ended_although_its_group_is_cut_already) {
  Scenario node;
  node.join_and_place();
  node.receive(CutGroup{generation_of(1), "PeerLost", ""});
  const NodeOutputs outputs =
      node.handle(WorkerEnded{.local_rank = 1, .pid = 7, .code = 137, .message = "", .detection_seconds = 0.25});
  ASSERT_TRUE(sent<Broken>(outputs));
  EXPECT_EQ(sent<Broken>(outputs)->generation, generation_of(1));
  EXPECT_EQ(sent<Broken>(outputs)->rank, 5);
  EXPECT_EQ(sent<Broken>(outputs)->cause, "SignalKILL");
  EXPECT_THAT(sent<Broken>(outputs)->message, StartsWith("rank 5 (pid 7) ended with signal 9 (SIGKILL)"));
  EXPECT_EQ(sent<Broken>(outputs)->exit_code, 137);
  EXPECT_EQ(sent<Broken>(outputs)->detection_seconds, 0.25);
}

TEST(NodeMembership, sends_nothing_without_a_coordinator) {
  Scenario node;
  EXPECT_FALSE(find<SendToCoordinator>(node.get_ready()));
  EXPECT_FALSE(find<SendToCoordinator>(node.fail()));
  Scenario done;
  EXPECT_FALSE(find<SendToCoordinator>(done.end_all(0)));
}

TEST(NodeMembership, passes_news_of_checkpoints_on) {
  Scenario node;
  node.find_coordinator();
  EXPECT_EQ(sent<CheckpointNews>(node.handle(CheckpointNews{30}))->step, 30);
  node.receive(CheckpointNews{40});
  EXPECT_EQ(node.state.checkpoint_step, 40);
}

// ---- leaving ----

TEST(NodeMembership, stops_the_workers_at_once_when_nobody_can_name_a_step) {
  Scenario alone;
  EXPECT_EQ(get<SignalWorkers>(alone.handle(StopRequested{SIGINT})).signal, SIGINT);
  EXPECT_EQ(sent<Join>(alone.find_coordinator())->leaving_code, 130);
  Scenario left_alone;
  left_alone.join_and_place();
  left_alone.handle(StopRequested{SIGTERM});
  const NodeOutputs lost = left_alone.handle(CoordinatorLost{"reset"});
  EXPECT_NE(find<CutGroup>(lost), nullptr);
  EXPECT_EQ(get<SignalWorkers>(lost).signal, SIGTERM);
}

// Rank 0, which writes the checkpoint, is on the coordinator's node. The other ranks may wait in a collective that
// never ends.
TEST(NodeMembership, workers_that_stop_at_a_step_are_cut_when_the_coordinator_goes_first) {
  Scenario node;
  node.join_and_place();
  EXPECT_EQ(get<SignalWorkers>(node.receive(StopJob{143})).signal, SIGTERM);
  EXPECT_NE(find<CutGroup>(node.handle(CoordinatorLost{"reset"})), nullptr);
  Scenario leaver;
  leaver.join_and_place();
  leaver.handle(StopRequested{SIGTERM});
  leaver.receive(Regroup{generation_of(1), true});
  EXPECT_NE(find<CutGroup>(leaver.handle(CoordinatorLost{"reset"})), nullptr);
}

TEST(NodeMembership, a_job_that_stops_is_left_for_good) {
  Scenario node;
  node.join_and_place();
  node.receive(StopJob{130});
  node.handle(CoordinatorLost{"reset"});
  EXPECT_EQ(sent<Join>(node.find_coordinator())->leaving_code, 130);
}

TEST(NodeMembership, workers_that_have_left_already_stop_when_told_to_leave) {
  Scenario node;
  node.join_and_place();
  node.get_ready();
  node.handle(StopRequested{SIGTERM});
  const NodeOutputs outputs = node.receive(Regroup{generation_of(1), true});
  EXPECT_EQ(find<LeaveTogether>(outputs), nullptr);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_THAT(node.receive(Regroup{generation_of(1), false}), IsEmpty());
}

// ---- the end ----

TEST(NodeMembership, a_node_that_is_done_waits_for_the_end) {
  Scenario node;
  node.join_and_place();
  const NodeOutputs outputs = node.end_all(0);
  EXPECT_TRUE(sent<NodeDone>(outputs));
  EXPECT_FALSE(node.end_code());
  // Its workers are gone: there is nothing to cut.
  EXPECT_EQ(find<CutGroup>(node.handle(CoordinatorLost{"reset"})), nullptr);
}

TEST(NodeMembership, a_node_that_is_done_is_not_ready_for_the_next_coordinator) {
  Scenario node;
  node.find_coordinator();
  node.get_ready();
  node.end_all(0);
  node.handle(CoordinatorLost{"reset"});
  EXPECT_FALSE(sent<Join>(node.find_coordinator())->ready);
}

// What the workers do comes several times a second, and must not put off the look at the coordinator.
TEST(NodeMembership, wants_a_tick_when_its_coordinator_will_have_been_silent_whatever_comes_meanwhile) {
  Scenario node;
  node.join_and_place();
  const TimePoint silent_at = node.state.last_heard + node.state.options.heartbeat_timeout;
  for (int64_t step = 1; node.now < silent_at + 1s; ++step) {
    node.now += 200ms;
    node.handle(WorkerAtStep{0, step});
  }
  EXPECT_EQ(node.state.deadline, silent_at);
  EXPECT_NE(find<FindCoordinator>(node.handle(NodeTick{})), nullptr);
}

TEST(NodeMembership, a_node_that_is_done_ends_with_0_when_nobody_is_left_to_tell) {
  Scenario node;
  node.join_and_place();
  node.end_all(0);
  node.handle(CoordinatorLost{"reset"});
  node.pass(299s, false);
  EXPECT_FALSE(node.end_code());
  const NodeOutputs outputs = node.pass(1s, false);
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.end_code(), 0);
}

TEST(NodeMembership, a_node_that_failed_and_was_told_to_leave_does_not_wait_without_a_coordinator) {
  Scenario node;
  node.join_and_place();
  node.handle(StopRequested{SIGTERM});
  EXPECT_TRUE(sent<NodeFailed>(node.fail()));
  node.end_all(137);
  EXPECT_EQ(get<Finish>(node.handle(CoordinatorLost{"reset"})).code, 5);
}

// The coordinator knows that other nodes have trained with the same input.
TEST(NodeMembership, a_node_that_failed_ends_alone_when_the_job_goes_on_without_it) {
  Scenario node;
  node.join_and_place();
  node.fail();
  const NodeOutputs outputs = node.handle(CoordinatorRefused{Refused{"this node gave up; the job goes on", false}});
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.end_code(), 5);
  EXPECT_THAT(node.end_message(), HasSubstr("not finite"));
}

TEST(NodeMembership, a_node_that_failed_does_not_wait_long_for_a_coordinator) {
  Scenario node;
  node.join_and_place();
  node.fail();
  node.handle(CoordinatorLost{"reset"});
  node.pass(9s, false);
  EXPECT_FALSE(node.end_code());
  const NodeOutputs outputs = node.pass(1s, false);
  ASSERT_TRUE(node.end_code());
  EXPECT_EQ(node.end_code(), 5);
  EXPECT_THAT(node.end_message(), HasSubstr("not finite"));
}

}  // namespace
}  // namespace lockstep
