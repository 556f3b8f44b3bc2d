#include "runner/recovery/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/runner/recovery/outputs.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

using Outputs = std::vector<MemberOutput>;

constexpr int kTicksMax = 2'000;

constexpr uint64_t generation(uint32_t counter, uint32_t attempt = 3) { return (uint64_t{attempt} << 32U) | counter; }

template <typename T>
const T* told(const Outputs& outputs) {
  for (const MemberOutput& output : outputs) {
    const Tell* tell = std::get_if<Tell>(&output);
    if (tell == nullptr) continue;
    if (const T* message = std::get_if<T>(&tell->message)) return message;
  }
  return nullptr;
}

// A member with a clock that the test moves.
class Scenario {
 public:
  Scenario() : state(MemberOptions{.nproc = 4}) { first = feed(MemberTick{}); }

  Outputs feed(const MemberEvent& event) { return step(state, event, now); }
  Outputs hear(const CoordinatorMessage& message) { return feed(CoordinatorSaid{message}); }
  Outputs find_coordinator(uint64_t at = generation(0)) { return feed(CoordinatorFound{Welcome{at}}); }
  Outputs place(uint32_t counter) {
    Assignment placement;
    placement.generation = generation(counter);
    placement.rank = 4;
    placement.world_size = 8;
    return hear(placement);
  }
  void join_and_place() {
    find_coordinator();
    feed(WorkersReady{true});
    place(1);
  }
  // Ticks as the agent would. With `beats`, the coordinator is heard before each tick.
  Outputs pass(std::chrono::milliseconds time, bool beats) {
    Outputs all;
    const TimePoint until = now + time;
    for (int ticks = 0; now < until; ++ticks) {
      if (ticks > kTicksMax) {
        ADD_FAILURE() << "it wants one Tick after the other: its agent would spin";
        break;
      }
      now = std::min(until, std::max(now, state.deadline.value_or(until)));
      if (beats) hear(CoordinatorBeat{});
      Outputs more = feed(MemberTick{});
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  MemberState state;
  TimePoint now{1000s};
  Outputs first;
};

// ---- finding a coordinator ----

TEST(Member, begins_by_seeking) {
  Scenario node;
  EXPECT_NE(find<Seek>(node.first), nullptr);
  EXPECT_EQ(node.state.deadline, node.now + kBeatInterval);
}

TEST(Member, wants_to_look_when_its_search_is_over_and_no_beat_later) {
  MemberState state(MemberOptions{.rendezvous_timeout = kBeatInterval + 300ms});
  TimePoint now{1000s};
  step(state, MemberTick{}, now);
  now += kBeatInterval;
  step(state, MemberTick{}, now);
  EXPECT_EQ(state.deadline, now + 300ms);
  const Outputs outputs = step(state, MemberTick{}, now + 300ms);
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 10);
}

TEST(Member, tells_the_terms_of_workers_that_are_ready) {
  Scenario node;
  EXPECT_EQ(told<Join>(node.find_coordinator())->terms, "");
  EXPECT_EQ(told<NodeReady>(node.feed(WorkersReady{true, "{}"}))->terms, "{}");
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(told<Join>(node.find_coordinator())->terms, "{}");
  node.place(1);
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(told<Join>(node.find_coordinator(generation(1)))->terms, "");
}

TEST(Member, joins_the_coordinator_that_was_found) {
  Scenario node;
  const Outputs outputs = node.find_coordinator(generation(5));
  ASSERT_NE(told<Join>(outputs), nullptr);
  EXPECT_EQ(told<Join>(outputs)->nproc, 4);
  EXPECT_EQ(told<Join>(outputs)->generation, generation(5));
  EXPECT_FALSE(told<Join>(outputs)->ready);
  EXPECT_EQ(told<Join>(outputs)->leaving_code, 0);
  EXPECT_FALSE(told<Join>(outputs)->done);
}

TEST(Member, rejects_a_coordinator_of_an_older_attempt) {
  Scenario node;
  node.find_coordinator(generation(1, 3));
  node.feed(CoordinatorLost{"reset"});
  const Outputs outputs = node.find_coordinator(generation(900, 2));
  EXPECT_EQ(told<Join>(outputs), nullptr);
  EXPECT_NE(find<Seek>(outputs), nullptr);
  ASSERT_NE(find<MemberNote>(outputs), nullptr);
  EXPECT_THAT(find<MemberNote>(outputs)->text, HasSubstr("attempt 2, one of attempt 3"));
}

TEST(Member, goes_back_to_a_coordinator_of_the_same_attempt_whatever_its_counter) {
  Scenario node;
  node.join_and_place();
  node.feed(CoordinatorLost{"reset"});
  const Outputs outputs = node.find_coordinator(generation(0));
  ASSERT_NE(told<Join>(outputs), nullptr);
  EXPECT_EQ(told<Join>(outputs)->generation, generation(1));
}

TEST(Member, says_everything_again_to_the_next_coordinator) {
  Scenario node;
  node.feed(WorkersReady{true});
  node.feed(Leave{130});
  node.feed(CheckpointNews{70});
  const Outputs outputs = node.find_coordinator();
  ASSERT_NE(told<Join>(outputs), nullptr);
  EXPECT_TRUE(told<Join>(outputs)->ready);
  EXPECT_EQ(told<Join>(outputs)->leaving_code, 130);
  ASSERT_NE(told<CheckpointNews>(outputs), nullptr);
  EXPECT_EQ(told<CheckpointNews>(outputs)->step, 70);
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(told<CheckpointNews>(node.find_coordinator()), nullptr);
}

TEST(Member, says_to_each_coordinator_that_it_failed_for_good) {
  Scenario node;
  node.feed(NodeFailed{3, "no data", true});
  for (int i = 0; i < 2; ++i) {
    const Outputs outputs = node.find_coordinator();
    ASSERT_NE(told<NodeFailed>(outputs), nullptr);
    EXPECT_EQ(told<NodeFailed>(outputs)->message, "no data");
    node.feed(CoordinatorLost{"reset"});
  }
}

TEST(Member, says_that_it_is_done_to_the_next_coordinator) {
  Scenario node;
  node.feed(NodeDone{});
  EXPECT_TRUE(told<Join>(node.find_coordinator())->done);
}

TEST(Member, a_refusal_for_good_ends_the_node_with_2) {
  Scenario node;
  const Outputs outputs = node.feed(CoordinatorRefused{Refused{"another token", false}});
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 2);
  EXPECT_EQ(find<EndJob>(outputs)->message, "another token");
  EXPECT_FALSE(node.state.deadline.has_value());
  EXPECT_THAT(node.find_coordinator(), IsEmpty());
}

