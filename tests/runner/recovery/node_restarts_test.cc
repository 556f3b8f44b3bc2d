#include "runner/recovery/node_restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>

#include "tests/runner/recovery/outputs.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

using Outputs = std::vector<NodesOutput>;

class Nodes {
 public:
  explicit Nodes(int nodes = 2, int max_restarts = 10)
      : state(NodesOptions{.nodes = nodes, .limits = {.max_restarts = max_restarts}, .first_attempt = 7}) {}

  Outputs handle(const NodesEvent& event) { return step(state, event, now); }
  Outputs end(int node, int code, const std::string& message = "", bool job_ended = false) {
    return handle(NodeEnded{
        .node = node, .pid = 100 + node, .code = code, .message = message, .job_ended = job_ended, .step = told_step});
  }
  Outputs end_with_checkpoint(int node, int code, int64_t at_step) {
    return handle(
        NodeEnded{.node = node, .pid = 100 + node, .code = code, .step = at_step, .checkpoint_step = at_step});
  }
  Outputs tick_at_deadline() {
    EXPECT_TRUE(state.deadline.has_value());
    if (state.deadline) now = *state.deadline;
    return handle(NodesTick{});
  }
  // Node 1 ends `times` times, each time `lived` after its start.
  Outputs crash_often(int times, std::chrono::seconds lived, int code = 139) {
    Outputs last;
    for (int i = 0; i < times; ++i) {
      now += lived;
      last = end(1, code);
    }
    return last;
  }

  NodesState state;
  int64_t told_step = 0;  // that the other agents tell at an end
  TimePoint now{1000s};
};

TEST(NodeRestarts, starts_all_nodes_with_the_first_attempt) {
  Nodes run(3);
  const Outputs outputs = run.handle(NodesStarted{});
  EXPECT_EQ(count<StartNode>(outputs), 3);
  EXPECT_EQ(get<StartNode>(outputs).attempt, 7U);
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(NodeRestarts, finishes_with_0_when_all_ended_with_0) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_TRUE(run.end(1, 0).empty());
  const Outputs outputs = run.end(0, 0);
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<FinishNodes>(outputs).code, 0);
  EXPECT_TRUE(run.handle(NodesStopRequested{SIGTERM}).empty());
}

// ---- the pod level ----

TEST(NodeRestarts, replaces_the_lost_node_alone_with_the_next_attempt) {
  Nodes run;
  run.handle(NodesStarted{});
  const Outputs outputs = run.end(1, 137);
  ASSERT_EQ(outputs.size(), 2U);
  const NodeDecision decision = get<NodeDecision>(outputs);
  EXPECT_EQ(decision.level, "pod");
  EXPECT_EQ(decision.node, 1);
  EXPECT_EQ(decision.code, 137);
  EXPECT_TRUE(decision.is_counted);
  EXPECT_EQ(decision.line,
            "node 1 (pid 101) ended with signal 9 (SIGKILL); starting it again as attempt 8 (replacement 1 of 10)");
  EXPECT_EQ(get<StartNode>(outputs).node, 1);
  EXPECT_EQ(get<StartNode>(outputs).attempt, 8U);
}

TEST(NodeRestarts, replaces_node_0_too) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_EQ(get<StartNode>(run.end(0, 139)).node, 0);
}

TEST(NodeRestarts, repeats_the_termination_message_of_the_agent) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_THAT(get<NodeDecision>(run.end(1, 12, "rank 1: ECC")).line,
              HasSubstr("ended with exit code 12 (DeviceFault): rank 1: ECC; starting it again"));
}

struct UncountedCase {
  int code;
  std::string says;
};
TEST(NodeRestarts, does_not_count_ends_that_say_nothing_against_the_node) {
  for (const UncountedCase& c : {UncountedCase{10, "(not counted: it lost its peers, which is not its fault)"},
                                 UncountedCase{143, "(not counted: it was told to stop by somebody else)"},
                                 UncountedCase{130, "(not counted: it was told to stop by somebody else)"}}) {
    Nodes run(2, 0);
    run.handle(NodesStarted{});
    const Outputs outputs = run.end(1, c.code);
    EXPECT_EQ(count<StartNode>(outputs), 1) << c.code;
    EXPECT_THAT(get<NodeDecision>(outputs).line, HasSubstr(c.says));
    EXPECT_FALSE(get<NodeDecision>(outputs).is_counted);
  }
}

