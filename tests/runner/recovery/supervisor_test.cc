#include "runner/recovery/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>
#include <utility>

#include "tests/runner/recovery/outputs.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Outputs = std::vector<SupervisorOutput>;

Assignment placed(uint64_t generation, int first_rank, int world_size) {
  Assignment placement;
  placement.generation = generation;
  placement.rank = first_rank;
  placement.world_size = world_size;
  return placement;
}

// A supervisor with a clock that the test moves. Rank `first_rank` of `world_size` is the node's first.
class Scenario {
 public:
  explicit Scenario(int nproc = 2, int max_restarts = 10)
      : state(SupervisorOptions{.nproc = nproc, .max_restarts = max_restarts, .start_timeout = 300s}),
        world_size(nproc) {}

  Outputs feed(const SupervisorEvent& event) {
    Outputs outputs = step(state, event, now);
    if (const NodeFailed* told = find<NodeFailed>(outputs)) gave_up = *told;
    if (!gave_up || !member_answers) return outputs;
    // Plays the member, which tells the others and then answers with the end of the job.
    const NodeFailed failed = *std::exchange(gave_up, std::nullopt);
    for (SupervisorOutput& output : step(state, EndJob{failed.code, failed.message}, now)) {
      outputs.push_back(std::move(output));
    }
    return outputs;
  }

  Outputs hello() {
    Outputs last;
    for (int rank = 0; rank < state.options.nproc; ++rank) last = feed(WorkerSaidHello{rank});
    return last;
  }
  Outputs place(int first_rank = 0) { return feed(placed(++generation, first_rank, world_size)); }
  // From nothing to a placed group.
  void train() {
    feed(Started{});
    hello();
    place();
  }
  Outputs end(int rank, int code, const std::string& message = "") {
    return feed(WorkerEnded{.local_rank = rank, .pid = 100 + rank, .code = code, .message = message});
  }
  Outputs leave(int rank, const std::string& cause = "PeerLost") {
    return feed(WorkerLeft{rank, generation, cause, "it saw " + cause});
  }
  // Rank 1 of a placed group ends at step `at`, the others leave.
  Outputs crash_at(int64_t at) {
    for (int rank = 0; rank < state.options.nproc; ++rank) feed(WorkerAtStep{rank, at});
    Outputs outputs = end(1, 139);
    if (find<StartWorker>(outputs) != nullptr) leave(0);
    return outputs;
  }
  // After crash_at: the new process joins and the group is placed again.
  void recover() {
    if (state.workers[1].phase == WorkerPhase::kBackoff) tick_at_deadline();
    if (state.workers[0].phase == WorkerPhase::kPlaced) leave(0);
    feed(WorkerSaidHello{1});
    place();
  }
  Outputs tick_at_deadline() {
    EXPECT_TRUE(state.deadline.has_value());
    if (state.deadline) now = *state.deadline;
    return feed(SupervisorTick{});
  }

  SupervisorState state;
  TimePoint now{1000s};
  uint64_t generation = uint64_t{3} << 32U;
  int world_size;
  bool member_answers = true;
  std::optional<NodeFailed> gave_up;
};

// ---- from the start to the end ----

TEST(Supervisor, starts_a_worker_for_each_local_rank) {
  Scenario run(3);
  const Outputs outputs = run.feed(Started{});
  EXPECT_EQ(count<StartWorker>(outputs), 3);
  EXPECT_EQ(std::get<StartWorker>(outputs[2]).local_rank, 2);
  EXPECT_EQ(run.state.deadline, run.now + 300s);
}

TEST(Supervisor, is_ready_when_the_last_worker_has_said_hello) {
  Scenario run;
  run.feed(Started{});
  EXPECT_TRUE(run.feed(WorkerSaidHello{1}).empty());
  const Outputs outputs = run.feed(WorkerSaidHello{0});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(get<WorkersReady>(outputs).ready);
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(Supervisor, is_ready_with_the_terms_of_its_workers) {
  Scenario run;
  run.feed(Started{});
  run.feed(WorkerSaidHello{1, "{}"});
  EXPECT_EQ(get<WorkersReady>(run.feed(WorkerSaidHello{0, "{}"})).terms, "{}");
  run.place();
  run.end(1, 139);
  run.leave(0);
  EXPECT_EQ(get<WorkersReady>(run.feed(WorkerSaidHello{1, "{}"})).terms, "{}");
}

TEST(Supervisor, gives_up_when_its_workers_have_other_terms) {
  Scenario run;
  run.feed(Started{});
  run.feed(WorkerSaidHello{0, R"({"backend in effect":"nccl"})"});
  const Outputs outputs = run.feed(WorkerSaidHello{1, R"({"backend in effect":"gloo"})"});
  EXPECT_EQ(find<WorkersReady>(outputs), nullptr);
  const NodeFailed failed = get<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 2);
  EXPECT_TRUE(failed.for_good);
  EXPECT_EQ(failed.message,
            "the backend in effect is nccl in rank 0 and gloo in rank 1; start all ranks with the same flags, data and "
            "version of lockstep");
  EXPECT_EQ(count<KillProcess>(outputs), 2);
}

TEST(Supervisor, hands_a_placement_to_its_workers) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  const Outputs outputs = run.place(4);
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<Assignment>(outputs).generation, run.generation);
  EXPECT_EQ(get<Assignment>(outputs).rank, 4);
}

TEST(Supervisor, is_done_when_all_ended_with_0_and_ends_with_the_job) {
  Scenario run;
  run.train();
  EXPECT_TRUE(run.end(0, 0).empty());
  const Outputs outputs = run.end(1, 0);
  EXPECT_EQ(count<NodeDone>(outputs), 1);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  EXPECT_FALSE(run.state.deadline.has_value());
  EXPECT_EQ(get<Finish>(run.feed(EndJob{0, ""})).code, 0);
}

TEST(Supervisor, finishes_once) {
  Scenario run;
  run.train();
  run.end(0, 0);
  run.end(1, 0);
  EXPECT_EQ(count<Finish>(run.feed(EndJob{0, ""})), 1);
  EXPECT_TRUE(run.feed(EndJob{1, "late"}).empty());
  EXPECT_TRUE(run.feed(StopRequested{SIGTERM}).empty());
  EXPECT_TRUE(run.feed(SupervisorTick{}).empty());
  EXPECT_FALSE(run.state.deadline.has_value());
}

// ---- one worker ends ----

TEST(Supervisor, starts_the_dead_worker_again_and_leaves_the_others_alone) {
  Scenario run;
  run.train();
  run.feed(WorkerAtStep{1, 12});
  const Outputs outputs = run.end(1, 139);
  EXPECT_EQ(count<StartWorker>(outputs), 1);
  EXPECT_EQ(get<StartWorker>(outputs).local_rank, 1);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(find<SignalWorkers>(outputs), nullptr);
  EXPECT_EQ(get<Restarting>(outputs).code, 139);
  EXPECT_EQ(get<Restarting>(outputs).local_rank, 1);
  EXPECT_EQ(get<Restarting>(outputs).line,
            "rank 1 (pid 101) ended with signal 11 (SIGSEGV) at step 12; starting it again, the others keep their "
            "state (restart 1 of 10)");
}

TEST(Supervisor, tells_who_broke_the_group) {
  Scenario run;
  run.world_size = 8;
  run.feed(Started{});
  run.hello();
  run.place(4);
  const Broken broken = get<Broken>(run.end(1, 137, ""));
  EXPECT_EQ(broken.generation, run.generation);
  EXPECT_EQ(broken.rank, 5);
  EXPECT_EQ(broken.cause, "SignalKILL");
  EXPECT_THAT(broken.message, StartsWith("rank 5 (pid 101) ended with signal 9 (SIGKILL)"));
}