TEST(Member, the_text_of_a_refusal_cannot_forge_a_log_line) {
  const std::string forged = "x\nlockstep: the job is complete\x1b[2J";
  Scenario ended;
  const Outputs outputs = ended.feed(CoordinatorRefused{Refused{forged, false}});
  EXPECT_EQ(find<EndJob>(outputs)->message, "x lockstep: the job is complete?[2J");
  Scenario seeks_on;
  seeks_on.feed(CoordinatorRefused{Refused{forged, true}});
  EXPECT_EQ(seeks_on.state.last_problem, "refused: x lockstep: the job is complete?[2J");
}

TEST(Member, seeks_on_after_a_refusal_that_may_change) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(CoordinatorRefused{Refused{"there already", true}});
  EXPECT_NE(find<Seek>(outputs), nullptr);
  EXPECT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs), nullptr);
  EXPECT_THAT(node.state.last_problem, HasSubstr("there already"));
}

int notes_with(const Outputs& outputs, const std::string& text) {
  int count = 0;
  for (const MemberOutput& output : outputs) {
    const auto* const note = std::get_if<MemberNote>(&output);
    count += note != nullptr && note->text.find(text) != std::string::npos ? 1 : 0;
  }
  return count;
}

// Two agents have the same node rank: the log of the second one must say why it waits.
TEST(Member, says_once_that_it_is_refused) {
  Scenario node;
  const CoordinatorRefused refused{Refused{"there already", true}};
  EXPECT_EQ(notes_with(node.feed(refused), "refused: there already"), 1);
  EXPECT_EQ(notes_with(node.feed(refused), "refused"), 0);
  EXPECT_EQ(notes_with(node.feed(CoordinatorRefused{Refused{"too many greetings", true}}), "too many greetings"), 1);
  node.find_coordinator();
  EXPECT_EQ(notes_with(node.feed(refused), "refused: there already"), 1);
}