TEST(NodeRestarts, kills_and_replaces_a_silent_node_like_a_lost_one) {
  Nodes run(2, 0);
  run.handle(NodesStarted{});
  Outputs outputs = run.handle(NodeSilent{1, 5000ms});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<KillNode>(outputs).node, 1);
  EXPECT_TRUE(run.handle(NodeSilent{1, 6000ms}).empty());
  outputs = run.end(1, 137);
  EXPECT_EQ(count<StartNode>(outputs), 1);
  EXPECT_THAT(get<NodeDecision>(outputs).line, HasSubstr("it was silent for 5 s and was killed"));
  EXPECT_FALSE(get<NodeDecision>(outputs).is_counted);
  EXPECT_EQ(count<KillNode>(run.handle(NodeSilent{1, 5000ms})), 1) << "the replacement is another process";
  outputs = run.end(1, 3, "no data");
  EXPECT_EQ(find<StartNode>(outputs), nullptr) << "it ended before the kill reached it";
  EXPECT_THAT(get<NodeDecision>(outputs).line, HasSubstr("no data"));
}

TEST(NodeRestarts, forgets_the_silence_of_an_earlier_process) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodeSilent{1, 5000ms});
  run.end(1, 137);
  EXPECT_TRUE(get<NodeDecision>(run.end(1, 137)).is_counted);
}

class EndsTheJob : public testing::TestWithParam<int> {};
TEST_P(EndsTheJob, with_this_code) {
  Nodes run;
  run.handle(NodesStarted{});
  Outputs outputs = run.end(1, GetParam(), "why");
  EXPECT_EQ(find<StartNode>(outputs), nullptr);
  EXPECT_EQ(get<SignalNodes>(outputs).signal, SIGTERM);
  EXPECT_EQ(get<NodeDecision>(outputs).level, "pod");
  EXPECT_TRUE(get<NodeDecision>(outputs).gives_up);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace + kNodeStopMargin);
  outputs = run.end(0, 143);
  EXPECT_EQ(get<FinishNodes>(outputs).code, GetParam());
  EXPECT_EQ(get<FinishNodes>(outputs).node, 1);
  EXPECT_THAT(get<FinishNodes>(outputs).message, HasSubstr("why"));
}
INSTANTIATE_TEST_SUITE_P(Codes, EndsTheJob, testing::Values(2, 3, 5));

TEST(NodeRestarts, replaces_a_node_with_an_error_of_the_input_once_the_run_has_made_a_step) {
  for (const int code : {2, 3}) {
    Nodes run;
    run.handle(NodesStarted{});
    const Outputs outputs = run.end_with_checkpoint(1, code, 0);
    EXPECT_EQ(get<StartNode>(outputs).node, 1) << code;
    EXPECT_EQ(run.state.counts.counted.size(), 1U) << "it counts";
  }
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_EQ(find<StartNode>(run.end_with_checkpoint(1, 5, 70)), nullptr);
}

TEST(NodeRestarts, believes_an_agent_that_says_that_the_job_is_over) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_EQ(find<StartNode>(run.end(1, 139, "crash loop: …", true)), nullptr);
  EXPECT_THAT(get<FinishNodes>(run.end(0, 139, "crash loop: …", true)).message, HasSubstr("crash loop: …"));
}

TEST(NodeRestarts, tries_again_when_the_job_ended_for_want_of_peers) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_NE(find<StartNode>(run.end(1, 10, "too few nodes", true)), nullptr);
}

TEST(NodeRestarts, gives_up_when_the_budget_is_used_up) {
  Nodes run(2, 2);
  run.handle(NodesStarted{});
  EXPECT_NE(find<StartNode>(run.crash_often(2, 60s)), nullptr);
  EXPECT_EQ(find<StartNode>(run.crash_often(1, 60s)), nullptr);
  const FinishNodes finish = get<FinishNodes>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_THAT(finish.message, StartsWith("giving up after 2 replaced nodes (--max_restarts 2); node 1 (pid 101)"));
}