TEST(Supervisor, is_ready_again_when_the_survivor_left_and_the_new_process_said_hello) {
  Scenario run;
  run.train();
  run.end(1, 139);
  EXPECT_EQ(find<WorkersReady>(run.feed(WorkerSaidHello{1})), nullptr);
  EXPECT_TRUE(get<WorkersReady>(run.leave(0)).ready);
  EXPECT_EQ(count<Assignment>(run.place()), 1);
}

TEST(Supervisor, takes_ready_back_when_a_waiting_worker_ends) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  const Outputs outputs = run.end(0, 1);
  EXPECT_FALSE(get<WorkersReady>(outputs).ready);
  EXPECT_EQ(find<Broken>(outputs), nullptr);
  EXPECT_TRUE(get<WorkersReady>(run.feed(WorkerSaidHello{0})).ready);
}

TEST(Supervisor, does_not_let_the_others_wait_for_a_placement_that_came_too_late) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  run.end(1, 139);
  const Outputs outputs = run.place();
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(get<Broken>(outputs).generation, run.generation);
  EXPECT_EQ(get<Broken>(outputs).cause, "SignalSEGV");
  run.feed(WorkerSaidHello{1});
  EXPECT_NE(find<Assignment>(run.place()), nullptr);
}

TEST(Supervisor, tells_a_lost_peer_once_per_generation) {
  Scenario run(3);
  run.train();
  const Broken broken = get<Broken>(run.leave(0));
  EXPECT_EQ(broken.rank, -1);
  EXPECT_EQ(broken.cause, "PeerLost");
  EXPECT_EQ(broken.message, "it saw PeerLost");
  EXPECT_EQ(find<Broken>(run.leave(1)), nullptr);
}

TEST(Supervisor, tells_the_end_of_a_worker_even_after_a_lost_peer_but_not_the_other_way_round) {
  Scenario run(3);
  run.train();
  run.leave(0);
  EXPECT_EQ(get<Broken>(run.end(1, 139)).rank, 1);
  EXPECT_EQ(find<Broken>(run.leave(2)), nullptr);
}

TEST(Supervisor, calls_nothing_broken_when_a_worker_left_as_it_was_told) {
  for (const char* cause : {"Cut", "Regroup"}) {
    Scenario run;
    run.train();
    EXPECT_TRUE(run.leave(0, cause).empty()) << cause;
    const Outputs outputs = run.leave(1, cause);
    EXPECT_EQ(outputs.size(), 1U);
    EXPECT_TRUE(get<WorkersReady>(outputs).ready);
  }
}

TEST(Supervisor, takes_no_step_back_at_a_beat_that_is_late) {
  Scenario run;
  run.train();
  run.feed(WorkerAtStep{1, 12});
  run.feed(WorkerAtStep{1, 11});
  EXPECT_THAT(get<Restarting>(run.end(1, 139)).line, HasSubstr(" at step 12;"));
}

TEST(Supervisor, ignores_a_left_of_an_older_generation) {
  Scenario run;
  run.train();
  EXPECT_TRUE(run.feed(WorkerLeft{0, run.generation - 1, "PeerLost", ""}).empty());
  EXPECT_EQ(run.state.workers[0].phase, WorkerPhase::kPlaced);
}

struct StartTextCase {
  int64_t step;
  std::optional<int64_t> checkpoint;
  std::string says;
};
TEST(Supervisor, says_where_a_worker_alone_begins_again) {
  const std::vector<StartTextCase> cases{
      {0, std::nullopt, "; starting it again from the beginning (restart 1 of 10)"},
      {3, 2, " at step 3; starting it again from the newest checkpoint (restart 1 of 10)"},
      {3, std::nullopt, "from the newest checkpoint, or from the beginning if there is none (restart"},
  };
  for (const StartTextCase& c : cases) {
    Scenario run(1);
    run.train();
    run.feed(WorkerAtStep{0, c.step});
    if (c.checkpoint) run.feed(CheckpointNews{*c.checkpoint});
    EXPECT_THAT(get<Restarting>(run.end(0, 139)).line, HasSubstr(c.says));
  }
}

TEST(Supervisor, knows_that_ranks_on_other_nodes_keep_their_state) {
  Scenario run(1);
  run.world_size = 2;
  run.train();
  EXPECT_THAT(get<Restarting>(run.end(0, 139)).line, HasSubstr("the others keep their state"));
}

TEST(Supervisor, puts_the_words_of_a_worker_into_the_line) {
  Scenario run;
  run.train();
  EXPECT_THAT(get<Restarting>(run.end(1, 12, "CUDA error: ECC")).line,
              HasSubstr("ended with exit code 12 (DeviceFault): CUDA error: ECC; starting"));
}

// ---- restarts, and giving up ----

class SupervisorNeverRespawns : public testing::TestWithParam<int> {};
TEST_P(SupervisorNeverRespawns, this_code) {
  Scenario run;
  run.train();
  Outputs outputs = run.end(1, GetParam(), "why");
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(get<NodeFailed>(outputs).code, GetParam());
  EXPECT_TRUE(get<NodeFailed>(outputs).for_good);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  outputs = run.end(0, 137);
  EXPECT_EQ(get<Finish>(outputs).code, GetParam());
  EXPECT_EQ(get<Finish>(outputs).rank, 1);
  EXPECT_THAT(get<Finish>(outputs).message, HasSubstr("why"));
}
INSTANTIATE_TEST_SUITE_P(Codes, SupervisorNeverRespawns, testing::Values(2, 3, 5));

// The same input has worked: a mount or an interface may be away for a moment.
TEST(Supervisor, restarts_after_an_error_of_the_input_once_it_has_trained) {
  for (const int code : {2, 3}) {
    Scenario run;
    run.train();
    run.feed(WorkerAtStep{0, 3});
    EXPECT_EQ(get<StartWorker>(run.end(1, code, "stale file handle")).local_rank, 1) << code;
  }
}

TEST(Supervisor, kills_all_after_a_loss_that_is_not_finite_whatever_they_hold) {
  Scenario run;
  run.train();
  run.feed(WorkerAtStep{0, 3});
  const Outputs outputs = run.end(1, 5);
  EXPECT_TRUE(get<NodeFailed>(outputs).for_good);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  EXPECT_EQ(find<SignalWorkers>(outputs), nullptr);
}

// The only worker of a node fails: the node must report why before it ends.
TEST(Supervisor, does_not_finish_before_the_member_has_told_the_others_why) {
  Scenario run(1);
  run.member_answers = false;
  run.train();
  const Outputs outputs = run.end(0, 3, "no file");
  EXPECT_TRUE(get<NodeFailed>(outputs).for_good);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  const Finish finish = get<Finish>(run.feed(EndJob{.code = 3, .message = "the others have heard"}));
  EXPECT_EQ(finish.code, 3);
  EXPECT_EQ(finish.message, "no file");
}

TEST(Supervisor, gives_up_a_worker_that_sigkill_does_not_end) {
  Scenario run;
  run.train();
  EXPECT_EQ(get<KillProcess>(run.feed(KillWorker{.local_rank = 1, .message = "it hangs"})).local_rank, 1);
  EXPECT_EQ(run.state.deadline, run.now + kKillGrace);
  const Outputs outputs = run.tick_at_deadline();
  const NodeFailed failed = get<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 11);
  EXPECT_FALSE(failed.for_good) << "another machine can do it";
  EXPECT_EQ(failed.message,
            "rank 1 did not end 30 s after SIGKILL: its device or a file system does not answer: look at this machine");
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_TRUE(run.end(1, 137).empty()) << "it ends after all, and nobody cares";
}