TEST(Member, says_what_to_do_when_a_clock_was_set_back) {
  Scenario counted;
  counted.find_coordinator(generation(1, 3));
  counted.feed(CoordinatorLost{"reset"});
  const Outputs declined = counted.find_coordinator(generation(1, 2));
  EXPECT_EQ(notes_with(declined, "one of attempt 3 was seen before"), 1);
  EXPECT_EQ(notes_with(declined, "LOCKSTEP_POD_ATTEMPT"), 0);
  Scenario timed;
  timed.find_coordinator(generation(1, 1'800'000'000));
  timed.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(notes_with(timed.find_coordinator(generation(1, 1'700'000'000)),
                       "start its agent with LOCKSTEP_POD_ATTEMPT=1800000001"),
            1);
}

TEST(Member, a_coordinator_that_was_found_has_the_heartbeat_timeout_for_its_first_word) {
  Scenario s;
  s.pass(s.state.options.rendezvous_timeout - 1s, false);
  s.find_coordinator();
  EXPECT_EQ(find<EndJob>(s.pass(2s, false)), nullptr);
  s.hear(CoordinatorBeat{});
  EXPECT_EQ(find<EndJob>(s.pass(s.state.options.heartbeat_timeout + 10s, true)), nullptr);
  // A coordinator that never sends anything does not count as found.
  Scenario silent;
  silent.pass(silent.state.options.rendezvous_timeout - 1s, false);
  silent.find_coordinator();
  EXPECT_NE(find<EndJob>(silent.pass(silent.state.options.heartbeat_timeout + 1s, false)), nullptr);
}

TEST(Member, without_a_coordinator_for_rendezvous_timeout_the_node_ends_with_10) {
  Scenario node;
  node.feed(CoordinatorRefused{Refused{"there already", true}});
  EXPECT_EQ(find<EndJob>(node.pass(299s, false)), nullptr);
  const Outputs outputs = node.pass(1s, false);
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 10);
  EXPECT_EQ(find<EndJob>(outputs)->message,
            "no coordinator for 300 s: refused: there already; check that node 0 runs and that --coordinator names it, "
            "or wait longer with --rendezvous_timeout_seconds");

  Scenario seeker;
  seeker.feed(SeekProblem{"connection refused"});
  EXPECT_THAT(find<EndJob>(seeker.pass(301s, false))->message, HasSubstr("for 300 s: connection refused; check"));
}

TEST(Member, says_that_steps_are_lost_with_node_0) {
  Scenario node;
  node.join_and_place();
  node.feed(CoordinatorLost{"reset"});
  EXPECT_THAT(find<EndJob>(node.pass(301s, false))->message,
              HasSubstr("node 0, which alone writes checkpoints, is gone"));
}

TEST(Member, a_coordinator_that_welcomes_and_never_speaks_is_no_coordinator) {
  Scenario node;
  Outputs all;
  for (int i = 0; i < 100 && !node.state.ended; ++i) {
    node.find_coordinator();
    const Outputs more = node.pass(5s, false);
    all.insert(all.end(), more.begin(), more.end());
  }
  ASSERT_NE(find<EndJob>(all), nullptr);
  EXPECT_EQ(node.now, TimePoint{1300s});
}

TEST(Member, time_without_a_coordinator_counts_from_the_last_word_heard) {
  Scenario node;
  node.pass(200s, false);
  node.find_coordinator();
  node.pass(60s, true);
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(find<EndJob>(node.pass(299s, false)), nullptr);
  EXPECT_NE(find<EndJob>(node.pass(1s, false)), nullptr);
}

TEST(Member, another_coordinator_takes_the_place_of_the_present_one) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.find_coordinator(generation(0, 4));
  EXPECT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_NE(told<Join>(outputs), nullptr);
  EXPECT_TRUE(node.state.joined);
}

// ---- losing it ----

TEST(Member, leaves_the_group_when_the_coordinator_is_lost) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(CoordinatorLost{"reset"});
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_EQ(find<CutGroup>(outputs)->generation, generation(1));
  EXPECT_EQ(find<CutGroup>(outputs)->cause, "CoordinatorLost");
  EXPECT_EQ(find<CutGroup>(outputs)->message, "reset");
  EXPECT_NE(find<Seek>(outputs), nullptr);
}

TEST(Member, workers_that_wait_are_not_cut) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  EXPECT_EQ(find<CutGroup>(node.feed(CoordinatorLost{"reset"})), nullptr);
  Scenario left;
  left.join_and_place();
  left.feed(WorkersReady{true});
  EXPECT_EQ(find<CutGroup>(left.feed(CoordinatorLost{"reset"})), nullptr);
}

