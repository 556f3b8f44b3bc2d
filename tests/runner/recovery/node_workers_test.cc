// The lives of a node's workers, and its end. (node_membership_test.cc: its place in the group.)
#include "runner/recovery/node_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>
#include <utility>

#include "tests/runner/recovery/node_scenario.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// ---- from the start to the end ----

TEST(NodeWorkers, starts_a_worker_for_each_local_rank) {
  NodeScenario run(3);
  const NodeOutputs outputs = run.begin();
  EXPECT_EQ(count<StartWorker>(outputs), 3);
  EXPECT_EQ(std::get<StartWorker>(outputs[2]).local_rank, 2);
  EXPECT_EQ(run.deadline(), run.now + 300s);
}

TEST(NodeWorkers, is_ready_when_the_last_worker_has_said_hello) {
  NodeScenario run;
  run.begin();
  EXPECT_TRUE(run.handle(WorkerHello{1}).empty());
  const NodeOutputs outputs = run.handle(WorkerHello{0});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(get_sent<NodeReady>(outputs).ready);
  EXPECT_FALSE(run.deadline().has_value());
}

TEST(NodeWorkers, gives_up_when_its_workers_have_other_terms) {
  NodeScenario run;
  run.begin();
  run.handle(WorkerHello{0, R"({"backend in effect":"nccl"})"});
  const NodeOutputs outputs = run.handle(WorkerHello{1, R"({"backend in effect":"gloo"})"});
  EXPECT_FALSE(sent<NodeReady>(outputs));
  const NodeFailed failed = get_sent<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 2);
  EXPECT_TRUE(failed.ends_job);
  EXPECT_EQ(failed.message,
            "the backend in effect is nccl in rank 0 and gloo in rank 1; start all ranks with the same flags, data and "
            "version of lockstep");
  EXPECT_EQ(count<KillProcess>(outputs), 2);
}

TEST(NodeWorkers, is_done_when_all_ended_with_0_and_ends_with_the_job) {
  NodeScenario run;
  run.train();
  EXPECT_TRUE(run.end(0, 0).empty());
  const NodeOutputs outputs = run.end(1, 0);
  EXPECT_EQ(all_sent<NodeDone>(outputs).size(), 1U);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  EXPECT_FALSE(run.deadline().has_value());
  EXPECT_EQ(get<Finish>(run.receive(EndJob{0, ""})).code, 0);
}

TEST(NodeWorkers, finishes_once) {
  NodeScenario run;
  run.train();
  run.end(0, 0);
  run.end(1, 0);
  EXPECT_EQ(count<Finish>(run.receive(EndJob{0, ""})), 1);
  EXPECT_TRUE(run.receive(EndJob{1, "late"}).empty());
  EXPECT_TRUE(run.handle(StopRequested{SIGTERM}).empty());
  EXPECT_TRUE(run.handle(NodeTick{}).empty());
  EXPECT_FALSE(run.deadline().has_value());
}

// ---- one worker ends ----

TEST(NodeWorkers, starts_the_dead_worker_again_and_leaves_the_others_alone) {
  NodeScenario run;
  run.train();
  run.handle(WorkerAtStep{1, 12});
  const NodeOutputs outputs = run.end(1, 139);
  EXPECT_EQ(count<StartWorker>(outputs), 1);
  EXPECT_EQ(get<StartWorker>(outputs).local_rank, 1);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(find<SignalWorkers>(outputs), nullptr);
  EXPECT_EQ(get<RestartDecision>(outputs).reason, "SignalSEGV");
  EXPECT_EQ(get<RestartDecision>(outputs).line,
            "rank 1 (pid 101) ended with signal 11 (SIGSEGV) at step 12; starting it again, the others keep their "
            "state (restart 1 of 10)");
}

TEST(NodeWorkers, is_ready_again_when_the_survivor_left_and_the_new_process_said_hello) {
  NodeScenario run;
  run.train();
  run.end(1, 139);
  EXPECT_FALSE(sent<NodeReady>(run.handle(WorkerHello{1})));
  EXPECT_TRUE(get_sent<NodeReady>(run.leave(0)).ready);
  EXPECT_EQ(count<Assignment>(run.place()), 1);
}

TEST(NodeWorkers, takes_ready_back_when_a_waiting_worker_ends) {
  NodeScenario run;
  run.begin();
  run.hello();
  const NodeOutputs outputs = run.end(0, 1);
  EXPECT_FALSE(get_sent<NodeReady>(outputs).ready);
  EXPECT_FALSE(sent<Broken>(outputs));
  EXPECT_TRUE(get_sent<NodeReady>(run.handle(WorkerHello{0})).ready);
}

TEST(NodeWorkers, tells_a_lost_peer_once_per_generation) {
  NodeScenario run(3);
  run.train();
  const Broken broken = get_sent<Broken>(run.leave(0));
  EXPECT_EQ(broken.rank, -1);
  EXPECT_EQ(broken.cause, "PeerLost");
  EXPECT_EQ(broken.message, "it saw PeerLost");
  EXPECT_FALSE(sent<Broken>(run.leave(1)));
}

TEST(NodeWorkers, tells_the_end_of_a_worker_even_after_a_lost_peer_but_not_the_other_way_round) {
  NodeScenario run(3);
  run.train();
  run.leave(0);
  EXPECT_EQ(get_sent<Broken>(run.end(1, 139)).rank, 1);
  EXPECT_FALSE(sent<Broken>(run.leave(2)));
}

TEST(NodeWorkers, calls_nothing_broken_when_a_worker_left_as_it_was_told) {
  for (const char* cause : {"Cut", "Regroup"}) {
    NodeScenario run;
    run.train();
    EXPECT_TRUE(run.leave(0, cause).empty()) << cause;
    const NodeOutputs outputs = run.leave(1, cause);
    EXPECT_EQ(outputs.size(), 1U);
    EXPECT_TRUE(get_sent<NodeReady>(outputs).ready);
  }
}

TEST(NodeWorkers, takes_no_step_back_at_a_beat_that_is_late) {
  NodeScenario run;
  run.train();
  run.handle(WorkerAtStep{1, 12});
  run.handle(WorkerAtStep{1, 11});
  EXPECT_THAT(get<RestartDecision>(run.end(1, 139)).line, HasSubstr(" at step 12;"));
}

TEST(NodeWorkers, ignores_a_left_of_an_older_generation) {
  NodeScenario run;
  run.train();
  EXPECT_TRUE(run.handle(WorkerLeft{0, run.generation - 1, "PeerLost", ""}).empty());
  EXPECT_EQ(run.state.workers[0].phase, WorkerPhase::kPlaced);
}

struct StartTextCase {
  int64_t step;
  std::optional<int64_t> checkpoint;
  std::string says;
};
TEST(NodeWorkers, says_where_a_worker_alone_begins_again) {
  const std::vector<StartTextCase> cases{
      {0, std::nullopt, "; starting it again from the beginning (restart 1 of 10)"},
      {3, 2, " at step 3; starting it again from the newest checkpoint (restart 1 of 10)"},
      {3, std::nullopt, "from the newest checkpoint, or from the beginning if there is none (restart"},
  };
  for (const StartTextCase& c : cases) {
    NodeScenario run(1);
    run.train();
    run.handle(WorkerAtStep{0, c.step});
    if (c.checkpoint) run.handle(CheckpointNews{*c.checkpoint});
    EXPECT_THAT(get<RestartDecision>(run.end(0, 139)).line, HasSubstr(c.says));
  }
}

TEST(NodeWorkers, knows_that_ranks_on_other_nodes_keep_their_state) {
  NodeScenario run(1);
  run.world_size = 2;
  run.train();
  EXPECT_THAT(get<RestartDecision>(run.end(0, 139)).line, HasSubstr("the others keep their state"));
}