// Before a hanging worker is killed, its stacks are dumped; in that time it may still say something.
TEST(Supervisor, remembers_the_kill_of_a_worker_that_still_leaves_its_group) {
  Scenario run;
  run.train();
  run.feed(KillWorker{.local_rank = 1, .message = "it hangs"});
  const TimePoint given_up_at = run.now + kKillGrace;
  run.now += 100ms;
  run.feed(CutGroup{.generation = run.generation, .cause = "Stalled"});
  run.leave(1, "Cut");
  run.leave(0, "Cut");
  EXPECT_EQ(run.state.deadline, given_up_at);
  EXPECT_EQ(get<NodeFailed>(run.tick_at_deadline()).code, 11);

  Scenario late;
  late.feed(Started{});
  late.feed(WorkerSaidHello{0});
  late.tick_at_deadline();
  late.feed(WorkerSaidHello{1});
  EXPECT_EQ(late.state.deadline, late.now + kKillGrace);
}

TEST(Supervisor, lets_the_others_write_when_one_cannot_be_killed_during_a_stop) {
  Scenario run;
  run.train();
  run.feed(StopJob{143});
  run.feed(KillWorker{.local_rank = 1, .message = "it hangs"});
  run.now += kKillGrace;
  const Outputs outputs = run.feed(SupervisorTick{});
  EXPECT_EQ(get<Broken>(outputs).rank, 1);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 11);
}

TEST(Supervisor, waits_for_the_member_although_it_is_asked_to_stop) {
  Scenario run(1);
  run.member_answers = false;
  run.train();
  run.end(0, 3, "no file");
  EXPECT_EQ(find<Finish>(run.feed(StopRequested{SIGTERM})), nullptr);
  EXPECT_EQ(get<Finish>(run.feed(EndJob{.code = 3, .message = ""})).message, "no file");
}

TEST(Supervisor, waits_for_the_member_although_the_time_for_the_stop_is_over) {
  Scenario run(2);
  run.member_answers = false;
  run.train();
  ASSERT_NE(find<NodeFailed>(run.end(0, 3, "no file")), nullptr);
  run.feed(StopRequested{SIGTERM});
  EXPECT_EQ(find<Finish>(run.end(1, 143)), nullptr);
  EXPECT_EQ(find<Finish>(run.tick_at_deadline()), nullptr);
  EXPECT_EQ(get<Finish>(run.feed(EndJob{.code = 3, .message = ""})).message, "no file");
}

TEST(Supervisor, kills_the_others_when_it_gives_up_and_waits_for_nobody_to_say_so) {
  Scenario run;
  run.member_answers = false;
  run.train();
  EXPECT_EQ(get<KillProcess>(run.end(1, 3, "no file")).local_rank, 0);
}

TEST(Supervisor, hears_one_end_of_the_job) {
  Scenario run;
  run.train();
  run.feed(EndJob{.code = 5, .message = "not finite"});
  run.feed(EndJob{.code = 3, .message = "no file"});
  run.end(0, 137);
  const Finish finish = get<Finish>(run.end(1, 137));
  EXPECT_EQ(finish.code, 5);
  EXPECT_EQ(finish.message, "not finite");
}

TEST(Supervisor, does_not_wait_for_the_unkillable_when_the_job_is_over) {
  Scenario run(1);
  run.train();
  run.feed(EndJob{.code = 3, .message = "another node failed"});
  const Finish finish = get<Finish>(run.tick_at_deadline());
  EXPECT_EQ(finish.code, 3);
}

TEST(Supervisor, says_what_is_wrong_with_the_input_without_naming_a_rank) {
  Scenario run(1);
  run.feed(Started{});
  const Finish finish = get<Finish>(run.end(0, 3, "no file x.inter"));
  EXPECT_EQ(finish.message, "no file x.inter");
  EXPECT_FALSE(finish.message_names_code);
}

// The volume may be away on this machine, or for a moment: the node gives up, and the job does not end.
TEST(Supervisor, restarts_after_a_checkpoint_failure_before_the_first_step_and_then_gives_up) {
  Scenario run(1);
  run.train();
  run.feed(WorkerAtStep{0, 0});
  for (int i = 0; i < kNoProgressIncidentsMax; ++i) {
    ASSERT_NE(find<Restarting>(run.end(0, 4, "read-only")), nullptr) << i;
    if (run.state.workers[0].phase == WorkerPhase::kBackoff) run.tick_at_deadline();
  }
  const Outputs outputs = run.end(0, 4, "read-only");
  EXPECT_FALSE(get<NodeFailed>(outputs).for_good);
  EXPECT_EQ(get<Finish>(outputs).code, 4);
  EXPECT_THAT(get<Finish>(outputs).message, HasSubstr("CheckpointFailed): read-only"));
  EXPECT_TRUE(get<Finish>(outputs).message_names_code);
}

TEST(Supervisor, gives_the_node_up_at_the_second_device_fault_in_a_row) {
  Scenario run;
  run.train();
  EXPECT_EQ(get<Restarting>(run.end(1, 12, "CUDA error: ECC")).code, 12);
  const Outputs outputs = run.end(1, 12, "the driver shows 2 GPUs, but CUDA starts 1");
  const NodeFailed failed = get<NodeFailed>(outputs);
  EXPECT_EQ(failed.code, 12);
  EXPECT_FALSE(failed.for_good);
  EXPECT_THAT(failed.message, StartsWith("this machine was at fault 2 times in a row; rank 1 (pid 101) ended with"));
  EXPECT_EQ(count<StartWorker>(outputs), 0);
}

TEST(Supervisor, counts_device_faults_anew_after_another_end_or_a_new_checkpoint) {
  Scenario other(2, 100);
  other.train();
  for (const int code : {12, 139, 12}) {
    EXPECT_NE(find<Restarting>(other.end(1, code)), nullptr) << code;
    if (other.state.workers[1].phase == WorkerPhase::kBackoff) other.tick_at_deadline();
  }
  Scenario saved;
  saved.train();
  saved.end(1, 12);
  saved.feed(CheckpointNews{30});
  EXPECT_NE(find<Restarting>(saved.end(1, 12)), nullptr);
}

// ---- what is written before the end ----

TEST(Supervisor, lets_rank_0_write_before_the_node_gives_up) {
  Scenario run(3, 0);
  run.member_answers = false;
  run.train();
  run.feed(WorkerAtStep{0, 7});
  Outputs outputs = run.end(2, 139);
  EXPECT_FALSE(get<NodeFailed>(outputs).for_good);
  EXPECT_EQ(get<Cut>(outputs).generation, run.generation);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  ASSERT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  EXPECT_EQ(count<KillProcess>(run.feed(EndJob{139, "as it told the others"})), 0);
  run.end(1, 137);
  EXPECT_EQ(count<KillProcess>(run.leave(0, "Cut")), 0) << "it waits for no group, but writes";
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.rank, 2);
  EXPECT_THAT(finish.message, Not(HasSubstr("are lost")));
}

TEST(Supervisor, lets_rank_0_write_before_a_job_ends_that_failed_elsewhere) {
  Scenario run;
  run.world_size = 4;
  run.train();
  run.feed(WorkerAtStep{0, 7});
  run.leave(0);
  run.leave(1);
  const Outputs outputs = run.feed(EndJob{2, "node 1: ConfigurationChanged"});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  run.end(1, 137);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 2);
}

TEST(Supervisor, kills_a_rank_0_that_has_not_written_in_time) {
  Scenario run(2, 0);
  run.train();
  run.feed(WorkerAtStep{0, 7});
  run.end(1, 139);
  run.leave(0);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace);
  EXPECT_EQ(get<KillProcess>(run.tick_at_deadline()).local_rank, 0);
  EXPECT_EQ(get<Finish>(run.end(0, 137)).code, 139);
}