TEST(Member, a_silent_coordinator_is_lost) {
  Scenario node;
  node.join_and_place();
  node.pass(60s, true);
  EXPECT_EQ(find<Seek>(node.pass(4999ms, false)), nullptr);
  const Outputs outputs = node.pass(1ms, false);
  EXPECT_NE(find<Seek>(outputs), nullptr);
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_THAT(find<CutGroup>(outputs)->message, HasSubstr("nothing heard from the coordinator for 5 s"));
}

TEST(Member, no_coordinator_is_lost_because_the_agent_did_not_run) {
  Scenario node;
  node.join_and_place();
  node.now += 60s;
  EXPECT_EQ(find<Seek>(node.feed(MemberTick{})), nullptr);
  EXPECT_EQ(find<Seek>(node.pass(4s, false)), nullptr);
  EXPECT_NE(find<Seek>(node.pass(1s, false)), nullptr);
}

TEST(Member, a_late_tick_forgives_no_silence) {
  for (const auto& [timeout, gap] : {std::pair(5000ms, 2400ms), std::pair(2000ms, 1500ms)}) {
    Scenario node;
    node.state.options.heartbeat_timeout = timeout;
    node.join_and_place();
    node.now += gap;
    EXPECT_EQ(find<Seek>(node.feed(MemberTick{})), nullptr);
    EXPECT_EQ(find<Seek>(node.pass(timeout - gap - 1ms, false)), nullptr);
    EXPECT_NE(find<Seek>(node.pass(1ms, false)), nullptr) << timeout.count();
  }
}

TEST(Member, time_that_the_agent_did_not_run_is_no_time_without_a_coordinator) {
  Scenario node;
  node.now += 400s;
  EXPECT_EQ(find<EndJob>(node.feed(MemberTick{})), nullptr);
  EXPECT_EQ(find<EndJob>(node.pass(299s, false)), nullptr);
  EXPECT_NE(find<EndJob>(node.pass(1s, false)), nullptr);
}

TEST(Member, what_comes_from_a_coordinator_that_was_lost_is_not_heard) {
  Scenario node;
  node.join_and_place();
  node.feed(CoordinatorLost{"reset"});
  EXPECT_THAT(node.hear(EndJob{0, ""}), IsEmpty());
}

// ---- placements ----

TEST(Member, hands_a_placement_to_workers_that_wait) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  const Outputs outputs = node.place(1);
  ASSERT_NE(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(find<Assignment>(outputs)->rank, 4);
  EXPECT_FALSE(node.state.ready);
}

TEST(Member, takes_no_placement_that_is_not_newer_than_all_before) {
  Scenario node;
  node.find_coordinator(generation(4));
  node.feed(WorkersReady{true});
  EXPECT_THAT(node.place(4), IsEmpty());
  EXPECT_NE(find<Assignment>(node.place(5)), nullptr);
  node.feed(WorkersReady{true});
  EXPECT_THAT(node.place(5), IsEmpty());
}

TEST(Member, a_placement_that_comes_when_a_worker_has_ended_is_broken_at_once) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  node.feed(WorkersReady{false});
  const Outputs outputs = node.place(1);
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  ASSERT_NE(told<Broken>(outputs), nullptr);
  EXPECT_EQ(told<Broken>(outputs)->generation, generation(1));
  // What the node says next is known to be said after the placement.
  EXPECT_EQ(told<NodeReady>(node.feed(WorkersReady{true}))->generation, generation(1));
}

TEST(Member, a_placement_that_comes_when_the_workers_stop_is_broken_at_once) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  node.feed(Leave{143});
  node.hear(StopJob{143});
  const Outputs outputs = node.place(1);
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  EXPECT_NE(told<Broken>(outputs), nullptr);
}

