#include "runner/agent/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// A supervisor of `nproc` workers with a clock that the test moves.
class Scenario {
 public:
  explicit Scenario(int nproc = 2, int max_restarts = 10)
      : state(SupervisorOptions{
            .nproc = nproc, .attempt = 3, .max_restarts = max_restarts, .rendezvous_timeout = 300s}) {}

  std::vector<SupervisorOutput> feed(const SupervisorEvent& event) { return step(state, event, now); }

  void form() {
    for (int rank = 0; rank < state.options.nproc; ++rank) feed(WorkerSaidHello{rank});
  }
  std::vector<SupervisorOutput> end(int rank, int code, const std::string& message = "") {
    return feed(WorkerEnded{.local_rank = rank, .pid = 100 + rank, .code = code, .message = message});
  }
  // Starts, forms, and lets rank 1 crash at `step` after which rank 0 leaves.
  std::vector<SupervisorOutput> crash_at(int64_t at) {
    form();
    feed(WorkerAtStep{1, at});
    end(1, 139);
    return end(0, 10);
  }
  std::vector<SupervisorOutput> tick_at_deadline() {
    EXPECT_TRUE(state.deadline.has_value());
    if (state.deadline) now = *state.deadline;
    return feed(Tick{});
  }

  SupervisorState state;
  TimePoint now{1000s};
};

template <typename T>
const T* find(const std::vector<SupervisorOutput>& outputs) {
  for (const SupervisorOutput& output : outputs) {
    if (const T* found = std::get_if<T>(&output)) return found;
  }
  return nullptr;
}

TEST(Supervisor, starts_generation_1_of_its_attempt) {
  Scenario run;
  const auto outputs = run.feed(Started{});
  ASSERT_NE(find<StartWorkers>(outputs), nullptr);
  EXPECT_EQ(find<StartWorkers>(outputs)->generation, (uint64_t{3} << 32U) | 1U);
}

TEST(Supervisor, assigns_when_the_last_worker_has_said_hello) {
  Scenario run;
  run.feed(Started{});
  EXPECT_TRUE(run.feed(WorkerSaidHello{1}).empty());
  EXPECT_NE(find<SendAssignments>(run.feed(WorkerSaidHello{0})), nullptr);
  EXPECT_FALSE(run.state.deadline.has_value());
}

TEST(Supervisor, finishes_with_0_when_all_ended_with_0) {
  Scenario run;
  run.feed(Started{});
  run.form();
  EXPECT_TRUE(run.end(0, 0).empty());
  const auto outputs = run.end(1, 0);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, 0);
}

TEST(Supervisor, restarts_all_at_once_with_the_next_generation_after_a_crash) {
  Scenario run;
  run.feed(Started{});
  const auto outputs = run.crash_at(12);
  ASSERT_NE(find<Restarting>(outputs), nullptr);
  EXPECT_THAT(find<Restarting>(outputs)->line, HasSubstr("rank 1 (pid 101) ended with signal 11 (SIGSEGV) at step 12"));
  EXPECT_EQ(find<Restarting>(outputs)->code, 139);
  ASSERT_NE(find<StartWorkers>(outputs), nullptr);
  EXPECT_EQ(find<StartWorkers>(outputs)->generation, (uint64_t{3} << 32U) | 2U);
}

TEST(Supervisor, finds_the_cause_when_the_peer_lost_is_seen_first) {
  Scenario run;
  run.feed(Started{});
  run.form();
  EXPECT_TRUE(run.end(0, 10).empty());
  EXPECT_THAT(find<Restarting>(run.end(1, 137))->line, HasSubstr("rank 1"));
}

TEST(Supervisor, kills_survivors_after_the_grace_and_does_not_blame_them) {
  Scenario run;
  run.feed(Started{});
  run.form();
  EXPECT_TRUE(run.end(1, 10).empty());
  EXPECT_EQ(run.state.deadline, run.now + kSurvivorGrace);
  run.now += kSurvivorGrace - 1ms;
  EXPECT_TRUE(run.feed(Tick{}).empty());
  EXPECT_NE(find<KillWorkers>(run.tick_at_deadline()), nullptr);
  const auto outputs = run.end(0, 137);
  ASSERT_NE(find<Restarting>(outputs), nullptr);
  EXPECT_EQ(find<Restarting>(outputs)->code, 10);
}

class SupervisorNeverRespawns : public testing::TestWithParam<int> {};
TEST_P(SupervisorNeverRespawns, this_code) {
  Scenario run;
  run.feed(Started{});
  run.form();
  run.end(1, GetParam(), "why");
  const auto outputs = run.end(0, 10);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, GetParam());
  EXPECT_EQ(find<Finish>(outputs)->rank, 1);
  EXPECT_THAT(find<Finish>(outputs)->message, HasSubstr("why"));
}
INSTANTIATE_TEST_SUITE_P(Codes, SupervisorNeverRespawns, testing::Values(2, 3, 5));

TEST(Supervisor, ends_for_good_when_the_checkpoint_folder_fails_before_the_first_step) {
  Scenario run;
  run.feed(Started{});
  run.form();
  run.feed(WorkerAtStep{1, 0});
  run.end(1, 4, "read-only");
  const auto outputs = run.end(0, 10);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, 4);
  EXPECT_EQ(find<Finish>(outputs)->message, "rank 1 (pid 101) ended with exit code 4 (CheckpointFailed): read-only");
}