// Only the others hold the steps: they go to rank 0 in a last group.
TEST(Supervisor, starts_a_rank_0_that_fails_a_last_time_to_write_what_the_others_hold) {
  Scenario run(2, 0);
  run.train();
  run.feed(WorkerAtStep{1, 7});
  Outputs outputs = run.end(0, 139);
  EXPECT_EQ(find<NodeFailed>(outputs), nullptr);
  EXPECT_EQ(get<StartWorker>(outputs).local_rank, 0);
  EXPECT_EQ(get<Leave>(outputs).code, 143);
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("after rank 0 has written what the other ranks hold"));
  run.leave(1);
  EXPECT_TRUE(get<WorkersReady>(run.feed(WorkerSaidHello{0})).ready);
  EXPECT_NE(find<Assignment>(run.place()), nullptr);
  EXPECT_EQ(get<SignalWorkers>(run.feed(StopJob{143})).signal, SIGTERM);
  run.end(1, 143);
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 139);
  EXPECT_THAT(finish.message, StartsWith("giving up after 0 restarts"));
  EXPECT_THAT(finish.message, Not(HasSubstr("are lost")));
}

TEST(Supervisor, says_what_is_lost_when_rank_0_fails_for_the_last_time) {
  Scenario run(2, 0);
  run.train();
  run.feed(WorkerAtStep{1, 7});
  run.end(0, 139);
  run.leave(1);
  const Outputs outputs = run.end(0, 11);
  EXPECT_EQ(get<NodeFailed>(outputs).code, 139) << "what failed first is the reason";
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  EXPECT_THAT(get<Finish>(run.end(1, 137)).message, HasSubstr("; the steps since the newest checkpoint are lost"));
}

TEST(Supervisor, tries_a_broken_device_of_rank_0_no_third_time) {
  Scenario run;
  run.train();
  run.feed(WorkerAtStep{1, 7});
  run.end(0, 12);
  run.leave(1);
  const Outputs outputs = run.end(0, 12);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_THAT(get<NodeFailed>(outputs).message, HasSubstr("the steps since the newest checkpoint are lost"));
}

TEST(Supervisor, starts_no_rank_0_for_steps_that_are_written_or_held_by_other_nodes) {
  Scenario written(2, 0);
  written.train();
  written.feed(WorkerAtStep{1, 7});
  written.feed(CheckpointNews{7});
  EXPECT_NE(find<NodeFailed>(written.end(0, 139)), nullptr);

  Scenario elsewhere(2, 0);
  elsewhere.feed(Started{});
  elsewhere.hello();
  Assignment placement = placed(++elsewhere.generation, 0, 4);
  placement.nnodes = 2;
  elsewhere.feed(placement);
  elsewhere.feed(WorkerAtStep{1, 7});
  EXPECT_NE(find<NodeFailed>(elsewhere.end(0, 139)), nullptr);
}

// ---- the budget ----

TEST(Supervisor, gives_up_alone_when_the_budget_is_used_up) {
  Scenario run(2, 2);
  run.train();
  for (const int64_t at : {1, 2}) {
    EXPECT_NE(find<StartWorker>(run.crash_at(at)), nullptr);
    run.recover();
  }
  const Outputs outputs = run.crash_at(3);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_FALSE(get<NodeFailed>(outputs).for_good);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.step, 3);
  EXPECT_THAT(finish.message, StartsWith("giving up after 2 restarts (--max_restarts 2); rank 1 (pid 101) ended"));
}

TEST(Supervisor, a_total_is_cleared_by_neither_progress_nor_time_and_no_crash_loop_ends_the_run_before) {
  Scenario run(2, 5);
  run.state.options.restarts_are_total = true;
  run.train();
  for (int restart = 0; restart < 5; ++restart) {
    EXPECT_EQ(find<Finish>(run.crash_at(3)), nullptr) << restart;
    run.recover();
    run.feed(CheckpointNews{restart + 1});
    run.now += 2 * kRestartWindow;
  }
  const Outputs last = run.crash_at(3);
  ASSERT_NE(find<NodeFailed>(last), nullptr);
  EXPECT_THAT(find<NodeFailed>(last)->message, StartsWith("giving up after 5 restarts (--max_restarts 5)"));
}

TEST(Supervisor, progress_of_a_program_clears_the_count) {
  Scenario run(2, 2);
  run.train();
  for (int restart = 0; restart < 6; ++restart) {
    EXPECT_EQ(find<NodeFailed>(run.crash_at(3)), nullptr) << restart;
    run.recover();
    run.feed(ProgramProgressed{});
  }
}

TEST(Supervisor, starts_nobody_again_with_max_restarts_0) {
  Scenario run(1, 0);
  run.feed(Started{});
  EXPECT_EQ(get<Finish>(run.end(0, 139)).code, 139);
}

TEST(Supervisor, finds_the_cause_when_the_peer_lost_is_seen_first) {
  Scenario run(2, 0);
  run.train();
  run.end(0, 10);
  EXPECT_EQ(get<Finish>(run.end(1, 139)).rank, 1);
}

TEST(Supervisor, counts_only_restarts_inside_the_window) {
  Scenario run(2, 1);
  run.train();
  run.crash_at(1);
  run.recover();
  run.now += kRestartWindow + 1s;
  EXPECT_NE(find<StartWorker>(run.crash_at(2)), nullptr);
  run.recover();
  EXPECT_NE(find<NodeFailed>(run.crash_at(3)), nullptr);
}

TEST(Supervisor, forgets_restarts_at_a_new_checkpoint_but_not_at_an_old_one) {
  Scenario run(2, 1);
  run.train();
  run.feed(CheckpointNews{10});
  run.crash_at(11);
  run.recover();
  run.feed(CheckpointNews{20});
  EXPECT_NE(find<StartWorker>(run.crash_at(21)), nullptr);
  run.recover();
  run.feed(CheckpointNews{20});
  EXPECT_NE(find<NodeFailed>(run.crash_at(22)), nullptr);
}

TEST(Supervisor, counts_several_ends_in_one_placement_once) {
  Scenario run(4, 1);
  run.train();
  run.feed(WorkerAtStep{0, 5});
  for (const int rank : {1, 2, 3}) {
    EXPECT_THAT(get<Restarting>(run.end(rank, 139)).line, HasSubstr("(restart 1 of 1)")) << rank;
  }
  EXPECT_EQ(run.state.restarts_total, 3);
}

TEST(Supervisor, counts_the_end_of_a_survivor_in_the_next_placement) {
  Scenario run(2, 1);
  run.train();
  run.crash_at(5);
  run.recover();
  EXPECT_NE(find<NodeFailed>(run.end(0, 139)), nullptr);
}

TEST(Supervisor, counts_an_end_before_the_next_placement) {
  Scenario run(2, 1);
  run.train();
  run.crash_at(5);
  EXPECT_NE(find<NodeFailed>(run.end(1, 139)), nullptr);
}

TEST(Supervisor, counts_the_ends_of_one_round_of_new_processes_once) {
  Scenario run(2, 10);
  run.train();
  run.end(0, 139);
  run.end(1, 139);
  run.end(0, 12);
  run.end(1, 12);
  EXPECT_EQ(run.state.restarts.size(), 2U);
  EXPECT_EQ(run.state.incidents_without_progress, 1);
}

TEST(Supervisor, waits_longer_before_each_restart_that_follows_no_progress) {
  Scenario run(2, 100);
  run.train();
  EXPECT_NE(find<StartWorker>(run.crash_at(7)), nullptr);
  run.recover();
  const Outputs outputs = run.crash_at(7);
  EXPECT_NE(find<Restarting>(outputs), nullptr);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(run.state.deadline, run.now + kBackoffInitial);
  EXPECT_EQ(get<StartWorker>(run.tick_at_deadline()).local_rank, 1);
  run.recover();
  run.crash_at(6);
  EXPECT_EQ(run.state.deadline, run.now + 2 * kBackoffInitial);
}

TEST(Supervisor, gives_the_node_up_in_a_crash_loop_that_comes_no_further) {
  Scenario run(2, 100);
  run.train();
  for (const int64_t at : {7, 7, 7}) {
    EXPECT_EQ(find<NodeFailed>(run.crash_at(at)), nullptr);
    run.recover();
  }
  const Outputs outputs = run.crash_at(6);
  EXPECT_FALSE(get<NodeFailed>(outputs).for_good) << "another machine may do it";
  EXPECT_THAT(get<NodeFailed>(outputs).message,
              StartsWith("crash loop: 3 restarts in a row came no further than step 7; rank 1"));
  EXPECT_THAT(get<Finish>(run.end(0, 137)).message, StartsWith("crash loop: "));
}