TEST(NodeRestarts, a_new_checkpoint_clears_the_count) {
  Nodes run(2, 2);
  run.handle(NodesStarted{});
  run.crash_often(2, 60s);
  EXPECT_NE(find<StartNode>(run.end_with_checkpoint(1, 139, 100)), nullptr);
  EXPECT_NE(find<StartNode>(run.end_with_checkpoint(1, 139, 100)), nullptr);
  EXPECT_EQ(find<StartNode>(run.end_with_checkpoint(1, 139, 100)), nullptr) << "the same one is no news";
}

TEST(NodeRestarts, counts_only_replacements_inside_the_window) {
  Nodes run(2, 1);
  run.handle(NodesStarted{});
  run.end(1, 139);
  EXPECT_NE(find<StartNode>(run.crash_often(1, kRestartWindow + 1s)), nullptr);
  EXPECT_EQ(find<StartNode>(run.crash_often(1, 60s)), nullptr);
}

// ---- the gang level ----

TEST(NodeRestarts, starts_all_again_together_when_replacements_of_a_node_come_no_further) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  EXPECT_NE(find<StartNode>(run.crash_often(2, 100s)), nullptr);
  Outputs outputs = run.crash_often(1, 100s);
  EXPECT_EQ(find<StartNode>(outputs), nullptr);
  EXPECT_EQ(get<NodeDecision>(outputs).level, "gang");
  EXPECT_THAT(get<NodeDecision>(outputs).line,
              HasSubstr("; 2 times in a row a restart of node 1 came no further than its start: stopping all nodes"));
  EXPECT_EQ(get<SignalNodes>(outputs).signal, SIGTERM);
  outputs = run.end(0, 143);
  EXPECT_EQ(count<StartNode>(outputs), 2);
  EXPECT_EQ(get<StartNode>(outputs).node, 0);
  EXPECT_EQ(get<StartNode>(outputs).attempt, 8U);
  EXPECT_EQ(run.state.nodes[1].attempt, 10U);
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(NodeRestarts, starts_a_single_node_again_at_once_and_signals_nobody) {
  Nodes run(1, 100);
  run.handle(NodesStarted{});
  run.end(0, 139);
  run.end(0, 139);
  const Outputs last = run.end(0, 139);
  EXPECT_EQ(get<NodeDecision>(last).level, "gang");
  EXPECT_EQ(find<SignalNodes>(last), nullptr);
  EXPECT_EQ(count<StartNode>(last), 1);
}

TEST(NodeRestarts, counts_a_row_of_one_node_only_and_forgets_it_after_a_further_step) {
  Nodes run(3, 100);
  run.handle(NodesStarted{});
  run.end(2, 139);
  run.crash_often(2, 1s);
  EXPECT_NE(find<StartNode>(run.end(2, 139)), nullptr);
  run.told_step = 5;
  EXPECT_NE(find<StartNode>(run.crash_often(2, 1s)), nullptr);
  EXPECT_EQ(get<NodeDecision>(run.crash_often(1, 1s)).level, "gang");
}

TEST(NodeRestarts, judges_no_progress_that_nobody_can_tell) {
  Nodes run(1, 100);
  run.handle(NodesStarted{});
  run.told_step = -1;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(get<NodeDecision>(run.end(0, 137)).level, "pod");
  Nodes program(2, 100);
  program.state.options.has_steps = false;
  program.handle(NodesStarted{});
  EXPECT_EQ(get<NodeDecision>(program.crash_often(10, 1s)).level, "pod");
}

TEST(NodeRestarts, counts_a_node_that_is_stopped_again_and_again_right_after_its_start) {
  Nodes run(2, 3);
  run.state.options.has_steps = false;
  run.handle(NodesStarted{});
  EXPECT_FALSE(get<NodeDecision>(run.crash_often(5, kShortLife, 143)).is_counted);
  EXPECT_TRUE(get<NodeDecision>(run.crash_often(3, 1s, 143)).is_counted);
  EXPECT_TRUE(get<NodeDecision>(run.crash_often(1, 1s, 143)).gives_up);
}