// ---- restarts, and giving up ----

class NeverStartedAgain : public testing::TestWithParam<int> {};
TEST_P(NeverStartedAgain, this_code) {
  NodeScenario run;
  run.train();
  NodeOutputs outputs = run.end(1, GetParam(), "why");
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(get_sent<NodeFailed>(outputs).code, GetParam());
  EXPECT_TRUE(get_sent<NodeFailed>(outputs).ends_job);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  outputs = run.end(0, 137);
  EXPECT_EQ(get<Finish>(outputs).code, GetParam());
  EXPECT_EQ(get<Finish>(outputs).rank, 1);
  EXPECT_THAT(get<Finish>(outputs).message, HasSubstr("why"));
}
INSTANTIATE_TEST_SUITE_P(Codes, NeverStartedAgain, testing::Values(2, 3, 5));

// The same input has worked: a mount or an interface may be away for a moment.
TEST(NodeWorkers, restarts_after_an_error_of_the_input_once_it_has_trained) {
  for (const int code : {2, 3}) {
    NodeScenario run;
    run.train();
    run.handle(WorkerAtStep{0, 3});
    EXPECT_EQ(get<StartWorker>(run.end(1, code, "stale file handle")).local_rank, 1) << code;
  }
}

TEST(NodeWorkers, kills_all_after_a_loss_that_is_not_finite_whatever_they_hold) {
  NodeScenario run;
  run.train();
  run.handle(WorkerAtStep{0, 3});
  const NodeOutputs outputs = run.end(1, 5);
  EXPECT_TRUE(get_sent<NodeFailed>(outputs).ends_job);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  EXPECT_EQ(find<SignalWorkers>(outputs), nullptr);
}

// The only worker of a node fails: the node must report why before it ends.
TEST(NodeWorkers, does_not_finish_before_the_coordinator_knows_why) {
  NodeScenario run(1);
  run.coordinator_answers = false;
  run.train();
  const NodeOutputs outputs = run.end(0, 3, "no file");
  EXPECT_TRUE(get_sent<NodeFailed>(outputs).ends_job);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  const Finish finish = get<Finish>(run.receive(EndJob{.code = 3, .message = "the others have heard"}));
  EXPECT_EQ(finish.code, 3);
  EXPECT_EQ(finish.message, "no file");
}

TEST(NodeWorkers, gives_up_a_worker_that_sigkill_does_not_end) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(get<KillProcess>(run.receive(KillWorker{.local_rank = 1, .message = "it hangs"})).local_rank, 1);
  EXPECT_EQ(run.deadline(), run.now + kKillGrace);
  const NodeOutputs outputs = run.pass_to_deadline();
  const NodeFailed failed = get_sent<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 11);
  EXPECT_FALSE(failed.ends_job) << "another machine can do it";
  EXPECT_EQ(failed.message,
            "rank 1 did not end 30 s after SIGKILL: its device or a file system does not answer: look at this machine");
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_TRUE(run.end(1, 137).empty()) << "it ends after all, and nobody cares";
}

// Before a hanging worker is killed, its stacks are dumped; in that time it may still say something.
TEST(NodeWorkers, remembers_the_kill_of_a_worker_that_still_leaves_its_group) {
  NodeScenario run;
  run.train();
  run.receive(KillWorker{.local_rank = 1, .message = "it hangs"});
  const TimePoint given_up_at = run.now + kKillGrace;
  run.pass(100ms);
  run.receive(CutGroup{.generation = run.generation, .cause = "Stalled"});
  run.leave(1, "Cut");
  run.leave(0, "Cut");
  EXPECT_EQ(run.deadline(), given_up_at);
  EXPECT_EQ(get_sent<NodeFailed>(run.pass_to_deadline()).code, 11);

  NodeScenario late;
  late.begin();
  late.handle(WorkerHello{0});
  late.pass_to_deadline();
  late.handle(WorkerHello{1});
  EXPECT_EQ(late.deadline(), late.now + kKillGrace);
}

TEST(NodeWorkers, lets_the_others_write_when_one_cannot_be_killed_during_a_stop) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{143});
  run.receive(KillWorker{.local_rank = 1, .message = "it hangs"});
  const NodeOutputs outputs = run.pass(kKillGrace);
  EXPECT_EQ(get_sent<Broken>(outputs).rank, 1);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 11);
}

TEST(NodeWorkers, waits_for_the_coordinator_although_it_is_asked_to_stop) {
  NodeScenario run(1);
  run.coordinator_answers = false;
  run.train();
  run.end(0, 3, "no file");
  EXPECT_EQ(find<Finish>(run.handle(StopRequested{SIGTERM})), nullptr);
  EXPECT_EQ(get<Finish>(run.receive(EndJob{.code = 3, .message = ""})).message, "no file");
}

TEST(NodeWorkers, waits_for_the_coordinator_although_the_time_for_the_stop_is_over) {
  NodeScenario run(2);
  run.coordinator_answers = false;
  run.train();
  ASSERT_TRUE(sent<NodeFailed>(run.end(0, 3, "no file")));
  run.handle(StopRequested{SIGTERM});
  EXPECT_EQ(find<Finish>(run.end(1, 143)), nullptr);
  EXPECT_EQ(find<Finish>(run.pass_to_deadline()), nullptr);
  EXPECT_EQ(get<Finish>(run.receive(EndJob{.code = 3, .message = ""})).message, "no file");
}

TEST(NodeWorkers, kills_the_others_when_it_gives_up_and_waits_for_nobody_to_say_so) {
  NodeScenario run;
  run.coordinator_answers = false;
  run.train();
  EXPECT_EQ(get<KillProcess>(run.end(1, 3, "no file")).local_rank, 0);
}

TEST(NodeWorkers, hears_one_end_of_the_job) {
  NodeScenario run;
  run.train();
  run.receive(EndJob{.code = 5, .message = "not finite"});
  run.receive(EndJob{.code = 3, .message = "no file"});
  run.end(0, 137);
  const Finish finish = get<Finish>(run.end(1, 137));
  EXPECT_EQ(finish.code, 5);
  EXPECT_EQ(finish.message, "not finite");
}

TEST(NodeWorkers, does_not_wait_for_the_unkillable_when_the_job_is_over) {
  NodeScenario run(1);
  run.train();
  run.receive(EndJob{.code = 3, .message = "another node failed"});
  const Finish finish = get<Finish>(run.pass_to_deadline());
  EXPECT_EQ(finish.code, 3);
}

TEST(NodeWorkers, says_what_is_wrong_with_the_input_without_naming_a_rank) {
  NodeScenario run(1);
  run.begin();
  const Finish finish = get<Finish>(run.end(0, 3, "no file x.inter"));
  EXPECT_EQ(finish.message, "no file x.inter");
  EXPECT_FALSE(finish.message_names_code);
}

// The volume may be away on this machine, or for a moment: the node gives up, and the job does not end.
TEST(NodeWorkers, restarts_after_a_checkpoint_failure_before_the_first_step_and_then_gives_up) {
  NodeScenario run(1);
  run.train();
  run.handle(WorkerAtStep{0, 0});
  for (int i = 0; i < kNoProgressIncidentsMax; ++i) {
    ASSERT_NE(find<RestartDecision>(run.end(0, 4, "read-only")), nullptr) << i;
    if (run.state.workers[0].phase == WorkerPhase::kBackoff) run.pass_to_deadline();
  }
  const NodeOutputs outputs = run.end(0, 4, "read-only");
  EXPECT_FALSE(get_sent<NodeFailed>(outputs).ends_job);
  EXPECT_EQ(get<Finish>(outputs).code, 4);
  EXPECT_THAT(get<Finish>(outputs).message, HasSubstr("CheckpointFailed): read-only"));
  EXPECT_TRUE(get<Finish>(outputs).message_names_code);
}