TEST(Supervisor, sees_no_crash_loop_in_a_run_that_comes_further) {
  Scenario run(2, 100);
  run.train();
  for (int64_t at = 1; at < 20; ++at) {
    EXPECT_NE(find<StartWorker>(run.crash_at(at)), nullptr);
    run.recover();
  }
}

TEST(Supervisor, starts_the_count_anew_at_a_new_checkpoint) {
  Scenario run(2, 100);
  run.train();
  for (int i = 0; i < 3; ++i) {
    run.crash_at(7);
    run.recover();
  }
  run.feed(CheckpointNews{7});
  EXPECT_NE(find<Restarting>(run.crash_at(7)), nullptr);
}

// ---- cuts ----

TEST(Supervisor, cuts_the_workers_of_that_generation_once) {
  Scenario run;
  run.train();
  EXPECT_TRUE(run.feed(CutGroup{run.generation - 1, "NodeLost"}).empty());
  const Outputs outputs = run.feed(CutGroup{run.generation, "NodeLost"});
  EXPECT_EQ(get<Cut>(outputs).generation, run.generation);
  EXPECT_EQ(get<Cut>(outputs).cause, "NodeLost");
  EXPECT_TRUE(run.feed(CutGroup{run.generation, "NodeLost"}).empty());
}

TEST(Supervisor, cuts_nobody_who_has_left_already) {
  Scenario run;
  run.train();
  run.leave(0);
  run.leave(1);
  EXPECT_TRUE(run.feed(CutGroup{run.generation, "NodeLost"}).empty());
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(Supervisor, kills_a_worker_that_stays_in_a_collective_after_a_cut) {
  Scenario run;
  run.train();
  run.feed(CutGroup{run.generation, "NodeLost"});
  run.leave(1, "Cut");
  run.feed(WorkerAtStep{0, 9, true});
  EXPECT_EQ(run.state.deadline, run.now + kCutGrace);
  run.now += kCutGrace - 1ms;
  EXPECT_TRUE(run.feed(SupervisorTick{}).empty());
  Outputs outputs = run.tick_at_deadline();
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(std::get<DumpStacks>(outputs[0]).local_rank, 0);
  EXPECT_EQ(std::get<KillProcess>(outputs[1]).local_rank, 0);
  outputs = run.end(0, 137);
  EXPECT_EQ(get<Restarting>(outputs).code, 11);
  EXPECT_THAT(get<Restarting>(outputs).line,
              HasSubstr("(SIGKILL) at step 9: still in a collective 12 s after its group was cut; starting it again"));
  EXPECT_EQ(get<Broken>(outputs).cause, "TimedOut");
}

TEST(Supervisor, waits_after_a_cut_for_one_that_computes_or_writes) {
  Scenario run;
  run.train();
  run.feed(CutGroup{run.generation, "NodeLost"});
  run.leave(1, "Cut");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run.tick_at_deadline().empty());
  EXPECT_TRUE(get<WorkersReady>(run.leave(0, "Cut")).ready);
  EXPECT_FALSE(run.state.deadline.has_value());
}

// A kernel of a collective that the abort does not end keeps its worker there.
TEST(Supervisor, kills_a_worker_that_waits_for_its_device_long_after_a_cut) {
  Scenario run;
  run.train();
  run.feed(CutGroup{run.generation, "NodeLost"});
  const TimePoint cut = run.now;
  run.leave(1, "Cut");
  run.feed(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  EXPECT_TRUE(run.tick_at_deadline().empty());
  EXPECT_TRUE(run.tick_at_deadline().empty());
  EXPECT_EQ(get<KillProcess>(run.tick_at_deadline()).local_rank, 0);
  EXPECT_EQ(run.now, cut + kCutDeviceGrace);
  EXPECT_THAT(get<Restarting>(run.end(0, 137)).line,
              HasSubstr("still waiting for its device 30 s after its group was cut"));
}

TEST(Supervisor, does_not_kill_a_worker_whose_device_is_done_or_that_was_not_cut) {
  Scenario done;
  done.train();
  done.feed(CutGroup{done.generation, "NodeLost"});
  done.leave(1, "Cut");
  done.feed(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  done.tick_at_deadline();
  done.feed(WorkerAtStep{.local_rank = 0, .step = 9});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(done.tick_at_deadline().empty());

  Scenario training;
  training.train();
  training.feed(WorkerAtStep{.local_rank = 0, .step = 9, .on_device = true});
  EXPECT_FALSE(training.state.deadline.has_value());
}

TEST(Supervisor, lets_the_workers_leave_together) {
  Scenario run;
  run.train();
  EXPECT_TRUE(run.feed(Regroup{run.generation - 1, false}).empty());
  const Outputs outputs = run.feed(Regroup{run.generation, false});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<LeaveTogether>(outputs).generation, run.generation);
  EXPECT_EQ(get<LeaveTogether>(outputs).leaving_code, 0);
}

// ---- workers that hang ----

TEST(Supervisor, kills_and_blames_the_workers_that_never_said_hello) {
  Scenario run(2, 0);
  run.feed(Started{});
  run.feed(WorkerSaidHello{0});
  Outputs outputs = run.tick_at_deadline();
  EXPECT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  outputs = run.end(1, 137);
  EXPECT_EQ(get<NodeFailed>(outputs).code, 11);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_EQ(finish.rank, 1);
  EXPECT_THAT(finish.message, HasSubstr("did not say hello within 300 s (--rendezvous_timeout_seconds)"));
  EXPECT_FALSE(finish.message_names_code);
}

// Reading the data may take longer than the start timeout; while it shows progress it is no hang.
TEST(Supervisor, waits_for_the_hello_of_a_worker_that_shows_progress) {
  Scenario run(1);
  run.feed(Started{});
  for (int i = 0; i < 10; ++i) {
    run.now += 299s;
    run.feed(WorkerAtStep{.local_rank = 0, .progress_at = run.now});
    EXPECT_EQ(count<KillProcess>(run.feed(SupervisorTick{})), 0) << i;
  }
  const TimePoint last = run.now;
  EXPECT_EQ(count<KillProcess>(run.tick_at_deadline()), 1);
  EXPECT_EQ(run.now, last + 300s);
}

TEST(Supervisor, gives_a_worker_that_was_started_again_its_own_start_timeout) {
  Scenario run;
  run.train();
  run.now += 1000s;
  run.end(1, 139);
  EXPECT_EQ(run.state.deadline, run.now + 300s);
}

TEST(Supervisor, kills_on_order_and_says_why) {
  Scenario run;
  run.train();
  Outputs outputs = run.feed(KillWorker{1, "no progress for 600 s, waiting for data"});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(std::get<DumpStacks>(outputs[0]).local_rank, 1);
  EXPECT_EQ(std::get<KillProcess>(outputs[1]).local_rank, 1);
  outputs = run.end(1, 137);
  EXPECT_EQ(get<Restarting>(outputs).code, 11);
  EXPECT_THAT(get<Restarting>(outputs).line, HasSubstr("no progress for 600 s, waiting for data"));
}

TEST(Supervisor, kills_a_silent_worker_once) {
  Scenario run;
  run.train();
  const Outputs outputs = run.feed(WorkerSilent{0, 5000ms});
  EXPECT_EQ(count<DumpStacks>(outputs), 1);
  EXPECT_EQ(count<KillProcess>(outputs), 1);
  EXPECT_TRUE(run.feed(WorkerSilent{0, 6000ms}).empty());
  EXPECT_TRUE(run.feed(KillWorker{0, "hangs"}).empty());
  EXPECT_THAT(get<Restarting>(run.end(0, 137)).line, HasSubstr("its process has not run for 5 s"));
  EXPECT_EQ(count<KillProcess>(run.feed(WorkerSilent{0, 5000ms})), 1) << "the next process is another one";
}

TEST(Supervisor, is_not_ready_with_a_worker_that_it_has_killed) {
  Scenario run;
  run.feed(Started{});
  run.feed(WorkerSaidHello{0});
  run.feed(WorkerSilent{0, 5000ms});
  EXPECT_EQ(find<WorkersReady>(run.feed(WorkerSaidHello{1})), nullptr);
}

TEST(Supervisor, takes_the_code_of_a_worker_that_ended_before_the_kill_reached_it) {
  Scenario run;
  run.train();
  run.feed(KillWorker{1, "hangs"});
  EXPECT_EQ(get<Restarting>(run.end(1, 12)).code, 12);
}

// ---- stopping ----

TEST(Supervisor, asks_the_job_before_it_stops_its_workers) {
  Scenario run;
  run.train();
  const Outputs outputs = run.feed(StopRequested{SIGTERM});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<Leave>(outputs).code, 143);
  EXPECT_TRUE(run.feed(StopRequested{SIGTERM}).empty());
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace / 2);
}