TEST(NodeRestarts, kills_what_does_not_stop_for_the_gang) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  run.crash_often(3, 1s);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace + kNodeStopMargin);
  EXPECT_EQ(get<KillNode>(run.tick_at_deadline()).node, 0);
  EXPECT_EQ(count<StartNode>(run.end(0, 137)), 2);
}

TEST(NodeRestarts, gives_up_when_the_gang_came_no_further_either) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  run.crash_often(3, 1s);
  run.end(0, 143);
  const Outputs outputs = run.crash_often(1, 1s);
  EXPECT_EQ(find<StartNode>(outputs), nullptr);
  EXPECT_TRUE(get<NodeDecision>(outputs).gives_up);
  EXPECT_EQ(get<NodeDecision>(outputs).level, "gang");
  const FinishNodes finish = get<FinishNodes>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_THAT(finish.message, HasSubstr("3 times in a row a restart of node 1 came no further than its start; node 1"));
}

TEST(NodeRestarts, gives_up_by_the_level_that_cannot_help_whatever_was_tried_before) {
  const auto after_the_gang = [] {
    Nodes run(2, 4);
    run.handle(NodesStarted{});
    run.crash_often(3, 1s);
    run.end(0, 143);
    return run;
  };
  Nodes used_up = after_the_gang();
  used_up.told_step = 50;
  EXPECT_NE(find<StartNode>(used_up.crash_often(1, 60s)), nullptr);
  const Outputs outputs = used_up.crash_often(1, 60s);
  EXPECT_TRUE(get<NodeDecision>(outputs).gives_up);
  EXPECT_EQ(get<NodeDecision>(outputs).level, "pod");

  Nodes wrong_input = after_the_gang();
  EXPECT_EQ(get<NodeDecision>(wrong_input.end(1, 2)).level, "pod");
}

TEST(NodeRestarts, bounds_uncounted_replacements_too) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  EXPECT_EQ(get<NodeDecision>(run.crash_often(3, 1s, 10)).level, "gang");
}

TEST(NodeRestarts, ends_the_job_at_the_second_lack_of_memory_without_a_checkpoint_between) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  EXPECT_NE(find<StartNode>(run.end(1, 13)), nullptr);
  EXPECT_NE(find<StartNode>(run.end_with_checkpoint(0, 13, 100)), nullptr);
  EXPECT_TRUE(get<NodeDecision>(run.end(1, 13)).gives_up);
}

// ---- stopping ----

TEST(NodeRestarts, forwards_a_stop_and_replaces_nobody) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_EQ(get<SignalNodes>(run.handle(NodesStopRequested{SIGTERM})).signal, SIGTERM);
  EXPECT_TRUE(run.handle(NodesStopRequested{SIGTERM}).empty());
  EXPECT_TRUE(run.end(1, 143).empty());
  const FinishNodes finish = get<FinishNodes>(run.end(0, 143));
  EXPECT_EQ(finish.code, 143);
  EXPECT_EQ(finish.message, "stopped by SIGTERM");
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(NodeRestarts, kills_all_at_a_second_Ctrl_C) {
  Nodes run;
  run.handle(NodesStarted{});
  EXPECT_EQ(get<SignalNodes>(run.handle(NodesStopRequested{SIGINT})).signal, SIGINT);
  EXPECT_EQ(count<KillNode>(run.handle(NodesStopRequested{SIGINT})), 2);
  run.end(0, 137);
  const FinishNodes finish = get<FinishNodes>(run.end(1, 137));
  EXPECT_EQ(finish.code, 130);
  EXPECT_EQ(finish.message, "stopped by Ctrl-C");
}

TEST(NodeRestarts, forwards_a_second_signal_that_differs_and_SIGTERM_outranks_Ctrl_C) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGINT});
  EXPECT_EQ(get<SignalNodes>(run.handle(NodesStopRequested{SIGTERM})).signal, SIGTERM);
  run.end(0, 130);
  EXPECT_EQ(get<FinishNodes>(run.end(1, 130)).code, 143);

  Nodes other_way_round;
  other_way_round.handle(NodesStarted{});
  other_way_round.handle(NodesStopRequested{SIGTERM});
  other_way_round.handle(NodesStopRequested{SIGINT});
  other_way_round.end(0, 143);
  EXPECT_EQ(get<FinishNodes>(other_way_round.end(1, 143)).code, 143);
}