TEST(Member, cuts_the_group_that_its_workers_are_in_and_no_other) {
  Scenario node;
  node.join_and_place();
  EXPECT_EQ(find<CutGroup>(node.hear(CutGroup{generation(0), "NodeLost", ""})), nullptr);
  const Outputs outputs = node.hear(CutGroup{generation(1), "NodeLost", "node 2\nis lost"});
  ASSERT_NE(find<CutGroup>(outputs), nullptr);
  EXPECT_EQ(find<CutGroup>(outputs)->generation, generation(1));
  EXPECT_EQ(find<CutGroup>(outputs)->cause, "NodeLost");
  EXPECT_EQ(find<CutGroup>(outputs)->message, "node 2 is lost");
  node.feed(WorkersReady{true});
  EXPECT_EQ(find<CutGroup>(node.hear(CutGroup{generation(1), "NodeLost", ""})), nullptr);
}

BrokenBefore broken_before(Scenario& node, std::optional<Commit> commit) {
  const Outputs outputs = node.feed(CoordinatorFound{Welcome{generation(0, 4)}, commit});
  const Join* const join = told<Join>(outputs);
  return join == nullptr ? BrokenBefore{.seconds = -2.0} : join->broken_before;
}

// What a new coordinator is told about the group of the lost one.
struct Outlived {
  std::string what;
  std::function<void(Scenario&)> end;
  bool step_in_flight;
};

TEST(Member, tells_the_next_coordinator_when_its_group_broke) {
  const std::vector<Outlived> all{
      {"the coordinator is lost", [](Scenario& node) { node.feed(CoordinatorLost{"reset"}); }, true},
      {"a peer is lost",
       [](Scenario& node) {
         node.hear(CutGroup{generation(1), "SignalKILL", ""});
       },
       true},
      {"its own worker ended",
       [](Scenario& node) {
         node.feed(Broken{generation(1), 4, "SignalKILL", "rank 4 was killed"});
       },
       true},
      {"all leave together",
       [](Scenario& node) {
         node.hear(Regroup{generation(1), false});
       },
       false},
      {"all leave together, and one is lost meanwhile",
       [](Scenario& node) {
         node.hear(Regroup{generation(1), false});
         node.hear(CutGroup{generation(1), "SignalKILL", ""});
       },
       true},
  };
  for (const Outlived& outlived : all) {
    Scenario node;
    EXPECT_LT(told<Join>(node.find_coordinator())->broken_before.seconds, 0.0) << "it was in none";
    node.feed(WorkersReady{true});
    node.place(1);
    node.now += 1s;
    const TimePoint committed = node.now;
    outlived.end(node);
    node.now += 1s;
    node.feed(WorkersReady{true});
    node.feed(CoordinatorLost{"reset"});
    node.now += 2s;
    const BrokenBefore before = broken_before(node, {{.step = 120, .at = committed}});
    EXPECT_DOUBLE_EQ(before.seconds, 3.0) << outlived.what;
    EXPECT_LT(before.silent_seconds, 0.0) << outlived.what;
    EXPECT_DOUBLE_EQ(before.committed_seconds, 3.0) << outlived.what;
    EXPECT_EQ(before.generation, generation(1)) << outlived.what;
    EXPECT_EQ(before.step, 120);
    EXPECT_EQ(before.step_in_flight, outlived.step_in_flight) << outlived.what;
  }
}

TEST(Member, tells_the_next_coordinator_how_long_the_lost_one_had_been_silent) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  const TimePoint committed = node.now;
  node.hear(CoordinatorBeat{});
  node.pass(6s, false);
  const BrokenBefore before = broken_before(node, {{.step = 120, .at = committed}});
  EXPECT_DOUBLE_EQ(before.seconds, 1.0);
  EXPECT_DOUBLE_EQ(before.silent_seconds, 5.0);
}

TEST(Member, tells_of_no_group_in_which_nothing_was_committed) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  node.feed(CoordinatorLost{"reset"});
  EXPECT_LT(broken_before(node, std::nullopt).seconds, 0.0);
  EXPECT_LT(broken_before(node, {{.step = 7, .at = TimePoint(1000s)}}).seconds, 0.0) << "in the process before";
}