// The other ranks may hold a state that rank 0 here must get before all stop.
TEST(Supervisor, stays_until_it_is_told_how_to_stop) {
  Scenario run;
  run.train();
  run.crash_at(7);
  const Outputs asks = run.feed(StopRequested{SIGTERM});
  ASSERT_EQ(asks.size(), 1U);
  EXPECT_EQ(get<Leave>(asks).code, 143);
  EXPECT_TRUE(get<WorkersReady>(run.feed(WorkerSaidHello{1})).ready);
  EXPECT_NE(find<Assignment>(run.place()), nullptr);
  run.feed(WorkerAtStep{0, 8});
  EXPECT_NE(find<StartWorker>(run.end(1, 139)), nullptr) << "it is needed for the group";
  EXPECT_EQ(get<SignalWorkers>(run.feed(StopJob{143})).signal, SIGTERM);
  run.end(1, 143);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(Supervisor, stops_by_itself_when_nobody_tells_it_how) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  run.feed(StopRequested{SIGTERM});
  const TimePoint asked = run.now;
  EXPECT_EQ(get<SignalWorkers>(run.tick_at_deadline()).signal, SIGTERM);
  EXPECT_EQ(run.now, asked + kStopGrace / 2);
  EXPECT_EQ(run.state.deadline, asked + kStopGrace);
}

TEST(Supervisor, leaves_alone_with_its_stop_code) {
  Scenario run;
  run.train();
  run.feed(StopRequested{SIGTERM});
  EXPECT_EQ(get<LeaveTogether>(run.feed(Regroup{run.generation, true})).leaving_code, 143);
  run.end(1, 143);
  const Finish finish = get<Finish>(run.end(0, 143));
  EXPECT_EQ(finish.code, 143);
  EXPECT_EQ(finish.message, "stopped by SIGTERM");
  EXPECT_EQ(finish.rank, -1);
}

TEST(Supervisor, leaves_when_the_coordinator_sends_it_away) {
  Scenario run;
  run.train();
  EXPECT_EQ(get<LeaveTogether>(run.feed(Regroup{run.generation, true})).leaving_code, 143);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace);
}

TEST(Supervisor, ends_after_a_regroup_that_is_not_its_own_leaving) {
  Scenario run;
  run.train();
  run.feed(StopRequested{SIGTERM});
  EXPECT_EQ(get<LeaveTogether>(run.feed(Regroup{run.generation, false})).leaving_code, 0);
  run.leave(0, "Regroup");
  EXPECT_TRUE(get<WorkersReady>(run.leave(1, "Regroup")).ready);
  EXPECT_EQ(get<SignalWorkers>(run.feed(StopJob{143})).signal, SIGTERM);
}

TEST(Supervisor, stops_with_the_whole_job) {
  Scenario run;
  run.train();
  Outputs outputs = run.feed(StopJob{130});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGINT);
  run.end(1, 130);
  outputs = run.end(0, 130);
  EXPECT_EQ(get<Finish>(outputs).code, 130);
  EXPECT_EQ(get<Finish>(outputs).message, "stopped by Ctrl-C");
}

TEST(Supervisor, signals_workers_that_have_nothing_to_lose_when_it_is_told) {
  Scenario run;
  run.feed(Started{});
  run.feed(WorkerSaidHello{0});
  EXPECT_EQ(get<Leave>(run.feed(StopRequested{SIGINT})).code, 130);
  EXPECT_EQ(get<SignalWorkers>(run.feed(StopJob{130})).signal, SIGINT);
  run.end(0, 130);
  EXPECT_EQ(get<Finish>(run.end(1, 130)).code, 130);
}

TEST(Supervisor, signals_workers_whose_group_broke_while_it_was_leaving) {
  Scenario run;
  run.train();
  run.feed(StopRequested{SIGTERM});
  run.leave(0);
  EXPECT_EQ(find<SignalWorkers>(run.leave(1)), nullptr);
  const Outputs outputs = run.feed(StopJob{143});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_FALSE(get<WorkersReady>(outputs).ready);
}

TEST(Supervisor, takes_ready_back_when_it_stops_and_refuses_a_placement) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  EXPECT_FALSE(get<WorkersReady>(run.feed(StopJob{143})).ready);
  const Outputs outputs = run.place();
  EXPECT_EQ(find<Assignment>(outputs), nullptr);
  EXPECT_EQ(get<Broken>(outputs).generation, run.generation);
}

TEST(Supervisor, passes_a_second_signal_on_and_SIGTERM_outranks_Ctrl_C) {
  Scenario run;
  run.train();
  EXPECT_EQ(get<Leave>(run.feed(StopRequested{SIGINT})).code, 130);
  EXPECT_EQ(get<Leave>(run.feed(StopRequested{SIGTERM})).code, 143);
  run.end(0, 130);
  EXPECT_EQ(get<Finish>(run.end(1, 130)).code, 143);

  Scenario other;
  other.train();
  other.feed(StopRequested{SIGTERM});
  EXPECT_EQ(find<Leave>(other.feed(StopRequested{SIGINT})), nullptr);
  EXPECT_EQ(other.state.asked_code, 143);

  Scenario signalled;
  signalled.train();
  signalled.feed(StopJob{130});
  EXPECT_EQ(get<SignalWorkers>(signalled.feed(StopRequested{SIGTERM})).signal, SIGTERM);
}

TEST(Supervisor, gives_a_second_signal_no_more_time) {
  Scenario run;
  run.train();
  run.feed(StopRequested{SIGINT});
  const auto until = run.state.deadline;
  run.now += 10s;
  run.feed(StopRequested{SIGTERM});
  EXPECT_EQ(run.state.deadline, until);
}

TEST(Supervisor, takes_any_other_stop_code_for_SIGTERM) {
  Scenario run;
  run.train();
  EXPECT_EQ(get<SignalWorkers>(run.feed(StopJob{7})).signal, SIGTERM);
}

TEST(Supervisor, does_not_blame_a_refused_placement_on_what_was_made_good) {
  Scenario run;
  run.train();
  run.crash_at(5);
  run.recover();
  run.leave(0);
  run.leave(1);
  run.feed(StopJob{143});
  EXPECT_EQ(get<Broken>(run.place()).cause, "NotReady");
}

TEST(Supervisor, restarts_nobody_while_stopping) {
  Scenario run;
  run.train();
  run.feed(StopJob{130});
  run.now += 30s;
  const Outputs outputs = run.end(1, 139);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(get<Broken>(outputs).rank, 1);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace) << "rank 0 may be writing its last checkpoint";
  const Finish finish = get<Finish>(run.end(0, 130));
  EXPECT_EQ(finish.code, 139);
  EXPECT_EQ(finish.rank, 1);
}