TEST(NodeWorkers, gives_the_node_up_at_the_second_device_fault_in_a_row) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(get<RestartDecision>(run.end(1, 12, "CUDA error: ECC")).reason, "DeviceFault");
  const NodeOutputs outputs = run.end(1, 12, "the driver shows 2 GPUs, but CUDA starts 1");
  const NodeFailed failed = get_sent<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 12);
  EXPECT_FALSE(failed.ends_job);
  EXPECT_THAT(failed.message, StartsWith("this machine was at fault 2 times in a row; rank 1 (pid 101) ended with"));
  EXPECT_EQ(count<StartWorker>(outputs), 0);
}

TEST(NodeWorkers, counts_device_faults_anew_after_another_end_or_a_new_checkpoint) {
  NodeScenario other(2, 100);
  other.train();
  for (const int code : {12, 139, 12}) {
    EXPECT_NE(find<RestartDecision>(other.end(1, code)), nullptr) << code;
    if (other.state.workers[1].phase == WorkerPhase::kBackoff) other.pass_to_deadline();
  }
  NodeScenario saved;
  saved.train();
  saved.end(1, 12);
  saved.handle(CheckpointNews{30});
  EXPECT_NE(find<RestartDecision>(saved.end(1, 12)), nullptr);
}

// ---- what is written before the end ----

TEST(NodeWorkers, lets_rank_0_write_before_the_node_gives_up) {
  NodeScenario run(3, 0);
  run.coordinator_answers = false;
  run.train();
  run.handle(WorkerAtStep{0, 7});
  NodeOutputs outputs = run.end(2, 139);
  EXPECT_FALSE(get_sent<NodeFailed>(outputs).ends_job);
  EXPECT_EQ(get<CutGroup>(outputs).generation, run.generation);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  ASSERT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  EXPECT_EQ(count<KillProcess>(run.receive(EndJob{139, "as it told the others"})), 0);
  run.end(1, 137);
  EXPECT_EQ(count<KillProcess>(run.leave(0, "Cut")), 0) << "it waits for no group, but writes";
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.rank, 2);
  EXPECT_THAT(finish.message, Not(HasSubstr("are lost")));
}

TEST(NodeWorkers, lets_rank_0_write_before_a_job_ends_that_failed_elsewhere) {
  NodeScenario run;
  run.world_size = 4;
  run.train();
  run.handle(WorkerAtStep{0, 7});
  run.leave(0);
  run.leave(1);
  const NodeOutputs outputs = run.receive(EndJob{2, "node 1: ConfigurationChanged"});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  run.end(1, 137);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 2);
}

TEST(NodeWorkers, kills_a_rank_0_that_has_not_written_in_time) {
  NodeScenario run(2, 0);
  run.train();
  run.handle(WorkerAtStep{0, 7});
  run.end(1, 139);
  run.leave(0);
  EXPECT_EQ(run.deadline(), run.now + kStopGrace);
  EXPECT_EQ(get<KillProcess>(run.pass_to_deadline()).local_rank, 0);
  EXPECT_EQ(get<Finish>(run.end(0, 137)).code, 139);
}

// Only the others hold the steps: they go to rank 0 in a last group.
TEST(NodeWorkers, starts_a_rank_0_that_fails_a_last_time_to_write_what_the_others_hold) {
  NodeScenario run(2, 0);
  run.train();
  run.handle(WorkerAtStep{1, 7});
  NodeOutputs outputs = run.end(0, 139);
  EXPECT_FALSE(sent<NodeFailed>(outputs));
  EXPECT_EQ(get<StartWorker>(outputs).local_rank, 0);
  EXPECT_EQ(get_sent<Leave>(outputs).code, 143);
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("after rank 0 has written what the other ranks hold"));
  run.leave(1);
  EXPECT_TRUE(get_sent<NodeReady>(run.handle(WorkerHello{0})).ready);
  EXPECT_NE(find<Assignment>(run.place()), nullptr);
  EXPECT_EQ(get<SignalWorkers>(run.receive(StopJob{143})).signal, SIGTERM);
  run.end(1, 143);
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_THAT(finish.message, StartsWith("giving up after 0 restarts"));
  EXPECT_THAT(finish.message, Not(HasSubstr("are lost")));
}

TEST(NodeWorkers, says_what_is_lost_when_rank_0_fails_for_the_last_time) {
  NodeScenario run(2, 0);
  run.train();
  run.handle(WorkerAtStep{1, 7});
  run.end(0, 139);
  run.leave(1);
  const NodeOutputs outputs = run.end(0, 11);
  EXPECT_EQ(get_sent<NodeFailed>(outputs).code, 139) << "what failed first is the reason";
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  EXPECT_THAT(get<Finish>(run.end(1, 137)).message, HasSubstr("; the steps since the newest checkpoint are lost"));
}

TEST(NodeWorkers, tries_a_broken_device_of_rank_0_no_third_time) {
  NodeScenario run;
  run.train();
  run.handle(WorkerAtStep{1, 7});
  run.end(0, 12);
  run.leave(1);
  const NodeOutputs outputs = run.end(0, 12);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_THAT(get_sent<NodeFailed>(outputs).message, HasSubstr("the steps since the newest checkpoint are lost"));
}

TEST(NodeWorkers, starts_no_rank_0_for_steps_that_are_written_or_held_by_other_nodes) {
  NodeScenario written(2, 0);
  written.train();
  written.handle(WorkerAtStep{1, 7});
  written.handle(CheckpointNews{7});
  EXPECT_TRUE(sent<NodeFailed>(written.end(0, 139)));

  NodeScenario elsewhere(2, 0);
  elsewhere.world_size = 4;
  elsewhere.begin();
  elsewhere.hello();
  elsewhere.place(0, /*nnodes=*/2);
  elsewhere.handle(WorkerAtStep{1, 7});
  EXPECT_TRUE(sent<NodeFailed>(elsewhere.end(0, 139)));
}

// ---- the budget ----

TEST(NodeWorkers, gives_up_alone_when_the_budget_is_used_up) {
  NodeScenario run(2, 2);
  run.train();
  for (const int64_t at : {1, 2}) {
    EXPECT_NE(find<StartWorker>(run.crash_at(at)), nullptr);
    run.recover();
  }
  const NodeOutputs outputs = run.crash_at(3);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_FALSE(get_sent<NodeFailed>(outputs).ends_job);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.step, 3);
  EXPECT_THAT(finish.message, StartsWith("giving up after 2 restarts (--max_restarts 2); rank 1 (pid 101) ended"));
}

TEST(NodeWorkers, a_total_is_cleared_by_neither_progress_nor_time_and_no_crash_loop_ends_the_run_before) {
  NodeScenario run(2, 5);
  run.state.options.restarts_are_total = true;
  run.train();
  for (int restart = 0; restart < 5; ++restart) {
    EXPECT_EQ(find<Finish>(run.crash_at(3)), nullptr) << restart;
    run.recover();
    run.handle(CheckpointNews{restart + 1});
    run.pass(2 * kRestartWindow);
  }
  const NodeOutputs last = run.crash_at(3);
  ASSERT_TRUE(sent<NodeFailed>(last));
  EXPECT_THAT(get_sent<NodeFailed>(last).message, StartsWith("giving up after 5 restarts (--max_restarts 5)"));
}

TEST(NodeWorkers, progress_of_a_program_clears_the_count) {
  NodeScenario run(2, 2);
  run.train();
  for (int restart = 0; restart < 6; ++restart) {
    EXPECT_FALSE(sent<NodeFailed>(run.crash_at(3))) << restart;
    run.recover();
    run.handle(ProgramProgressed{});
  }
}