TEST(NodeRestarts, names_a_failure_while_stopping) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  EXPECT_EQ(find<StartNode>(run.end(1, 4, "disk full")), nullptr);
  const FinishNodes finish = get<FinishNodes>(run.end(0, 143));
  EXPECT_EQ(finish.code, 4);
  EXPECT_EQ(finish.node, 1);
}

TEST(NodeRestarts, kills_what_has_not_stopped_in_time) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  run.end(0, 143);
  EXPECT_TRUE(run.handle(NodesTick{}).empty()) << "not before the time";
  EXPECT_EQ(get<KillNode>(run.tick_at_deadline()).node, 1);
  EXPECT_FALSE(run.state.deadline.has_value());
  const FinishNodes finish = get<FinishNodes>(run.end(1, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_EQ(finish.message, "node 1 had not stopped 75 s after being asked to");
}

TEST(NodeRestarts, names_a_failure_while_stopping_whoever_is_late_after_it) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  run.end(1, 4, "disk full");
  EXPECT_EQ(get<KillNode>(run.tick_at_deadline()).node, 0);
  EXPECT_EQ(get<FinishNodes>(run.end(0, 137)).code, 4);
}

TEST(NodeRestarts, gives_nodes_more_time_to_stop_than_they_give_their_workers) {
  Nodes run;
  run.state.options.stop_timeout = 300s;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  EXPECT_EQ(run.state.deadline, run.now + 315s);
  run.tick_at_deadline();
  run.end(0, 137);
  EXPECT_EQ(get<FinishNodes>(run.end(1, 137)).message, "node 0, node 1 had not stopped 315 s after being asked to");
}

TEST(NodeRestarts, stops_instead_of_starting_the_gang) {
  Nodes run(2, 100);
  run.handle(NodesStarted{});
  run.crash_often(3, 1s);
  run.handle(NodesStopRequested{SIGINT});
  const Outputs outputs = run.end(0, 143);
  EXPECT_EQ(find<StartNode>(outputs), nullptr);
  EXPECT_EQ(get<FinishNodes>(outputs).code, 130);

  Nodes failing(2, 100);
  failing.handle(NodesStarted{});
  failing.crash_often(3, 1s);
  failing.handle(NodesStopRequested{SIGINT});
  EXPECT_EQ(get<FinishNodes>(failing.end(0, 4)).code, 4);
}

TEST(NodeRestarts, gives_a_second_signal_or_the_end_no_more_time) {
  Nodes run(3);
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGINT});
  const auto until = run.state.deadline;
  run.now += kStopGrace + kNodeStopMargin - 1s;
  run.handle(NodesStopRequested{SIGTERM});
  EXPECT_EQ(run.state.deadline, until);
  run.end(0, 0);
  EXPECT_EQ(run.state.deadline, until);
}

TEST(NodeRestarts, kills_nobody_for_the_time_in_which_it_did_not_run_itself) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  run.now += 400s;
  EXPECT_EQ(find<KillNode>(run.handle(NodesTick{})), nullptr);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace + kNodeStopMargin);
  EXPECT_EQ(count<KillNode>(run.tick_at_deadline()), 2);

  Nodes late;
  late.handle(NodesStarted{});
  late.handle(NodesStopRequested{SIGTERM});
  late.now += kStopGrace + kNodeStopMargin + kAsleepMin;
  EXPECT_EQ(count<KillNode>(late.handle(NodesTick{})), 2);
}

TEST(NodeRestarts, ends_before_it_has_begun) {
  Nodes run;
  EXPECT_EQ(get<FinishNodes>(run.handle(NodesStopRequested{SIGTERM})).code, 143);
  EXPECT_TRUE(run.handle(NodesStarted{}).empty());
}

TEST(NodeRestarts, does_nothing_before_it_has_begun) {
  Nodes run;
  EXPECT_TRUE(run.handle(NodesTick{}).empty());
  EXPECT_EQ(count<StartNode>(run.handle(NodesStarted{})), 2);
}