TEST(Supervisor, does_not_blame_a_stop_on_a_failure_that_was_made_good) {
  Scenario run;
  run.train();
  run.crash_at(7);
  run.feed(StopRequested{SIGTERM});
  run.end(1, 143);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(Supervisor, ends_at_once_when_it_is_told_to_stop_while_nobody_runs) {
  Scenario run(1, 100);
  run.train();
  run.end(0, 139);
  run.end(0, 139);
  ASSERT_EQ(run.state.workers[0].phase, WorkerPhase::kBackoff);
  EXPECT_EQ(get<Leave>(run.feed(StopRequested{SIGTERM})).code, 143);
  const Outputs outputs = run.feed(StopJob{143});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(get<Finish>(outputs).code, 139);

  Scenario never_started;
  EXPECT_EQ(get<Finish>(never_started.feed(StopRequested{SIGTERM})).code, 143);
  EXPECT_TRUE(never_started.feed(Started{}).empty());
}

TEST(Supervisor, starts_nobody_after_a_backoff_when_it_stops) {
  Scenario run(2, 100);
  run.train();
  run.crash_at(7);
  run.recover();
  run.crash_at(7);
  run.feed(StopJob{143});
  EXPECT_EQ(run.state.workers[1].phase, WorkerPhase::kEnded);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 139);
}

TEST(Supervisor, kills_what_has_not_stopped_in_time) {
  Scenario run;
  run.train();
  run.feed(StopJob{143});
  run.end(1, 143);
  const Outputs outputs = run.tick_at_deadline();
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 0);
  const Finish finish = get<Finish>(run.end(0, 137));
  EXPECT_EQ(finish.code, 11);
  EXPECT_THAT(finish.message, HasSubstr("had not stopped 60 s after it was asked to"));
}

TEST(Supervisor, kills_nobody_for_the_time_in_which_it_did_not_run_itself) {
  Scenario run;
  run.train();
  run.feed(StopJob{143});
  run.now += 20s;
  run.feed(WorkerAtStep{0, 1});
  run.now += 400s;  // a frozen container
  EXPECT_EQ(find<KillProcess>(run.feed(SupervisorTick{})), nullptr);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace - 20s);
  EXPECT_EQ(count<KillProcess>(run.tick_at_deadline()), 2);

  Scenario starting;
  starting.feed(Started{});
  starting.now += 100s;
  starting.feed(WorkerSaidHello{0});
  starting.now += 400s;
  EXPECT_EQ(find<KillProcess>(starting.feed(SupervisorTick{})), nullptr);
  EXPECT_EQ(get<KillProcess>(starting.tick_at_deadline()).local_rank, 1);
}

TEST(Supervisor, shifts_no_deadline_for_a_late_tick) {
  Scenario run;
  run.train();
  run.feed(StopJob{143});
  run.now += kStopGrace + kAsleepMin;
  EXPECT_EQ(count<KillProcess>(run.feed(SupervisorTick{})), 2);
}

TEST(Supervisor, gives_a_stop_the_time_that_it_is_told) {
  Scenario run;
  run.state.options.stop_timeout = 300s;
  run.train();
  run.feed(StopJob{143});
  EXPECT_EQ(run.state.deadline, run.now + 300s);
  run.now += 100s;
  run.end(1, 139);
  EXPECT_EQ(run.state.deadline, run.now + 300s);
  EXPECT_EQ(get<KillProcess>(run.tick_at_deadline()).local_rank, 0);
  EXPECT_THAT(run.state.workers[0].message_when_killed, HasSubstr("had not stopped 300 s after it was asked to"));
}

TEST(Supervisor, follows_a_worker_that_somebody_else_has_stopped) {
  Scenario run;
  run.train();
  const Outputs outputs = run.end(1, 143);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(find<Broken>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(run.end(0, 143)).code, 143);
}

TEST(Supervisor, stops_the_waiting_workers_when_somebody_else_has_stopped_one) {
  Scenario run;
  run.feed(Started{});
  run.hello();
  const Outputs outputs = run.end(1, 130);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGINT);
  EXPECT_FALSE(get<WorkersReady>(outputs).ready);
}

// ---- the end ----

TEST(Supervisor, remarks_on_a_bad_end_after_the_first_good_one) {
  Scenario run;
  run.train();
  run.end(0, 0);
  const Outputs outputs = run.end(1, 139);
  EXPECT_EQ(find<StartWorker>(outputs), nullptr);
  EXPECT_EQ(find<Broken>(outputs), nullptr);
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("rank 1 (pid 101) ended with signal 11 (SIGSEGV)"));
  EXPECT_EQ(count<NodeDone>(outputs), 1);
  EXPECT_EQ(get<Finish>(run.feed(EndJob{0, ""})).code, 0);
}

TEST(Supervisor, ends_those_that_wait_for_a_group_when_training_is_complete) {
  Scenario run(3);
  run.train();
  run.end(2, 139);
  Outputs outputs = run.end(0, 0);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 2);
  outputs = run.leave(1);
  EXPECT_EQ(get<KillProcess>(outputs).local_rank, 1);
  run.end(2, 137);
  outputs = run.end(1, 137);
  EXPECT_EQ(count<NodeDone>(outputs), 1);
  EXPECT_EQ(find<Remark>(outputs), nullptr);
}

TEST(Supervisor, takes_a_stopped_worker_for_done_when_another_one_is) {
  Scenario run(3);
  run.train();
  run.end(0, 0);
  run.end(1, 143);
  EXPECT_FALSE(run.state.stopping());
  EXPECT_EQ(count<NodeDone>(run.end(2, 0)), 1);
}

TEST(Supervisor, does_not_ask_to_leave_a_job_that_has_ended) {
  Scenario run;
  run.train();
  run.feed(EndJob{0, ""});
  EXPECT_EQ(find<Leave>(run.feed(StopRequested{SIGTERM})), nullptr);
}

TEST(Supervisor, gives_the_end_of_the_job_no_more_time_than_a_stop_has_left) {
  Scenario run;
  run.train();
  run.feed(StopJob{143});
  const auto until = run.state.deadline;
  run.now += kStopGrace - 1s;
  run.feed(EndJob{0, ""});
  EXPECT_EQ(run.state.deadline, until);

  Scenario early;
  early.train();
  early.feed(StopRequested{SIGTERM});
  early.feed(EndJob{0, ""});
  EXPECT_EQ(early.state.deadline, early.now + kEndGrace);
}

TEST(Supervisor, is_done_even_when_it_is_to_stop) {
  Scenario run;
  run.train();
  run.feed(StopRequested{SIGTERM});
  run.end(0, 0);
  Outputs outputs = run.end(1, 143);
  EXPECT_EQ(count<NodeDone>(outputs), 1);
  EXPECT_EQ(find<Finish>(outputs), nullptr);
  outputs = run.tick_at_deadline();
  EXPECT_EQ(get<Finish>(outputs).code, 0) << "the end of the job has not come in time";
}

TEST(Supervisor, ends_with_0_when_it_is_stopped_while_it_waits_for_the_others) {
  Scenario run;
  run.train();
  run.end(0, 0);
  run.end(1, 0);
  EXPECT_EQ(get<Finish>(run.feed(StopRequested{SIGTERM})).code, 0);
}

TEST(Supervisor, gives_its_workers_time_to_end_with_a_job_that_is_complete) {
  Scenario run;
  run.train();
  EXPECT_TRUE(run.feed(EndJob{0, ""}).empty());
  EXPECT_EQ(run.state.deadline, run.now + kEndGrace);
  run.end(0, 0);
  EXPECT_EQ(get<KillProcess>(run.tick_at_deadline()).local_rank, 1);
  const Outputs outputs = run.end(1, 137);
  EXPECT_THAT(get<Remark>(outputs).line, HasSubstr("had not left 10 s after the end of the job"));
  EXPECT_EQ(get<Finish>(outputs).code, 0);
}