TEST(NodeWorkers, of_a_program_says_whether_all_start_again_or_the_lost_rank_alone) {
  NodeScenario run(2, 2);
  run.state.options.ranks_keep_state = false;
  run.train();
  EXPECT_THAT(get<RestartDecision>(run.crash_at(3)).line, HasSubstr("starting all ranks again"));
  run.recover();
  run.handle(WorkerOutlives{0});
  run.handle(WorkerOutlives{1});
  EXPECT_THAT(get<RestartDecision>(run.crash_at(4)).line, HasSubstr("starting it again, the others keep their state"));
}

TEST(NodeWorkers, of_a_program_says_that_the_ranks_of_other_nodes_keep_their_state) {
  NodeScenario run(1);
  run.world_size = 3;
  run.state.options.ranks_keep_state = false;
  run.begin();
  run.hello();
  run.place(1, 3);
  run.handle(WorkerOutlives{0});
  EXPECT_THAT(get<RestartDecision>(run.end(0, 137)).line, HasSubstr("the others keep their state"));
}

TEST(NodeWorkers, of_a_program_write_what_they_hold_before_the_node_gives_up) {
  NodeScenario run(2, 0);
  run.state.options.ranks_keep_state = false;
  run.train();
  run.handle(WorkerOutlives{0});
  run.handle(WorkerOutlives{1});
  const NodeOutputs outputs = run.crash_at(5);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 139);
}

TEST(NodeWorkers, starts_nobody_again_with_max_restarts_0) {
  NodeScenario run(1, 0);
  run.begin();
  EXPECT_EQ(get<Finish>(run.end(0, 139)).code, 139);
}

TEST(NodeWorkers, finds_the_cause_when_the_peer_lost_is_seen_first) {
  NodeScenario run(2, 0);
  run.train();
  run.end(0, 10);
  EXPECT_EQ(get<Finish>(run.end(1, 139)).rank, 1);
}

TEST(NodeWorkers, counts_only_restarts_inside_the_window) {
  NodeScenario run(2, 1);
  run.train();
  run.crash_at(1);
  run.recover();
  run.pass(kRestartWindow + 1s);
  EXPECT_NE(find<StartWorker>(run.crash_at(2)), nullptr);
  run.recover();
  EXPECT_TRUE(sent<NodeFailed>(run.crash_at(3)));
}

TEST(NodeWorkers, forgets_restarts_at_a_new_checkpoint_but_not_at_an_old_one) {
  NodeScenario run(2, 1);
  run.train();
  run.handle(CheckpointNews{10});
  run.crash_at(11);
  run.recover();
  run.handle(CheckpointNews{20});
  EXPECT_NE(find<StartWorker>(run.crash_at(21)), nullptr);
  run.recover();
  run.handle(CheckpointNews{20});
  EXPECT_TRUE(sent<NodeFailed>(run.crash_at(22)));
}

TEST(NodeWorkers, counts_several_ends_in_one_placement_once) {
  NodeScenario run(4, 1);
  run.train();
  run.handle(WorkerAtStep{0, 5});
  for (const int rank : {1, 2, 3}) {
    EXPECT_THAT(get<RestartDecision>(run.end(rank, 139)).line, HasSubstr("(restart 1 of 1)")) << rank;
  }
  EXPECT_EQ(run.state.restarts_total, 3);
}

TEST(NodeWorkers, counts_the_end_of_a_survivor_in_the_next_placement) {
  NodeScenario run(2, 1);
  run.train();
  run.crash_at(5);
  run.recover();
  EXPECT_TRUE(sent<NodeFailed>(run.end(0, 139)));
}

TEST(NodeWorkers, counts_an_end_before_the_next_placement) {
  NodeScenario run(2, 1);
  run.train();
  run.crash_at(5);
  EXPECT_TRUE(sent<NodeFailed>(run.end(1, 139)));
}

TEST(NodeWorkers, counts_the_ends_of_one_round_of_new_processes_once) {
  NodeScenario run(2, 10);
  run.train();
  run.end(0, 139);
  run.end(1, 139);
  run.end(0, 12);
  run.end(1, 12);
  EXPECT_EQ(run.state.restarts.size(), 2U);
  EXPECT_EQ(run.state.incidents_without_progress, 1);
}

TEST(NodeWorkers, waits_longer_before_each_restart_that_follows_no_progress) {
  NodeScenario run(2, 100);
  run.train();
  EXPECT_NE(find<StartWorker>(run.crash_at(7)), nullptr);
  run.recover();
  const NodeOutputs outputs = run.crash_at(7);
  EXPECT_NE(find<RestartDecision>(outputs), nullptr);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(run.deadline(), run.now + kBackoffInitial);
  EXPECT_EQ(get<StartWorker>(run.pass_to_deadline()).local_rank, 1);
  run.recover();
  run.crash_at(6);
  EXPECT_EQ(run.deadline(), run.now + 2 * kBackoffInitial);
}

TEST(NodeWorkers, gives_the_node_up_in_a_crash_loop_that_comes_no_further) {
  NodeScenario run(2, 100);
  run.train();
  for (const int64_t at : {7, 7, 7}) {
    EXPECT_FALSE(sent<NodeFailed>(run.crash_at(at)));
    run.recover();
  }
  const NodeOutputs outputs = run.crash_at(6);
  EXPECT_FALSE(get_sent<NodeFailed>(outputs).ends_job) << "another machine may do it";
  EXPECT_THAT(get_sent<NodeFailed>(outputs).message,
              StartsWith("crash loop: 3 restarts in a row came no further than step 7; rank 1"));
  EXPECT_THAT(get<Finish>(run.end(0, 137)).message, StartsWith("crash loop: "));
}

// The others keep the state at each incident, so each one comes further than the one before.
TEST(NodeWorkers, sees_no_crash_loop_in_a_run_that_makes_lost_steps_again) {
  NodeScenario run(2, 100);
  run.train();
  run.crash_at(100);
  run.recover();
  run.handle(WorkerResumed{0});
  EXPECT_EQ(find<StartWorker>(run.crash_at(3)), nullptr) << "steps were lost, and the run came no further";
  for (int64_t at = 4; at < 20; ++at) {
    run.recover();
    run.handle(WorkerResumed{at - 1});
    EXPECT_NE(find<StartWorker>(run.crash_at(at)), nullptr);
    EXPECT_EQ(run.state.incidents_without_progress, 0);
  }
  run.recover();
  run.crash_at(19);
  EXPECT_EQ(run.state.incidents_without_progress, 1);
}

TEST(NodeWorkers, sees_a_crash_loop_in_a_run_that_loses_its_steps_at_each_incident) {
  NodeScenario run(2, 100);
  run.train();
  for (const int64_t at : {7, 6, 7}) {
    EXPECT_FALSE(sent<NodeFailed>(run.crash_at(at)));
    run.recover();
    for (int rank = 0; rank < 2; ++rank) run.handle(WorkerResumed{5});
  }
  EXPECT_THAT(get_sent<NodeFailed>(run.crash_at(7)).message,
              StartsWith("crash loop: 3 restarts in a row came no further than step 7; rank 1"));
}

TEST(NodeWorkers, sees_no_crash_loop_in_a_run_that_comes_further) {
  NodeScenario run(2, 100);
  run.train();
  for (int64_t at = 1; at < 20; ++at) {
    EXPECT_NE(find<StartWorker>(run.crash_at(at)), nullptr);
    run.recover();
  }
}