TEST(Member, tells_of_the_group_that_worked_and_not_of_those_that_came_to_nothing_since) {
  Scenario node;
  node.join_and_place();
  node.now += 1s;
  const TimePoint in_the_first = node.now;
  const auto break_and_place = [&node](uint32_t next) {
    node.hear(CutGroup{generation(next - 1), "SignalKILL", ""});
    node.feed(WorkersReady{true});
    node.now += 1s;
    node.place(next);
    node.now += 1s;
  };
  break_and_place(2);
  break_and_place(3);
  const TimePoint in_the_third = node.now;
  node.feed(CoordinatorLost{"reset"});
  node.now += 1s;
  const BrokenBefore first = broken_before(node, {{.step = 120, .at = in_the_first}});
  EXPECT_EQ(first.generation, generation(1));
  EXPECT_DOUBLE_EQ(first.seconds, 5.0);
  const BrokenBefore third = broken_before(node, {{.step = 130, .at = in_the_third}});
  EXPECT_EQ(third.generation, generation(3));
  EXPECT_DOUBLE_EQ(third.seconds, 1.0);
}

TEST(Member, remembers_so_many_groups_that_came_to_nothing) {
  Scenario node;
  node.find_coordinator();
  for (uint32_t n = 1; n <= 2 * kBreaksKept; ++n) {
    node.feed(WorkersReady{true});
    node.place(n);
    node.hear(CutGroup{generation(n), "PeerLost", ""});
    node.hear(CutGroup{generation(n), "PeerLost", ""});
  }
  ASSERT_EQ(node.state.breaks.size(), kBreaksKept);
  EXPECT_EQ(node.state.breaks.back().generation, generation(2 * kBreaksKept));
}

TEST(Member, asks_the_workers_to_leave_together) {
  Scenario node;
  node.join_and_place();
  EXPECT_EQ(find<Regroup>(node.hear(Regroup{generation(0), false})), nullptr);
  const Outputs outputs = node.hear(Regroup{generation(1), false});
  ASSERT_NE(find<Regroup>(outputs), nullptr);
  EXPECT_EQ(find<Regroup>(outputs)->generation, generation(1));
  EXPECT_FALSE(find<Regroup>(outputs)->leaving);
}

TEST(Member, kills_a_worker_that_hangs_in_a_group_only) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  EXPECT_THAT(node.hear(KillWorker{2, "no progress"}), IsEmpty());
  node.place(1);
  const Outputs outputs = node.hear(KillWorker{2, "no\nprogress"});
  ASSERT_NE(find<KillWorker>(outputs), nullptr);
  EXPECT_EQ(find<KillWorker>(outputs)->local_rank, 2);
  EXPECT_EQ(find<KillWorker>(outputs)->message, "no progress");
}

// ---- what the workers do ----

TEST(Member, tells_once_that_the_workers_wait_and_since_which_generation) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(WorkersReady{true});
  ASSERT_NE(told<NodeReady>(outputs), nullptr);
  EXPECT_TRUE(told<NodeReady>(outputs)->ready);
  EXPECT_EQ(told<NodeReady>(outputs)->generation, generation(1));
  EXPECT_THAT(node.feed(WorkersReady{true}), IsEmpty());
  EXPECT_FALSE(told<NodeReady>(node.feed(WorkersReady{false}))->ready);
}

TEST(Member, tells_that_its_group_broke_until_all_have_left) {
  Scenario node;
  node.join_and_place();
  const Broken broken{generation(1), 5, "SignalKILL", "rank 5 was killed"};
  ASSERT_NE(told<Broken>(node.feed(broken)), nullptr);
  EXPECT_EQ(told<Broken>(node.feed(broken))->rank, 5);
  EXPECT_THAT(node.feed(Broken{generation(0), 5, "SignalKILL", ""}), IsEmpty());
  // The group is cut already, but this node may know the cause better than the node that was heard first.
  node.hear(CutGroup{generation(1), "PeerLost", ""});
  EXPECT_NE(told<Broken>(node.feed(broken)), nullptr);
  node.feed(WorkersReady{true});
  EXPECT_THAT(node.feed(broken), IsEmpty());
}