TEST(Supervisor, respawns_after_a_checkpoint_failure_once_a_step_was_done) {
  Scenario run;
  run.feed(Started{});
  run.crash_at(3);
  run.form();
  run.end(1, 4);
  EXPECT_NE(find<Restarting>(run.end(0, 10)), nullptr);
}

TEST(Supervisor, says_where_a_restart_begins) {
  Scenario run;
  run.feed(Started{});
  EXPECT_THAT(find<Restarting>(run.crash_at(0))->line, HasSubstr("; starting again from the beginning (restart 1"));
  run.feed(CheckpointSeen{0});
  EXPECT_THAT(find<Restarting>(run.crash_at(0))->line, HasSubstr("; going on from the newest checkpoint"));
}

TEST(Supervisor, gives_up_when_the_budget_is_used_up) {
  Scenario run(2, 2);
  run.feed(Started{});
  EXPECT_NE(find<StartWorkers>(run.crash_at(1)), nullptr);
  EXPECT_NE(find<StartWorkers>(run.crash_at(2)), nullptr);
  const auto outputs = run.crash_at(3);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, 139);
  EXPECT_THAT(find<Finish>(outputs)->message, HasSubstr("--max_restarts 2"));
}

TEST(Supervisor, counts_only_restarts_inside_the_window) {
  Scenario run(2, 1);
  run.feed(Started{});
  run.crash_at(1);
  run.now += kRestartWindow + 1s;
  EXPECT_NE(find<StartWorkers>(run.crash_at(2)), nullptr);
  EXPECT_NE(find<Finish>(run.crash_at(3)), nullptr);
}

TEST(Supervisor, forgets_restarts_at_a_new_checkpoint_but_not_at_an_old_one) {
  Scenario run(2, 1);
  run.feed(Started{});
  run.feed(CheckpointSeen{10});
  run.crash_at(11);
  run.feed(CheckpointSeen{20});
  EXPECT_NE(find<StartWorkers>(run.crash_at(21)), nullptr);
  run.feed(CheckpointSeen{20});
  EXPECT_NE(find<Finish>(run.crash_at(22)), nullptr);
}

TEST(Supervisor, ends_a_crash_loop_that_comes_no_further) {
  Scenario run(2, 100);
  run.feed(Started{});
  EXPECT_NE(find<StartWorkers>(run.crash_at(7)), nullptr);
  auto outputs = run.crash_at(7);
  EXPECT_EQ(find<StartWorkers>(outputs), nullptr);
  EXPECT_EQ(run.state.deadline, run.now + kBackoffInitial);
  EXPECT_NE(find<StartWorkers>(run.tick_at_deadline()), nullptr);
  run.crash_at(6);
  EXPECT_EQ(run.state.deadline, run.now + 2 * kBackoffInitial);
  run.tick_at_deadline();
  outputs = run.crash_at(7);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_THAT(find<Finish>(outputs)->message, HasSubstr("crash loop: 3 restarts in a row came no further than step 7"));
}

TEST(Supervisor, forwards_each_signal_once) {
  Scenario run;
  run.feed(Started{});
  run.form();
  const auto outputs = run.feed(StopRequested{SIGTERM});
  ASSERT_NE(find<SignalWorkers>(outputs), nullptr);
  EXPECT_EQ(find<SignalWorkers>(outputs)->signal, SIGTERM);
  EXPECT_TRUE(run.feed(StopRequested{SIGTERM}).empty());
}

TEST(Supervisor, restarts_nobody_while_stopping) {
  Scenario run;
  run.feed(Started{});
  run.form();
  run.feed(StopRequested{SIGTERM});
  run.end(0, 143);
  EXPECT_EQ(find<Finish>(run.end(1, 143))->code, 143);

  Scenario crashing;
  crashing.feed(Started{});
  crashing.form();
  crashing.feed(StopRequested{SIGINT});
  crashing.end(0, 130);
  EXPECT_EQ(find<Finish>(crashing.end(1, 139))->code, 139);
}

TEST(Supervisor, gives_the_last_checkpoint_its_time_while_stopping) {
  Scenario run;
  run.feed(Started{});
  run.form();
  run.feed(StopRequested{SIGTERM});
  run.end(1, 139);
  EXPECT_EQ(run.state.deadline, run.now + kStopGrace);
}

TEST(Supervisor, waits_without_a_deadline_for_others_when_one_was_stopped_by_hand) {
  Scenario run;
  run.feed(Started{});
  run.form();
  EXPECT_TRUE(run.end(1, 143).empty());
  EXPECT_FALSE(run.state.deadline.has_value());
  EXPECT_EQ(find<Finish>(run.end(0, 143))->code, 143);
}

TEST(Supervisor, stops_at_once_between_two_generations) {
  Scenario run(2, 100);
  run.feed(Started{});
  run.crash_at(7);
  run.crash_at(7);
  const auto outputs = run.feed(StopRequested{SIGTERM});
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, 139);
}

TEST(Supervisor, blames_the_workers_that_never_said_hello) {
  Scenario run(2, 0);
  run.feed(Started{});
  run.feed(WorkerSaidHello{0});
  EXPECT_NE(find<KillWorkers>(run.tick_at_deadline()), nullptr);
  run.end(0, 137);
  const auto outputs = run.end(1, 137);
  ASSERT_NE(find<Finish>(outputs), nullptr);
  EXPECT_EQ(find<Finish>(outputs)->code, 11);
  EXPECT_EQ(find<Finish>(outputs)->rank, 1);
  EXPECT_THAT(find<Finish>(outputs)->message, HasSubstr("did not say hello within 300 s"));
}

}  // namespace
}  // namespace lockstep