TEST(NodeWorkers, starts_the_count_anew_at_a_new_checkpoint) {
  NodeScenario run(2, 100);
  run.train();
  for (int i = 0; i < 3; ++i) {
    run.crash_at(7);
    run.recover();
  }
  run.handle(CheckpointNews{7});
  EXPECT_NE(find<RestartDecision>(run.crash_at(7)), nullptr);
}

// ---- cuts ----

TEST(NodeWorkers, cuts_the_workers_of_that_generation_once) {
  NodeScenario run;
  run.train();
  EXPECT_TRUE(run.receive(CutGroup{run.generation - 1, "NodeLost"}).empty());
  const NodeOutputs outputs = run.receive(CutGroup{run.generation, "NodeLost"});
  EXPECT_EQ(get<CutGroup>(outputs).generation, run.generation);
  EXPECT_EQ(get<CutGroup>(outputs).cause, "NodeLost");
  run.pass(1s);
  run.receive(CutGroup{run.generation, "NodeLost"});
  EXPECT_EQ(run.deadline(), run.now - 1s + kCutGrace);
}

TEST(NodeWorkers, cuts_nobody_who_has_left_already) {
  NodeScenario run;
  run.train();
  run.leave(0);
  run.leave(1);
  EXPECT_TRUE(run.receive(CutGroup{run.generation, "NodeLost"}).empty());
  EXPECT_FALSE(run.deadline().has_value());
}

TEST(NodeWorkers, kills_a_worker_that_stays_in_a_collective_after_a_cut) {
  NodeScenario run;
  run.train();
  run.receive(CutGroup{run.generation, "NodeLost"});
  run.leave(1, "Cut");
  run.handle(WorkerAtStep{0, 9, true});
  EXPECT_EQ(run.deadline(), run.now + kCutGrace);
  EXPECT_TRUE(run.pass(kCutGrace - 1ms).empty());
  NodeOutputs outputs = run.pass_to_deadline();
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(std::get<DumpStacks>(outputs[0]).local_rank, 0);
  EXPECT_EQ(std::get<KillProcess>(outputs[1]).local_rank, 0);
  outputs = run.end(0, 137);
  EXPECT_EQ(get<RestartDecision>(outputs).reason, "TimedOut");
  EXPECT_THAT(get<RestartDecision>(outputs).line,
              HasSubstr("(SIGKILL) at step 9: still in a collective 12 s after its group was cut; starting it again"));
  EXPECT_EQ(get_sent<Broken>(outputs).cause, "TimedOut");
}

TEST(NodeWorkers, waits_after_a_cut_for_one_that_computes_or_writes) {
  NodeScenario run;
  run.train();
  run.receive(CutGroup{run.generation, "NodeLost"});
  run.leave(1, "Cut");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run.pass_to_deadline().empty());
  EXPECT_TRUE(get_sent<NodeReady>(run.leave(0, "Cut")).ready);
  EXPECT_FALSE(run.deadline().has_value());
}

// A kernel of a collective that the abort does not end keeps its worker there.
TEST(NodeWorkers, kills_a_worker_that_waits_for_its_device_long_after_a_cut) {
  NodeScenario run;
  run.train();
  run.receive(CutGroup{run.generation, "NodeLost"});
  const TimePoint cut = run.now;
  run.leave(1, "Cut");
  run.handle(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  EXPECT_TRUE(run.pass_to_deadline().empty());
  EXPECT_TRUE(run.pass_to_deadline().empty());
  EXPECT_EQ(get<KillProcess>(run.pass_to_deadline()).local_rank, 0);
  EXPECT_EQ(run.now, cut + kCutDeviceGrace);
  EXPECT_THAT(get<RestartDecision>(run.end(0, 137)).line,
              HasSubstr("still waiting for its device 30 s after its group was cut"));
}

TEST(NodeWorkers, does_not_kill_a_worker_whose_device_is_done_or_that_was_not_cut) {
  NodeScenario done;
  done.train();
  done.receive(CutGroup{done.generation, "NodeLost"});
  done.leave(1, "Cut");
  done.handle(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  done.pass_to_deadline();
  done.handle(WorkerAtStep{.local_rank = 0, .step = 9});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(done.pass_to_deadline().empty());

  NodeScenario training;
  training.train();
  training.handle(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  EXPECT_FALSE(training.deadline().has_value());
}

TEST(NodeWorkers, lets_the_workers_leave_together) {
  NodeScenario run;
  run.train();
  EXPECT_TRUE(run.receive(Regroup{run.generation - 1, false}).empty());
  const NodeOutputs outputs = run.receive(Regroup{run.generation, false});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<LeaveTogether>(outputs).generation, run.generation);
  EXPECT_EQ(get<LeaveTogether>(outputs).leaving_code, 0);
}

// ---- workers that hang ----

TEST(NodeWorkers, kills_and_blames_the_workers_that_never_said_hello) {
  NodeScenario run(2, 0);
  run.begin();
  run.handle(WorkerHello{0});
  NodeOutputs outputs = run.pass_to_deadline();
  EXPECT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  outputs = run.end(1, 137);
  EXPECT_EQ(get_sent<NodeFailed>(outputs).code, 11);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_EQ(finish.rank, 1);
  EXPECT_THAT(finish.message, HasSubstr("did not say hello within 300 s (--rendezvous_timeout_seconds)"));
  EXPECT_FALSE(finish.message_names_code);
}

// Reading the data may take longer than the start timeout; while it shows progress it is no hang.
TEST(NodeWorkers, waits_for_the_hello_of_a_worker_that_shows_progress) {
  NodeScenario run(1);
  run.begin();
  for (int i = 0; i < 10; ++i) {
    run.pass(299s);
    run.handle(WorkerAtStep{.local_rank = 0, .progress_at = run.now});
    EXPECT_EQ(count<KillProcess>(run.handle(NodeTick{})), 0) << i;
  }
  const TimePoint last = run.now;
  EXPECT_EQ(count<KillProcess>(run.pass_to_deadline()), 1);
  EXPECT_EQ(run.now, last + 300s);
}

TEST(NodeWorkers, gives_a_worker_that_was_started_again_its_own_start_timeout) {
  NodeScenario run;
  run.train();
  run.pass(1000s);
  run.end(1, 139);
  EXPECT_EQ(run.deadline(), run.now + 300s);
}

TEST(NodeWorkers, kills_a_silent_worker_once) {
  NodeScenario run;
  run.train();
  const NodeOutputs outputs = run.handle(WorkerSilent{0, 5000ms});
  EXPECT_EQ(count<DumpStacks>(outputs), 1);
  EXPECT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_TRUE(run.handle(WorkerSilent{0, 6000ms}).empty());
  EXPECT_TRUE(run.receive(KillWorker{0, "hangs"}).empty());
  EXPECT_THAT(get<RestartDecision>(run.end(0, 137)).line, HasSubstr("its process has not run for 5 s"));
  EXPECT_EQ(count<KillProcess>(run.handle(WorkerSilent{0, 5000ms})), 1) << "the next process is another one";
}

TEST(NodeWorkers, is_not_ready_with_a_worker_that_it_has_killed) {
  NodeScenario run;
  run.begin();
  run.handle(WorkerHello{0});
  run.handle(WorkerSilent{0, 5000ms});
  EXPECT_FALSE(sent<NodeReady>(run.handle(WorkerHello{1})));
}

TEST(NodeWorkers, takes_the_code_of_a_worker_that_ended_before_the_kill_reached_it) {
  NodeScenario run;
  run.train();
  run.receive(KillWorker{1, "hangs"});
  EXPECT_EQ(get<RestartDecision>(run.end(1, 12)).reason, "DeviceFault");
}

// ---- stopping ----

TEST(NodeWorkers, asks_the_job_before_it_stops_its_workers) {
  NodeScenario run;
  run.train();
  const NodeOutputs outputs = run.handle(StopRequested{SIGTERM});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get_sent<Leave>(outputs).code, 143);
  EXPECT_TRUE(run.handle(StopRequested{SIGTERM}).empty());
  EXPECT_EQ(run.deadline(), run.now + kStopGrace / 2);
}

// The other ranks may hold a state that rank 0 here must get before all stop.
TEST(NodeWorkers, stays_until_it_is_told_how_to_stop) {
  NodeScenario run;
  run.train();
  run.crash_at(7);
  const NodeOutputs asks = run.handle(StopRequested{SIGTERM});
  ASSERT_EQ(asks.size(), 1U);
  EXPECT_EQ(get_sent<Leave>(asks).code, 143);
  EXPECT_TRUE(get_sent<NodeReady>(run.handle(WorkerHello{1})).ready);
  EXPECT_NE(find<Assignment>(run.place()), nullptr);
  run.handle(WorkerAtStep{0, 8});
  EXPECT_NE(find<StartWorker>(run.end(1, 139)), nullptr) << "it is needed for the group";
  EXPECT_EQ(get<SignalWorkers>(run.receive(StopJob{143})).signal, SIGTERM);
  run.end(1, 143);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(NodeWorkers, stops_by_itself_when_nobody_tells_it_how) {
  NodeScenario run;
  run.begin();
  run.hello();
  run.handle(StopRequested{SIGTERM});
  const TimePoint asked = run.now;
  EXPECT_EQ(get<SignalWorkers>(run.pass_to_deadline()).signal, SIGTERM);
  EXPECT_EQ(run.now, asked + kStopGrace / 2);
  EXPECT_EQ(run.deadline(), asked + kStopGrace);
}

TEST(NodeWorkers, leaves_alone_with_its_stop_code) {
  NodeScenario run;
  run.train();
  run.handle(StopRequested{SIGTERM});
  EXPECT_EQ(get<LeaveTogether>(run.receive(Regroup{run.generation, true})).leaving_code, 143);
  run.end(1, 143);
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 143);
  EXPECT_EQ(finish.message, "stopped by SIGTERM");
  EXPECT_EQ(finish.rank, -1);
}

TEST(NodeWorkers, leaves_when_the_coordinator_sends_it_away) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(get<LeaveTogether>(run.receive(Regroup{run.generation, true})).leaving_code, 143);
  EXPECT_EQ(run.deadline(), run.now + kStopGrace);
}