TEST(Member, sends_nothing_without_a_coordinator) {
  Scenario node;
  EXPECT_EQ(told<NodeReady>(node.feed(WorkersReady{true})), nullptr);
  EXPECT_EQ(told<NodeDone>(node.feed(NodeDone{})), nullptr);
  EXPECT_EQ(told<NodeFailed>(node.feed(NodeFailed{3, "no data", true})), nullptr);
}

TEST(Member, passes_news_of_checkpoints_on) {
  Scenario node;
  node.find_coordinator();
  EXPECT_EQ(told<CheckpointNews>(node.feed(CheckpointNews{30}))->step, 30);
  ASSERT_NE(find<CheckpointNews>(node.hear(CheckpointNews{40})), nullptr);
  EXPECT_EQ(find<CheckpointNews>(node.hear(CheckpointNews{40}))->step, 40);
}

// ---- leaving ----

TEST(Member, tells_the_coordinator_that_it_leaves_and_waits_for_its_word) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(Leave{143});
  ASSERT_NE(told<Leave>(outputs), nullptr);
  EXPECT_EQ(told<Leave>(outputs)->code, 143);
  EXPECT_EQ(find<StopJob>(outputs), nullptr);
  EXPECT_THAT(node.feed(Leave{130}), IsEmpty());
  const Outputs regroup = node.hear(Regroup{generation(1), true});
  ASSERT_NE(find<Regroup>(regroup), nullptr);
  EXPECT_TRUE(find<Regroup>(regroup)->leaving);
}

TEST(Member, stops_the_workers_at_once_when_nobody_can_name_a_step) {
  Scenario alone;
  const Outputs outputs = alone.feed(Leave{130});
  ASSERT_NE(find<StopJob>(outputs), nullptr);
  EXPECT_EQ(find<StopJob>(outputs)->code, 130);
  Scenario left_alone;
  left_alone.join_and_place();
  left_alone.feed(Leave{143});
  const Outputs lost = left_alone.feed(CoordinatorLost{"reset"});
  EXPECT_NE(find<CutGroup>(lost), nullptr);
  ASSERT_NE(find<StopJob>(lost), nullptr);
  EXPECT_EQ(find<StopJob>(lost)->code, 143);
}

// Rank 0, which writes the checkpoint, is on the coordinator's node. The other ranks may wait in a collective that
// never ends.
TEST(Member, workers_that_stop_at_a_step_are_cut_when_the_coordinator_goes_first) {
  Scenario node;
  node.join_and_place();
  EXPECT_EQ(find<StopJob>(node.hear(StopJob{143}))->code, 143);
  EXPECT_NE(find<CutGroup>(node.feed(CoordinatorLost{"reset"})), nullptr);
  Scenario leaver;
  leaver.join_and_place();
  leaver.feed(Leave{143});
  leaver.hear(Regroup{generation(1), true});
  EXPECT_NE(find<CutGroup>(leaver.feed(CoordinatorLost{"reset"})), nullptr);
}

TEST(Member, a_job_that_stops_is_left_for_good) {
  Scenario node;
  node.join_and_place();
  node.hear(StopJob{130});
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(told<Join>(node.find_coordinator())->leaving_code, 130);
}

TEST(Member, workers_that_have_left_already_stop_when_told_to_leave) {
  Scenario node;
  node.join_and_place();
  node.feed(WorkersReady{true});
  node.feed(Leave{143});
  const Outputs outputs = node.hear(Regroup{generation(1), true});
  EXPECT_EQ(find<Regroup>(outputs), nullptr);
  ASSERT_NE(find<StopJob>(outputs), nullptr);
  EXPECT_EQ(find<StopJob>(outputs)->code, 143);
  EXPECT_EQ(find<StopJob>(node.hear(Regroup{generation(1), false})), nullptr);
}

// ---- the end ----

TEST(Member, ends_when_the_job_ends) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.hear(EndJob{3, "no data"});
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 3);
  EXPECT_EQ(find<EndJob>(outputs)->message, "no data");
  EXPECT_THAT(node.feed(MemberTick{}), IsEmpty());
}

TEST(Member, a_node_that_is_done_waits_for_the_end) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(NodeDone{});
  EXPECT_NE(told<NodeDone>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs), nullptr);
  // Its workers are gone: there is nothing to cut.
  EXPECT_EQ(find<CutGroup>(node.feed(CoordinatorLost{"reset"})), nullptr);
}