// ---- the end ----

TEST(NodeRestarts, kills_what_does_not_follow_a_node_that_is_done) {
  Nodes run(3);
  run.handle(NodesStarted{});
  run.end(0, 0);
  EXPECT_EQ(run.state.deadline, run.now + kNodeEndGrace);
  run.end(1, 0);
  const Outputs outputs = run.tick_at_deadline();
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<KillNode>(outputs).node, 2);
  const Outputs last = run.end(2, 137);
  EXPECT_EQ(last.size(), 1U);
  EXPECT_EQ(get<FinishNodes>(last).code, 0);
}

TEST(NodeRestarts, gives_the_others_no_longer_than_that_even_when_a_stop_gives_them_more) {
  Nodes run;
  run.state.options.stop_timeout = 300s;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  run.end(0, 0);
  EXPECT_EQ(run.state.deadline, run.now + kNodeEndGrace);
}

TEST(NodeRestarts, is_complete_even_when_another_node_had_failed) {
  Nodes run;
  run.handle(NodesStarted{});
  run.end(1, 3, "no data");
  EXPECT_EQ(get<FinishNodes>(run.end(0, 0)).code, 0);
}

TEST(NodeRestarts, replaces_nobody_after_training_was_complete) {
  Nodes run;
  run.handle(NodesStarted{});
  run.end(1, 0);
  const Outputs outputs = run.end(0, 139);
  EXPECT_EQ(find<StartNode>(outputs), nullptr);
  EXPECT_THAT(get<NodeDecision>(outputs).line, HasSubstr("SIGSEGV), after training was complete"));
  EXPECT_EQ(get<FinishNodes>(outputs).code, 0);
}

TEST(NodeRestarts, is_complete_even_when_it_was_to_stop) {
  Nodes run;
  run.handle(NodesStarted{});
  run.handle(NodesStopRequested{SIGTERM});
  run.end(0, 0);
  EXPECT_EQ(get<FinishNodes>(run.end(1, 143)).code, 0);
}

// ---- whatever comes, in whatever order ----

TEST(NodeRestarts, comes_to_an_end_whatever_happens) {
  constexpr std::array kCodes{137, 139, 1, 10, 143, 12, 137, 139, 1, 10, 0, 3};
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); };
    Nodes run(1 + pick(4), 5);
    std::set<int> alive;
    bool finished = false;
    const auto apply = [&](const NodesEvent& event) {
      if (const auto* end = std::get_if<NodeEnded>(&event)) alive.erase(end->node);
      for (const NodesOutput& output : run.handle(event)) {
        EXPECT_FALSE(finished);
        const auto* start = std::get_if<StartNode>(&output);
        EXPECT_TRUE(start == nullptr || alive.insert(start->node).second);
        const auto* kill = std::get_if<KillNode>(&output);
        EXPECT_TRUE(kill == nullptr || alive.contains(kill->node));
        if (std::holds_alternative<FinishNodes>(output)) {
          finished = true;
          EXPECT_TRUE(alive.empty());
        }
      }
      EXPECT_EQ(finished, alive.empty());
    };
    apply(NodesStarted{});
    for (int i = 0; i < 200 && !finished; ++i) {
      run.now += std::chrono::milliseconds(pick(20'000));
      const int node = pick(run.state.options.nodes);
      if (pick(3) == 0 && alive.contains(node)) {
        apply(NodeEnded{node, 1, kCodes[static_cast<size_t>(pick(12))], "", pick(40) == 0, pick(3) - 1});
      } else if (pick(10) == 0) {
        apply(NodeSilent{node, 5000ms});
      } else if (pick(60) == 0) {
        apply(NodesStopRequested{pick(2) == 0 ? SIGINT : SIGTERM});
      } else {
        apply(NodesTick{});
      }
    }
    apply(NodesStopRequested{SIGTERM});
    for (int node = 0; node < run.state.options.nodes; ++node) {
      if (alive.contains(node)) apply(NodeEnded{node, 1, 143, "", false, -1});
    }
    ASSERT_TRUE(finished);
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace lockstep