TEST(NodeWorkers, ends_after_a_regroup_that_is_not_its_own_leaving) {
  NodeScenario run;
  run.train();
  run.handle(StopRequested{SIGTERM});
  EXPECT_EQ(get<LeaveTogether>(run.receive(Regroup{run.generation, false})).leaving_code, 0);
  run.leave(0, "Regroup");
  EXPECT_TRUE(get_sent<NodeReady>(run.leave(1, "Regroup")).ready);
  EXPECT_EQ(get<SignalWorkers>(run.receive(StopJob{143})).signal, SIGTERM);
}

TEST(NodeWorkers, stops_with_the_whole_job) {
  NodeScenario run;
  run.train();
  NodeOutputs outputs = run.receive(StopJob{130});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGINT);
  run.end(1, 130);
  outputs = run.end(0, 130);
  EXPECT_EQ(get<Finish>(outputs).code, 130);
  EXPECT_EQ(get<Finish>(outputs).message, "stopped by Ctrl-C");
}

TEST(NodeWorkers, signals_workers_that_have_nothing_to_lose_when_it_is_told) {
  NodeScenario run;
  run.begin();
  run.handle(WorkerHello{0});
  EXPECT_EQ(get_sent<Leave>(run.handle(StopRequested{SIGINT})).code, 130);
  EXPECT_EQ(get<SignalWorkers>(run.receive(StopJob{130})).signal, SIGINT);
  run.end(0, 130);
  EXPECT_EQ(get<Finish>(run.end(1, 130)).code, 130);
}

TEST(NodeWorkers, signals_workers_whose_group_broke_while_it_was_leaving) {
  NodeScenario run;
  run.train();
  run.handle(StopRequested{SIGTERM});
  run.leave(0);
  EXPECT_EQ(find<SignalWorkers>(run.leave(1)), nullptr);
  const NodeOutputs outputs = run.receive(StopJob{143});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_FALSE(get_sent<NodeReady>(outputs).ready);
}

TEST(NodeWorkers, takes_ready_back_when_it_stops_and_refuses_a_placement) {
  NodeScenario run;
  run.begin();
  run.hello();
  EXPECT_FALSE(get_sent<NodeReady>(run.receive(StopJob{143})).ready);
  const NodeOutputs outputs = run.place();
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(get_sent<Broken>(outputs).generation, run.generation);
}

TEST(NodeWorkers, passes_a_second_signal_on_and_SIGTERM_outranks_Ctrl_C) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(get_sent<Leave>(run.handle(StopRequested{SIGINT})).code, 130);
  run.handle(StopRequested{SIGTERM});
  run.end(0, 130);
  EXPECT_EQ(get<Finish>(run.end(1, 130)).code, 143);

  NodeScenario other;
  other.train();
  other.handle(StopRequested{SIGTERM});
  EXPECT_FALSE(sent<Leave>(other.handle(StopRequested{SIGINT})));
  EXPECT_EQ(other.state.asked_code, 143);

  NodeScenario signalled;
  signalled.train();
  signalled.receive(StopJob{130});
  EXPECT_EQ(get<SignalWorkers>(signalled.handle(StopRequested{SIGTERM})).signal, SIGTERM);
}

TEST(NodeWorkers, gives_a_second_signal_no_more_time) {
  NodeScenario run;
  run.train();
  run.handle(StopRequested{SIGINT});
  const auto until = run.deadline();
  run.pass(10s);
  run.handle(StopRequested{SIGTERM});
  EXPECT_EQ(run.deadline(), until);
}

TEST(NodeWorkers, takes_any_other_stop_code_for_SIGTERM) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(get<SignalWorkers>(run.receive(StopJob{7})).signal, SIGTERM);
}

TEST(NodeWorkers, restarts_nobody_while_stopping) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{130});
  run.pass(30s);
  const NodeOutputs outputs = run.end(1, 139);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(get_sent<Broken>(outputs).rank, 1);
  EXPECT_EQ(run.deadline(), run.now + kStopGrace) << "rank 0 may be writing its last checkpoint";
  const Finish finish = get<Finish>(run.end(0, 130));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.rank, 1);
}

TEST(NodeWorkers, does_not_blame_a_stop_on_a_failure_that_was_made_good) {
  NodeScenario run;
  run.train();
  run.crash_at(7);
  run.handle(StopRequested{SIGTERM});
  run.end(1, 143);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(NodeWorkers, ends_at_once_when_it_is_told_to_stop_while_nobody_runs) {
  NodeScenario run(1, 100);
  run.train();
  run.end(0, 139);
  run.end(0, 139);
  ASSERT_EQ(run.state.workers[0].phase, WorkerPhase::kBackoff);
  EXPECT_EQ(get_sent<Leave>(run.handle(StopRequested{SIGTERM})).code, 143);
  const NodeOutputs outputs = run.receive(StopJob{143});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<Finish>(outputs).code, 139);

  NodeScenario never_started;
  EXPECT_EQ(get<Finish>(never_started.handle(StopRequested{SIGTERM})).code, 143);
  EXPECT_TRUE(never_started.begin().empty());
}

TEST(NodeWorkers, starts_nobody_after_a_backoff_when_it_stops) {
  NodeScenario run(2, 100);
  run.train();
  run.crash_at(7);
  run.recover();
  run.crash_at(7);
  run.receive(StopJob{143});
  EXPECT_EQ(run.state.workers[1].phase, WorkerPhase::kEnded);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 139);
}