TEST(Member, a_node_that_is_done_is_not_ready_for_the_next_coordinator) {
  Scenario node;
  node.find_coordinator();
  node.feed(WorkersReady{true});
  node.feed(NodeDone{});
  node.feed(CoordinatorLost{"reset"});
  EXPECT_FALSE(told<Join>(node.find_coordinator())->ready);
}

TEST(Member, a_node_that_is_done_and_heard_by_its_coordinator_waits_for_its_word_when_told_to_leave) {
  Scenario node;
  node.join_and_place();
  node.feed(NodeDone{});
  EXPECT_EQ(find<EndJob>(node.feed(Leave{143})), nullptr);
}

TEST(Member, wants_a_tick_when_its_coordinator_will_have_been_silent_and_never_one_in_the_past) {
  Scenario node;
  node.join_and_place();
  const TimePoint silent_at = node.state.last_heard + node.state.options.heartbeat_timeout;
  node.pass(node.state.options.heartbeat_timeout - 100ms, false);
  EXPECT_EQ(node.state.deadline, silent_at);
  node.now = silent_at + 100ms;
  node.feed(WorkersReady{true});
  ASSERT_TRUE(node.state.deadline);
  EXPECT_GT(*node.state.deadline, node.now);
}

TEST(Member, who_leaves_together_for_good_stops) {
  for (const bool leaving : {false, true}) {
    Scenario node;
    node.join_and_place();
    node.hear(Regroup{generation(1), leaving});
    EXPECT_EQ(node.state.stopping, leaving);
  }
}

TEST(Member, a_node_that_is_done_ends_with_0_when_nobody_is_left_to_tell) {
  Scenario node;
  node.join_and_place();
  node.feed(NodeDone{});
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(find<EndJob>(node.pass(299s, false)), nullptr);
  const Outputs outputs = node.pass(1s, false);
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 0);
}

TEST(Member, a_node_that_is_done_and_told_to_leave_does_not_wait) {
  Scenario node;
  node.feed(NodeDone{});
  const Outputs outputs = node.feed(Leave{143});
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 0);
}

TEST(Member, a_node_that_failed_for_good_and_is_told_to_leave_does_not_wait) {
  Scenario node;
  node.feed(NodeFailed{3, "no data", true});
  const Outputs outputs = node.feed(Leave{143});
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 3);
}

TEST(Member, a_node_that_failed_alone_says_so_and_ends) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(NodeFailed{12, "a device fault", false});
  EXPECT_NE(told<NodeFailed>(outputs), nullptr);
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 12);
  EXPECT_EQ(find<EndJob>(outputs)->message, "a device fault");
}

TEST(Member, a_node_that_failed_for_good_waits_for_the_end_of_the_job) {
  Scenario node;
  node.join_and_place();
  const Outputs outputs = node.feed(NodeFailed{3, "no data", true});
  EXPECT_NE(told<NodeFailed>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(node.hear(EndJob{3, "node 1:\x1bno data"}))->message, "node 1:?no data");
}

// The coordinator knows that other nodes have trained with the same input.
TEST(Member, a_node_that_failed_for_good_ends_alone_when_the_job_goes_on_without_it) {
  Scenario node;
  node.join_and_place();
  node.feed(NodeFailed{3, "no data", true});
  const Outputs outputs = node.feed(CoordinatorRefused{Refused{"this node gave up; the job goes on", false}});
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 3);
  EXPECT_EQ(find<EndJob>(outputs)->message, "no data");
}

TEST(Member, a_node_that_failed_for_good_does_not_wait_long_for_a_coordinator) {
  Scenario node;
  node.join_and_place();
  node.feed(NodeFailed{3, "no data", true});
  node.feed(CoordinatorLost{"reset"});
  EXPECT_EQ(find<EndJob>(node.pass(9s, false)), nullptr);
  const Outputs outputs = node.pass(1s, false);
  ASSERT_NE(find<EndJob>(outputs), nullptr);
  EXPECT_EQ(find<EndJob>(outputs)->code, 3);
  EXPECT_EQ(find<EndJob>(outputs)->message, "no data");
}

}  // namespace
}  // namespace lockstep