TEST(Supervisor, ends_at_once_with_a_complete_job_that_its_workers_never_joined) {
  Scenario run;
  run.feed(Started{});
  EXPECT_EQ(count<KillProcess>(run.feed(EndJob{0, ""})), 2);
  run.end(0, 137);
  EXPECT_EQ(get<Finish>(run.end(1, 137)).code, 0);
}

TEST(Supervisor, ends_with_a_job_that_failed_elsewhere) {
  Scenario run;
  run.train();
  EXPECT_EQ(count<KillProcess>(run.feed(EndJob{3, "rank 5: no data"})), 2);
  run.end(0, 137);
  const Outputs outputs = run.end(1, 137);
  EXPECT_EQ(find<Remark>(outputs), nullptr);
  EXPECT_EQ(get<Finish>(outputs).code, 3);
  EXPECT_EQ(get<Finish>(outputs).message, "rank 5: no data");
  EXPECT_EQ(get<Finish>(outputs).rank, -1);
}

TEST(Supervisor, ends_at_once_with_a_failed_job_when_nobody_is_alive) {
  Scenario run(1, 100);
  run.train();
  run.end(0, 139);
  run.end(0, 139);
  ASSERT_EQ(run.state.workers[0].phase, WorkerPhase::kBackoff);
  EXPECT_EQ(get<Finish>(run.feed(EndJob{1, "why"})).code, 1);
}

TEST(Supervisor, lets_the_workers_write_down_what_they_hold_when_too_few_nodes_are_left) {
  Scenario run;
  run.train();
  run.feed(CutGroup{run.state.assignment->generation, "NodeLost"});
  for (int rank = 0; rank < 2; ++rank) run.feed(WorkerLeft{rank, run.state.assignment->generation, "Cut", ""});
  const Outputs outputs = run.feed(EndJob{10, "1 of 2 nodes are ready"});
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  run.end(0, 143);
  EXPECT_EQ(get<Finish>(run.end(1, 143)).code, 10);
}

TEST(Supervisor, gives_a_job_that_was_stopped_the_time_for_its_checkpoint) {
  Scenario run;
  run.train();
  const Outputs outputs = run.feed(EndJob{143, "stopped"});
  EXPECT_EQ(find<KillProcess>(outputs), nullptr);
  EXPECT_EQ(get<SignalWorkers>(outputs).signal, SIGTERM);
  run.end(0, 143);
  EXPECT_EQ(get<Finish>(run.end(1, 143)).code, 143);
}

TEST(Supervisor, names_its_own_cause_when_the_job_ends_because_of_it) {
  Scenario run;
  run.train();
  run.end(1, 5, "loss is NaN");
  run.feed(EndJob{5, "node 0: loss is NaN"});
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
    apply(EndJob{1, "over"});
    for (int i = 0; i < 100 && !finished_; ++i) {
      for (int rank = 0; rank < nproc(); ++rank) {
        if (alive(rank)) apply(WorkerEnded{rank, 1, 137, ""});
      }
      if (run_.state.deadline) run_.now = *run_.state.deadline;
      apply(SupervisorTick{});
    }
  }
  [[nodiscard]] bool finished() const { return finished_; }

 private:
  [[nodiscard]] int nproc() const { return run_.state.options.nproc; }
  [[nodiscard]] bool alive(int rank) const { return alive_.contains(rank); }
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  // Mostly the generation that the workers are in, now and then another one.
  uint64_t some_generation() { return run_.state.workers.front().generation + static_cast<uint64_t>(pick(10) == 0); }
  bool rarely() { return pick(40) == 0; }

  SupervisorEvent next_event() {
    constexpr std::array kBadEnds{139, 137, 1, 10, 11, 12};
    constexpr std::array kRareEnds{0, 143, 2};
    const int rank = pick(nproc());
    switch (pick(12)) {
      case 0:
        if (alive(rank)) return WorkerSaidHello{rank};
        break;
      case 1:
        if (alive(rank)) return WorkerLeft{rank, some_generation(), pick(2) == 0 ? "PeerLost" : "Cut", ""};
        break;
      case 2:
        return placed(++run_.generation, 0, nproc());
      case 3:
        if (alive(rank) && pick(4) == 0) return WorkerEnded{rank, 1, kBadEnds[static_cast<size_t>(pick(6))], ""};
        break;
      case 4:
        if (alive(rank) && rarely()) return WorkerEnded{rank, 1, kRareEnds[static_cast<size_t>(pick(3))], ""};
        break;
      case 5:
        return CutGroup{some_generation(), "NodeLost"};
      case 6:
        return Regroup{some_generation(), rarely()};
      case 7:
        if (rarely()) return KillWorker{rank, "hangs"};
        if (rarely()) return WorkerSilent{rank, 5000ms};
        break;
      case 8:
        if (rarely()) return StopRequested{pick(2) == 0 ? SIGINT : SIGTERM};
        if (rarely()) return StopJob{143};
        if (rarely()) return EndJob{pick(2) == 0 ? 0 : 1, ""};
        break;
      case 9:
        return WorkerAtStep{rank, ++step_, pick(2) == 0};
      case 10:
        return CheckpointNews{step_ - pick(100)};
      default:
        run_.now += std::chrono::milliseconds(pick(3000));
        break;
    }
    return SupervisorTick{};
  }

  void apply(const SupervisorEvent& event) {
    if (const auto* end = std::get_if<WorkerEnded>(&event)) alive_.erase(end->local_rank);
    const bool was_finished = finished_;
    for (const SupervisorOutput& output : run_.feed(event)) {
      EXPECT_FALSE(finished_) << "an output after Finish";
      check(output);
    }
    EXPECT_EQ(finished_, run_.state.finished);
    if (finished_ && !was_finished) {
      for (const int rank : alive_) {
        EXPECT_TRUE(run_.state.workers[static_cast<size_t>(rank)].is_given_up) << "finished with a worker alive";
      }
    }
    if (!finished_ && alive_.empty() && !run_.state.said_done) {
      EXPECT_TRUE(run_.state.deadline.has_value()) << "nobody is alive and nothing is to happen";
    }
  }
  void check(const SupervisorOutput& output) {
    if (const auto* start = std::get_if<StartWorker>(&output)) {
      EXPECT_TRUE(alive_.insert(start->local_rank).second) << "started twice";
      killed_.erase(start->local_rank);
      EXPECT_FALSE(run_.state.stopping() || run_.state.complete || run_.state.verdict) << "started for nothing";
    } else if (const auto* kill = std::get_if<KillProcess>(&output)) {
      EXPECT_TRUE(alive(kill->local_rank)) << "killed one that is not alive";
      EXPECT_TRUE(killed_.insert(kill->local_rank).second) << "killed twice";
    } else if (const auto* ready = std::get_if<WorkersReady>(&output)) {
      EXPECT_TRUE(!ready->ready || std::ssize(alive_) == nproc()) << "ready without all workers";
    } else if (std::holds_alternative<Finish>(output)) {
      finished_ = true;
    }
  }

  std::mt19937 random_;
  Scenario run_;
  std::set<int> alive_;
  std::set<int> killed_;
  bool finished_ = false;
  int64_t step_ = 0;
};

TEST(Supervisor, comes_to_an_end_whatever_happens_in_whatever_order) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed, 1 + static_cast<int>(seed % 4));
    storm.blow(400);
    storm.calm_down();
    ASSERT_TRUE(storm.finished());
    if (HasFailure()) break;
  }
}

TEST(Supervisor, describes_exits) {
  EXPECT_EQ(describe_exit(1), "exit code 1 (Crash)");
  EXPECT_EQ(describe_exit(13), "exit code 13 (OutOfMemory)");
  EXPECT_EQ(describe_exit(137), "signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace lockstep