TEST(NodeWorkers, kills_what_has_not_stopped_in_time) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{143});
  run.end(1, 143);
  const NodeOutputs outputs = run.pass_to_deadline();
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_THAT(finish.message, HasSubstr("had not stopped 60 s after it was asked to"));
}

TEST(NodeWorkers, kills_nobody_for_the_time_in_which_it_did_not_run_itself) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{143});
  run.pass(20s);
  run.handle(WorkerAtStep{0, 1});
  run.now += 400s;  // a frozen container
  EXPECT_EQ(find<KillProcess>(run.handle(NodeTick{})), nullptr);
  EXPECT_EQ(run.deadline(), run.now + kStopGrace - 20s);
  EXPECT_EQ(count<KillProcess>(run.pass_to_deadline()), 2);

  NodeScenario starting;
  starting.begin();
  starting.pass(100s);
  starting.handle(WorkerHello{0});
  starting.now += 400s;
  EXPECT_EQ(find<KillProcess>(starting.handle(NodeTick{})), nullptr);
  EXPECT_EQ(get<KillProcess>(starting.pass_to_deadline()).local_rank, 1);
}

TEST(NodeWorkers, shifts_no_deadline_for_a_late_tick) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{143});
  run.pass(kStopGrace - 1s);
  run.now += 1s + kAsleepMin;
  EXPECT_EQ(count<KillProcess>(run.handle(NodeTick{})), 2);
}

TEST(NodeWorkers, gives_a_stop_the_time_that_it_is_told) {
  NodeScenario run;
  run.state.options.stop_timeout = 300s;
  run.train();
  run.receive(StopJob{143});
  EXPECT_EQ(run.deadline(), run.now + 300s);
  run.pass(100s);
  run.end(1, 139);
  EXPECT_EQ(run.deadline(), run.now + 300s);
  EXPECT_EQ(get<KillProcess>(run.pass_to_deadline()).local_rank, 0);
  EXPECT_THAT(run.state.workers[0].message_when_killed, HasSubstr("had not stopped 300 s after it was asked to"));
}

TEST(NodeWorkers, follows_a_worker_that_somebody_else_has_stopped) {
  NodeScenario run;
  run.train();
  const NodeOutputs outputs = run.end(1, 143);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_FALSE(sent<Broken>(outputs));
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(NodeWorkers, stops_the_waiting_workers_when_somebody_else_has_stopped_one) {
  NodeScenario run;
  run.begin();
  run.hello();
  const NodeOutputs outputs = run.end(1, 130);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGINT);
  EXPECT_FALSE(get_sent<NodeReady>(outputs).ready);
}

// ---- the end ----

TEST(NodeWorkers, remarks_on_a_bad_end_after_the_first_good_one) {
  NodeScenario run;
  run.train();
  run.end(0, 0);
  const NodeOutputs outputs = run.end(1, 139);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_FALSE(sent<Broken>(outputs));
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("rank 1 (pid 101) ended with signal 11 (SIGSEGV)"));
  EXPECT_EQ(all_sent<NodeDone>(outputs).size(), 1U);
  EXPECT_EQ(get<Finish>(run.receive(EndJob{0, ""})).code, 0);
}

TEST(NodeWorkers, ends_those_that_wait_for_a_group_when_training_is_complete) {
  NodeScenario run(3);
  run.train();
  run.end(2, 139);
  NodeOutputs outputs = run.end(0, 0);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 2);
  outputs = run.leave(1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  run.end(2, 137);
  outputs = run.end(1, 137);
  EXPECT_EQ(all_sent<NodeDone>(outputs).size(), 1U);
  EXPECT_EQ(find<Remark>(outputs), nullptr);
}

TEST(NodeWorkers, takes_a_stopped_worker_for_done_when_another_one_is) {
  NodeScenario run(3);
  run.train();
  run.end(0, 0);
  run.end(1, 143);
  EXPECT_FALSE(run.state.stopping());
  EXPECT_EQ(all_sent<NodeDone>(run.end(2, 0)).size(), 1U);
}

TEST(NodeWorkers, does_not_ask_to_leave_a_job_that_has_ended) {
  NodeScenario run;
  run.train();
  run.receive(EndJob{0, ""});
  EXPECT_FALSE(sent<Leave>(run.handle(StopRequested{SIGTERM})));
}

TEST(NodeWorkers, gives_the_end_of_the_job_no_more_time_than_a_stop_has_left) {
  NodeScenario run;
  run.train();
  run.receive(StopJob{143});
  const auto until = run.deadline();
  run.pass(kStopGrace - 1s);
  run.receive(EndJob{0, ""});
  EXPECT_EQ(run.deadline(), until);

  NodeScenario early;
  early.train();
  early.handle(StopRequested{SIGTERM});
  early.receive(EndJob{0, ""});
  EXPECT_EQ(early.deadline(), early.now + kEndGrace);
}

TEST(NodeWorkers, is_done_even_when_it_is_to_stop) {
  NodeScenario run;
  run.train();
  run.handle(StopRequested{SIGTERM});
  run.end(0, 0);
  NodeOutputs outputs = run.end(1, 143);
  EXPECT_EQ(all_sent<NodeDone>(outputs).size(), 1U);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  outputs = run.pass_to_deadline();
  EXPECT_EQ(get<Finish>(outputs).code, 0) << "the end of the job has not come in time";
}

TEST(NodeWorkers, ends_with_0_when_it_is_stopped_while_it_waits_for_the_others) {
  NodeScenario run;
  run.train();
  run.end(0, 0);
  run.end(1, 0);
  EXPECT_EQ(get<Finish>(run.handle(StopRequested{SIGTERM})).code, 0);
}

TEST(NodeWorkers, gives_its_workers_time_to_end_with_a_job_that_is_complete) {
  NodeScenario run;
  run.train();
  EXPECT_TRUE(run.receive(EndJob{0, ""}).empty());
  EXPECT_EQ(run.deadline(), run.now + kEndGrace);
  run.end(0, 0);
  EXPECT_EQ(get<KillProcess>(run.pass_to_deadline()).local_rank, 1);
  const NodeOutputs outputs = run.end(1, 137);
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("had not left 10 s after the end of the job"));
  EXPECT_EQ(get<Finish>(outputs).code, 0);
}

TEST(NodeWorkers, ends_at_once_with_a_complete_job_that_its_workers_never_joined) {
  NodeScenario run;
  run.begin();
  EXPECT_EQ(count<KillProcess>(run.receive(EndJob{0, ""})), 2);
  run.end(0, 137);
  EXPECT_EQ(get<Finish>(run.end(1, 137)).code, 0);
}

TEST(NodeWorkers, ends_with_a_job_that_failed_elsewhere) {
  NodeScenario run;
  run.train();
  EXPECT_EQ(count<KillProcess>(run.receive(EndJob{3, "rank 5: no data"})), 2);
  run.end(0, 137);
  const NodeOutputs outputs = run.end(1, 137);
  EXPECT_EQ(find<Remark>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(outputs).code, 3);
  EXPECT_EQ(get<Finish>(outputs).message, "rank 5: no data");
  EXPECT_EQ(get<Finish>(outputs).rank, -1);
}

TEST(NodeWorkers, ends_at_once_with_a_failed_job_when_nobody_is_alive) {
  NodeScenario run(1, 100);
  run.train();
  run.end(0, 139);
  run.end(0, 139);
  ASSERT_EQ(run.state.workers[0].phase, WorkerPhase::kBackoff);
  EXPECT_EQ(get<Finish>(run.receive(EndJob{1, "why"})).code, 1);
}

TEST(NodeWorkers, lets_the_workers_write_down_what_they_hold_when_too_few_nodes_are_left) {
  NodeScenario run;
  run.train();
  run.receive(CutGroup{run.state.assignment->generation, "NodeLost"});
  for (int rank = 0; rank < 2; ++rank) run.handle(WorkerLeft{rank, run.state.assignment->generation, "Cut", ""});
  const NodeOutputs outputs = run.receive(EndJob{10, "1 of 2 nodes are ready"});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  run.end(0, 143);
  EXPECT_EQ(get<Finish>(run.end(1, 143)).code, 10);
}

TEST(NodeWorkers, gives_a_job_that_was_stopped_the_time_for_its_checkpoint) {
  NodeScenario run;
  run.train();
  const NodeOutputs outputs = run.receive(EndJob{143, "stopped"});
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  run.end(0, 143);
  EXPECT_EQ(get<Finish>(run.end(1, 143)).code, 143);
}

TEST(NodeWorkers, names_its_own_cause_when_the_job_ends_because_of_it) {
  NodeScenario run;
  run.train();
  run.end(1, 5, "loss is NaN");
  run.receive(EndJob{5, "node 0: loss is NaN"});
  EXPECT_EQ(get<Finish>(run.end(0, 137)).rank, 1);
}

// ---- whatever comes, in whatever order ----

// Plays the agent: keeps the processes that were started, and checks what must hold after every event.
class Storm {
 public:
  Storm(unsigned seed, int nproc) : random_(seed), run_(nproc, 3) { apply(Started{}); }

  void blow(int events) {
    for (int i = 0; i < events && !finished_; ++i) apply(next_event());
  }
  // The job ends and every process that can ends, then time passes: the node must come to its end.
  void calm_down() {
    apply(CoordinatorFound{Welcome{run_.generation}});
    receive(EndJob{1, "over"});
    for (int i = 0; i < 100 && !finished_; ++i) {
      for (int rank = 0; rank < nproc(); ++rank) {
        if (alive(rank)) apply(WorkerEnded{rank, 1, 137, ""});
      }
      if (run_.state.deadline) run_.now = *run_.state.deadline;
      apply(NodeTick{});
    }
  }
  [[nodiscard]] bool finished() const { return finished_; }

 private:
  [[nodiscard]] int nproc() const { return run_.state.options.nproc; }
  [[nodiscard]] bool alive(int rank) const { return alive_.contains(rank); }
  void receive(const CoordinatorMessage& message) { apply(CoordinatorSent{message}); }
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  // Mostly the generation that the workers are in, now and then another one.
  uint64_t some_generation() { return run_.state.workers.front().generation + static_cast<uint64_t>(pick(10) == 0); }
  bool rarely() { return pick(40) == 0; }

  NodeEvent next_event() {
    constexpr std::array kBadEnds{139, 137, 1, 10, 11, 12};
    constexpr std::array kRareEnds{0, 143, 2};
    const int rank = pick(nproc());
    if (seeks_ && pick(20) == 0) return CoordinatorFound{Welcome{run_.generation}};
    switch (pick(13)) {
      case 0:
        if (alive(rank)) return WorkerHello{rank};
        break;
      case 1:
        if (alive(rank)) return WorkerLeft{rank, some_generation(), pick(2) == 0 ? "PeerLost" : "Cut", ""};
        break;
      case 2:
        return CoordinatorSent{Assignment{.generation = ++run_.generation, .world_size = nproc(), .address = ""}};
      case 3:
        if (alive(rank) && pick(4) == 0) return WorkerEnded{rank, 1, kBadEnds[static_cast<size_t>(pick(6))], ""};
        break;
      case 4:
        if (alive(rank) && rarely()) return WorkerEnded{rank, 1, kRareEnds[static_cast<size_t>(pick(3))], ""};
        break;
      case 5:
        return CoordinatorSent{CutGroup{some_generation(), "NodeLost"}};
      case 6:
        return CoordinatorSent{Regroup{some_generation(), rarely()}};
      case 7:
        if (rarely()) return CoordinatorSent{KillWorker{rank, "hangs"}};
        if (rarely()) return WorkerSilent{rank, 5000ms};
        break;
      case 8:
        if (rarely()) return StopRequested{pick(2) == 0 ? SIGINT : SIGTERM};
        if (rarely()) return CoordinatorSent{StopJob{143}};
        if (rarely()) return CoordinatorSent{EndJob{pick(2) == 0 ? 0 : 1, ""}};
        break;
      case 9:
        return WorkerAtStep{rank, ++step_, pick(2) == 0};
      case 10:
        return CheckpointNews{step_ - pick(100)};
      case 11:
        if (rarely()) return CoordinatorLost{"reset"};
        return CoordinatorSent{CoordinatorBeat{}};
      default:
        run_.now += std::chrono::milliseconds(pick(3000));
        break;
    }
    return NodeTick{};
  }

  void apply(const NodeEvent& event) {
    if (const auto* end = std::get_if<WorkerEnded>(&event)) alive_.erase(end->local_rank);
    if (std::holds_alternative<CoordinatorFound>(event)) seeks_ = false;
    const bool was_finished = finished_;
    for (const NodeOutput& output : run_.handle(event)) {
      EXPECT_FALSE(finished_) << "an output after Finish";
      check(output);
    }
    EXPECT_EQ(finished_, run_.state.finished);
    if (finished_ && !was_finished) {
      for (const int rank : alive_) {
        EXPECT_TRUE(run_.state.workers[static_cast<size_t>(rank)].is_given_up) << "finished with a worker alive";
      }
    }
    if (!finished_ && alive_.empty() && !run_.state.done) {
      EXPECT_TRUE(run_.state.deadline.has_value()) << "nobody is alive and nothing is to happen";
    }
  }
  void check(const NodeOutput& output) {
    if (const auto* start = std::get_if<StartWorker>(&output)) {
      EXPECT_TRUE(alive_.insert(start->local_rank).second) << "started twice";
      killed_.erase(start->local_rank);
      EXPECT_FALSE(run_.state.stopping() || run_.state.complete || run_.state.gave_up) << "started for nothing";
    } else if (const auto* kill = std::get_if<KillProcess>(&output)) {
      EXPECT_TRUE(alive(kill->local_rank)) << "killed one that is not alive";
      EXPECT_TRUE(killed_.insert(kill->local_rank).second) << "killed twice";
    } else if (const auto* send = std::get_if<SendToCoordinator>(&output)) {
      const auto* ready = std::get_if<NodeReady>(&send->message);
      EXPECT_TRUE(ready == nullptr || !ready->ready || std::ssize(alive_) == nproc()) << "ready without all workers";
    } else if (std::holds_alternative<FindCoordinator>(output)) {
      seeks_ = true;
    } else if (std::holds_alternative<Finish>(output)) {
      finished_ = true;
    }
  }

  std::mt19937 random_;
  NodeScenario run_;
  std::set<int> alive_;
  std::set<int> killed_;
  bool seeks_ = false;
  bool finished_ = false;
  int64_t step_ = 0;
};

TEST(NodeWorkers, comes_to_an_end_whatever_happens_in_whatever_order) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed, 1 + static_cast<int>(seed % 4));
    storm.blow(400);
    storm.calm_down();
    ASSERT_TRUE(storm.finished());
    if (HasFailure()) break;
  }
}

TEST(NodeWorkers, describes_exits) {
  EXPECT_EQ(describe_exit(1), "exit code 1 (Crash)");
  EXPECT_EQ(describe_exit(13), "exit code 13 (OutOfMemory)");
  EXPECT_EQ(describe_exit(137), "signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace lockstep
