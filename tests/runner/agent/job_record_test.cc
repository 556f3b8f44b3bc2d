#include "runner/agent/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "runner/agent/agent_metrics.h"
#include "runner/agent/metrics_text.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;

constexpr int64_t kMillisecond = 1'000'000;

TimePoint at(int64_t milliseconds) { return TimePoint(std::chrono::milliseconds(milliseconds)); }

BeatSnapshot committed(int64_t step, int64_t milliseconds) {
  BeatSnapshot beats;
  beats.step = step;
  beats.committed_ns = milliseconds * kMillisecond;
  return beats;
}

GroupBroke broke(int64_t milliseconds, const std::string& cause = "SignalKILL", uint64_t generation = 1) {
  return {.generation = generation, .cause = cause, .rank = 1, .detection_seconds = 0.008, .at = at(milliseconds)};
}

Resumed resumed(int64_t step, int64_t milliseconds, uint64_t generation = 2) {
  return {.generation = generation,
          .step = step,
          .formed_ns = (milliseconds - 11) * kMillisecond,
          .synced_ns = (milliseconds - 10) * kMillisecond,
          .committed_ns = milliseconds * kMillisecond,
          .resumed_step = step - 1,
          .origin = "from rank 0"};
}

// 10 s of work from 1 s on, a break at 11 s in step 101, all ready at 11.3 s, committed again at 11.4 s.
JobRecord after_one_recovery(std::optional<Recovery>& recovery) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_beats(committed(100, 10'900));
  job.on_broke(broke(11'000), 1'700'000'000);
  job.on_placed({.generation = 2, .world_size = 4, .nnodes = 2, .at = at(11'300)});
  recovery = job.on_resumed(resumed(101, 11'400));
  return job;
}

TEST(JobRecord, knows_whether_a_step_was_committed) {
  JobRecord nothing_to_train(at(0), kHeartbeatTimeout);
  Resumed found_complete = resumed(100, 1'000, 1);
  found_complete.resumed_step = 100;
  nothing_to_train.on_resumed(found_complete);
  EXPECT_FALSE(nothing_to_train.has_committed());
  JobRecord resumes(at(0), kHeartbeatTimeout);
  resumes.on_resumed(resumed(101, 1'000, 1));
  EXPECT_TRUE(resumes.has_committed());
  JobRecord begins(at(0), kHeartbeatTimeout);
  EXPECT_FALSE(begins.has_committed());
  begins.on_beats(committed(1, 1'000));
  EXPECT_TRUE(begins.has_committed());
}

TEST(JobRecord, measures_a_recovery_in_parts) {
  std::optional<Recovery> recovery;
  const JobRecord job = after_one_recovery(recovery);
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->cause, "SignalKILL");
  EXPECT_EQ(recovery->rank, 1);
  EXPECT_NEAR(recovery->detection_seconds, 0.008, 1e-9);
  EXPECT_NEAR(recovery->respawn_seconds, 0.3, 1e-9);
  EXPECT_NEAR(recovery->forming_seconds, 0.089, 1e-9);
  EXPECT_NEAR(recovery->sync_seconds, 0.001, 1e-9);
  EXPECT_NEAR(recovery->total_seconds, 0.408, 1e-9);
  EXPECT_EQ(recovery->redone_steps, 1);
  EXPECT_NEAR(recovery->lost_seconds, 0.092, 1e-9) << "from the last commit to the last sign of life";
  EXPECT_EQ(recovery->world_size, 4);
  EXPECT_EQ(describe(*recovery),
            "going on at step 101 with 4 ranks after 0.41 s (detected in 8 ms, all ready in 0.30 s, formed in 89 ms, "
            "state from rank 0; 1 step redone)");
  EXPECT_FALSE(job.is_recovering());
  EXPECT_EQ(job.recoveries_total(), 1);
}

TEST(JobRecord, says_why_a_group_broke_in_which_no_worker_ended) {
  Recovery recovery{.cause = "PeerLost", .total_seconds = 0.4, .step = 7, .world_size = 3};
  recovery.message = "Connection timed out";
  EXPECT_EQ(describe(recovery), "going on at step 7 with 3 ranks after 0.40 s (Connection timed out; 0 steps redone)");
  recovery.rank = 2;
  EXPECT_EQ(describe(recovery).find("timed out"), std::string::npos) << "the line about its end has said it";
}

TEST(JobRecord, counts_the_first_group_as_no_recovery) {
  JobRecord job(at(0), kHeartbeatTimeout);
  EXPECT_FALSE(job.on_resumed(resumed(1, 1'000)));
  EXPECT_EQ(job.recoveries_total(), 0);
}

TEST(JobRecord, takes_a_second_break_before_the_next_commit_as_part_of_the_first) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_broke(broke(2'000), 1);
  job.on_placed({.generation = 2, .world_size = 2, .nnodes = 1, .at = at(2'100)});
  job.on_broke(broke(2'200, "PeerLost", 2), 2);
  job.on_placed({.generation = 3, .world_size = 2, .nnodes = 1, .at = at(2'500)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(2, 3'000, 3));
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->cause, "SignalKILL");
  EXPECT_NEAR(recovery->respawn_seconds, 0.5, 1e-9);
  EXPECT_NEAR(recovery->total_seconds, 1.008, 1e-9);
  EXPECT_EQ(job.recoveries_total(), 1);
  // What was waited for, one after the other.
  EXPECT_THAT(job.goodput_line(at(3'000)), HasSubstr("waiting 2.0 s (PeerLost 0.8, SignalKILL 0.2, startup 1.0)"));
}

TEST(JobRecord, takes_no_late_commit_of_the_broken_group_for_a_recovery) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_broke(broke(1'100), 1);
  EXPECT_FALSE(job.on_resumed(resumed(1, 1'000, 1)));
  EXPECT_TRUE(job.is_recovering());
  EXPECT_TRUE(job.on_resumed(resumed(2, 2'000)));
}

TEST(JobRecord, sees_a_break_that_is_told_before_the_first_commit_of_its_group) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_broke(broke(2'000), 1);
  job.on_broke(broke(3'000, "SignalSEGV", 2), 2);
  EXPECT_EQ(job.on_resumed(resumed(2, 2'990))->cause, "SignalKILL");  // of generation 2
  EXPECT_TRUE(job.is_recovering());
  EXPECT_EQ(job.on_resumed(resumed(3, 4'000, 3))->cause, "SignalSEGV");
  EXPECT_EQ(job.recoveries_total(), 2);
}

TEST(JobRecord, learns_the_cause_after_a_lost_peer_was_reported_first) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_broke(broke(2'000, "PeerLost"), 1);
  job.on_broke(broke(2'050, "SignalSEGV"), 1);
  job.on_placed({.generation = 2, .world_size = 2, .nnodes = 1, .at = at(2'100)});
  EXPECT_EQ(job.on_resumed(resumed(2, 3'000))->cause, "SignalSEGV");
  // All of its time counts under the cause that is known now: 0.992 s of the step in flight and 1.008 s until the next
  // commit.
  EXPECT_EQ(
      job.goodput_line(at(4'000)),
      "  goodput   25.0 % of 4.0 s: work 1.0 s, waiting 2.0 s (SignalSEGV 1.0, startup 1.0), redone 1.0 s (1 step)");
  for (const GoodputPart& part : job.goodput(at(4'000)).parts) EXPECT_NE(part.cause, "PeerLost");
}

TEST(JobRecord, learns_who_was_lost_and_when_after_a_lost_peer_was_reported_first) {
  for (const double said : {0.25, std::nan("")}) {
    JobRecord job(at(0), kHeartbeatTimeout);
    job.on_beats(committed(1, 1'000));
    GroupBroke nobody_s = broke(2'000, "PeerLost");
    nobody_s.rank = -1;
    nobody_s.detection_seconds = -1.0;
    job.on_broke(nobody_s, 1);
    job.on_broke({.generation = 1, .cause = "SignalSEGV", .rank = 3, .detection_seconds = said, .at = at(2'050)}, 1);
    job.on_placed({.generation = 2, .world_size = 2, .nnodes = 1, .at = at(2'100)});
    const std::optional<Recovery> recovery = job.on_resumed(resumed(2, 3'000));
    EXPECT_EQ(recovery->rank, 3);
    EXPECT_EQ(recovery->detection_seconds, std::isnan(said) ? -1.0 : said);
  }
  JobRecord knows(at(0), kHeartbeatTimeout);
  knows.on_beats(committed(1, 1'000));
  const GroupBroke known = broke(2'000, "SignalKILL");
  knows.on_broke(known, 1);
  knows.on_broke({.generation = 1, .cause = "SignalKILL", .rank = known.rank + 1, .detection_seconds = 9.0}, 1);
  EXPECT_EQ(knows.on_resumed(resumed(2, 3'000))->rank, known.rank);
}

TEST(JobRecord, keeps_the_newest_recoveries) {
  JobRecord job(at(0), kHeartbeatTimeout);
  for (int64_t i = 1; i <= 12; ++i) {
    GroupBroke next = broke(i * 1'000);
    next.generation = static_cast<uint64_t>(i);
    job.on_broke(next, i);
    Resumed then = resumed(i, i * 1'000 + 500);
    then.generation = next.generation + 1;
    job.on_resumed(then);
  }
  EXPECT_EQ(job.recoveries_total(), 12);
  ASSERT_EQ(job.recent().size(), kRecentRecoveriesMax);
  EXPECT_EQ(job.recent().back().time_unix_seconds, 12);
}

TEST(JobRecord, says_where_the_time_went) {
  std::optional<Recovery> recovery;
  const JobRecord job = after_one_recovery(recovery);
  EXPECT_EQ(job.goodput_line(at(21'400)),
            "  goodput   93.0 % of 21.4 s: work 19.9 s, waiting 1.4 s (SignalKILL 0.4, startup 1.0), redone 0.1 s (1 "
            "step)");
  double sum = 0;
  for (const GoodputPart& part : job.goodput(at(21'400)).parts) sum += part.seconds;
  EXPECT_NEAR(sum, 21.4, 1e-9);
}

TEST(JobRecord, counts_the_silence_before_a_break_as_waiting) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  GroupBroke silent = broke(7'000, "NodeLost");
  silent.detection_seconds = 5.0;
  job.on_broke(silent, 1);
  job.on_resumed(resumed(2, 8'000));
  const std::string line = job.goodput_line(at(9'000));
  EXPECT_THAT(line, HasSubstr("(NodeLost 6.0, startup 1.0)"));
  EXPECT_THAT(line, HasSubstr("redone 1.0 s (1 step)"));
}

// A node tells it at `told`: at `milliseconds` its group of `generation` broke, which had committed `step` at -450 ms.
void tell_before(JobRecord& job, int64_t told, int64_t milliseconds, uint64_t generation, int64_t step,
                 bool step_in_flight = true, double silent_seconds = -1.0) {
  const auto ago = [told](int64_t then) { return static_cast<double>(told - then) / 1'000; };
  job.on_broken_before({.seconds = ago(milliseconds),
                        .silent_seconds = silent_seconds,
                        .committed_seconds = ago(-450),
                        .generation = generation,
                        .step = step,
                        .step_in_flight = step_in_flight},
                       at(told), 1'700'000'000);
}

// An agent that takes a lost node 0's place at 0 s.
TEST(JobRecord, measures_the_recovery_that_made_its_agent_necessary) {
  JobRecord job(at(0), kHeartbeatTimeout);
  tell_before(job, 100, -200'000, 5, 90);  // a node that was not in the newest group
  tell_before(job, 200, -300, 7, 119);
  tell_before(job, 210, -400, 7, 120, false);
  tell_before(job, 220, -200, 7, 120, false);
  tell_before(job, 230, -300'000, 6, 90);
  EXPECT_TRUE(job.is_recovering());
  job.on_placed({.generation = 9, .world_size = 4, .nnodes = 2, .at = at(500)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(121, 600, 9));
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->cause, "NodeLost");
  EXPECT_EQ(recovery->step, 121);
  EXPECT_EQ(recovery->redone_steps, 1);
  EXPECT_EQ(recovery->broken_ns, -400 * kMillisecond);
  EXPECT_NEAR(recovery->lost_seconds, 0.05, 1e-9);
  EXPECT_EQ(recovery->time_unix_seconds, 1'699'999'999);
  EXPECT_NEAR(recovery->respawn_seconds, 0.9, 1e-9);
  EXPECT_NEAR(recovery->total_seconds, 1.0, 1e-9);
  EXPECT_EQ(recovery->world_size, 4);
  EXPECT_EQ(job.recoveries_total(), 1);
  EXPECT_THAT(job.goodput_line(at(1'600)), HasSubstr("waiting 0.6 s (NodeLost 0.5, startup 0.1)"));
  tell_before(job, 1'700, -400, 9, 120);
  EXPECT_FALSE(job.is_recovering()) << "the job has gone on";
}

TEST(JobRecord, tells_a_node_0_that_left_as_told_from_one_that_was_lost) {
  JobRecord job(at(0), kHeartbeatTimeout);
  tell_before(job, 100, -300, 7, 120, false);
  job.on_placed({.generation = 9, .world_size = 4, .nnodes = 2, .at = at(500)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(121, 600, 9));
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->cause, "Leave");
  EXPECT_EQ(recovery->redone_steps, 0);
  EXPECT_EQ(recovery->lost_seconds, 0.0);
}

TEST(JobRecord, counts_no_redone_step_where_the_ranks_have_gone_on_within_it) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_beats(committed(100, 10'900));
  job.on_broke(broke(11'000), 1);
  job.on_placed({.generation = 2, .world_size = 3, .nnodes = 1, .at = at(11'200)});
  Resumed within = resumed(101, 11'400);
  within.redone_steps = 0;
  const std::optional<Recovery> recovery = job.on_resumed(within);
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->redone_steps, 0);
  EXPECT_EQ(recovery->lost_seconds, 0.0);
  EXPECT_EQ(job.redone_steps(), 0);
  EXPECT_THAT(job.goodput_line(at(12'000)), HasSubstr("waiting 1.4 s (SignalKILL 0.4, startup 1.0), 0 steps redone"));
}

// Steps 1 to 100 took 0.1 s each; the group goes on from a checkpoint of step 80.
TEST(JobRecord, says_how_much_work_a_return_to_a_checkpoint_has_lost) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_beats(committed(100, 10'900));
  job.on_broke(broke(11'000), 1'700'000'000);
  job.on_placed({.generation = 2, .world_size = 4, .nnodes = 2, .at = at(11'300)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(81, 11'400));
  ASSERT_TRUE(recovery);
  EXPECT_NEAR(recovery->lost_seconds, 20 * 0.1 + 0.092, 1e-9);

  JobRecord successor(at(0), kHeartbeatTimeout);
  tell_before(successor, 100, -300, 7, 120);
  successor.on_placed({.generation = 9, .world_size = 4, .nnodes = 2, .at = at(500)});
  const std::optional<Recovery> unknown = successor.on_resumed(resumed(81, 600, 9));
  ASSERT_TRUE(unknown);
  EXPECT_LT(unknown->lost_seconds, 0.0) << "nobody has told how long its steps took";
}

// As known when the first of them has been committed again.
TEST(JobRecord, counts_all_steps_that_a_group_has_to_redo) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(35, 5'000));
  job.on_broke(broke(5'100), 1'700'000'000);
  const std::optional<Recovery> from_the_seed = job.on_resumed(resumed(1, 6'000));
  ASSERT_TRUE(from_the_seed);
  EXPECT_EQ(from_the_seed->redone_steps, 36);
}

TEST(JobRecord, counts_no_step_that_an_evaluation_interrupted) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(100, 10'000));
  BeatSnapshot evaluates = committed(100, 10'000);
  evaluates.activity = Activity::kEvaluating;
  job.on_beats(evaluates);
  evaluates.activity = Activity::kAwaiting;  // it has left the group
  job.on_beats(evaluates);
  job.on_broke(broke(12'000), 1'700'000'000);
  const std::optional<Recovery> recovery = job.on_resumed(resumed(101, 13'000));
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->redone_steps, 0);
  EXPECT_NEAR(recovery->lost_seconds, 1.992, 1e-9) << "the evaluation is made again";
  EXPECT_EQ(job.redone_steps(), 0);

  BeatSnapshot trains = committed(101, 13'000);
  trains.activity = Activity::kTraining;
  job.on_beats(trains);
  job.on_broke(broke(13'500, "SignalKILL", 2), 1'700'000'000);
  EXPECT_EQ(job.on_resumed(resumed(102, 14'000, 3))->redone_steps, 1);
}

TEST(JobRecord, counts_the_silence_of_a_lost_node_0_as_detection) {
  JobRecord job(at(0), kHeartbeatTimeout);
  tell_before(job, 100, -300, 7, 120, true, 5.0);
  tell_before(job, 100, -200, 7, 120);
  job.on_placed({.generation = 9, .world_size = 4, .nnodes = 2, .at = at(500)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(121, 600, 9));
  ASSERT_TRUE(recovery);
  EXPECT_DOUBLE_EQ(recovery->detection_seconds, 5.0);
  EXPECT_NEAR(recovery->total_seconds, 5.9, 1e-9);
}

// The last step was done when the group broke.
TEST(JobRecord, ends_a_recovery_with_the_state_when_nothing_is_left_to_train) {
  JobRecord job(at(0), kHeartbeatTimeout);
  tell_before(job, 100, -300, 7, 120);
  job.on_placed({.generation = 9, .world_size = 4, .nnodes = 2, .at = at(500)});
  Resumed last = resumed(121, 600, 9);
  last.committed_ns = 0;
  const std::optional<Recovery> recovery = job.on_resumed(last);
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->committed_ns, last.synced_ns);
  EXPECT_NEAR(recovery->total_seconds, 0.3 + 0.59, 1e-9);
}

TEST(JobRecord, counts_the_first_group_after_a_lost_node_0_that_breaks_as_part_of_its_recovery) {
  JobRecord job(at(0), kHeartbeatTimeout);
  tell_before(job, 0, -400, 1, 120);
  job.on_placed({.generation = 2, .world_size = 4, .nnodes = 2, .at = at(500)});
  job.on_broke(broke(1'000, "SignalKILL", 2), 1'700'000'001);
  job.on_placed({.generation = 3, .world_size = 4, .nnodes = 2, .at = at(1'500)});
  const std::optional<Recovery> recovery = job.on_resumed(resumed(121, 1'600, 3));
  ASSERT_TRUE(recovery);
  EXPECT_EQ(recovery->cause, "NodeLost");
  EXPECT_NEAR(recovery->total_seconds, 2.0, 1e-9);
  EXPECT_THAT(job.goodput_line(at(1'600)), HasSubstr("(NodeLost 1.0, SignalKILL 0.6)"));
}

TEST(JobRecord, ignores_impossible_times) {
  for (const double seconds :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    JobRecord job(at(0), kHeartbeatTimeout);
    job.on_beats(committed(1, 1'000));
    GroupBroke group_break = broke(11'000);
    group_break.detection_seconds = seconds;
    job.on_broke(group_break, 1'700'000'000);
    job.on_placed({.generation = 2, .world_size = 4, .nnodes = 2, .at = at(11'300)});
    const std::optional<Recovery> recovery = job.on_resumed(resumed(2, 11'400));
    ASSERT_TRUE(recovery);
    EXPECT_EQ(recovery->detection_seconds, -1.0);
    EXPECT_NEAR(recovery->total_seconds, 0.4, 1e-9);
  }
}

TEST(JobRecord, ignores_an_earlier_break_at_an_impossible_time) {
  for (const double seconds : {-1.0, 1e300, std::nan("")}) {
    JobRecord job(at(0), kHeartbeatTimeout);
    job.on_broken_before({.seconds = seconds, .committed_seconds = 1.0, .generation = 5, .step = 120}, at(100), 1);
    job.on_broken_before({.seconds = 1.0, .committed_seconds = seconds, .generation = 5, .step = 120}, at(100), 1);
    EXPECT_FALSE(job.is_recovering()) << seconds;
  }
}

TEST(JobRecord, has_counters_that_never_fall) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  const auto work_at = [&job](int64_t milliseconds) {
    for (const GoodputPart& part : job.goodput_counters(at(milliseconds))) {
      if (part.kind == "work") return part.seconds;
    }
    return 0.0;
  };
  EXPECT_NEAR(work_at(5'000), 4.0, 1e-9);
  BeatSnapshot waited = committed(2, 5'000);
  waited.phase_ns[static_cast<size_t>(Phase::kDataWait)] = 3'000 * kMillisecond;
  job.on_beats(waited);
  EXPECT_NEAR(work_at(5'100), 4.0, 1e-9);
  EXPECT_NEAR(work_at(9'000), 5.0, 1e-9);
}

TEST(JobRecord, counts_a_lost_peer_once_the_cause_is_known) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  const auto counted_at = [&job](int64_t milliseconds) {
    std::map<std::string, double> by_cause;
    for (const GoodputPart& part : job.goodput_counters(at(milliseconds))) by_cause[part.cause] += part.seconds;
    return by_cause;
  };
  const auto sum = [](const std::map<std::string, double>& by_cause) {
    double seconds = 0;
    for (const auto& [cause, part] : by_cause) seconds += part;
    return seconds;
  };
  job.on_broke(broke(2'000, "PeerLost"), 1);
  EXPECT_THAT(counted_at(2'100), Not(Contains(Key("PeerLost"))));
  job.on_broke(broke(2'150, "SignalSEGV"), 1);
  job.on_placed({.generation = 2, .world_size = 2, .nnodes = 1, .at = at(2'200)});
  job.on_resumed(resumed(2, 3'000));
  EXPECT_THAT(counted_at(3'000), Not(Contains(Key("PeerLost"))));
  job.on_beats(committed(3, 4'000));
  EXPECT_NEAR(sum(counted_at(4'000)), 4.0, 1e-9);
  // The coordinator learns the cause at once; the new worker takes long.
  job.on_broke(broke(4'500, "PeerLost", 2), 2);
  EXPECT_THAT(counted_at(4'600), Not(Contains(Key("PeerLost"))));
  job.on_broke(broke(4'650, "SignalKILL", 2), 2);
  EXPECT_NEAR(counted_at(24'000)["SignalKILL"], 20.0, 1.0);
  job.on_placed({.generation = 3, .world_size = 2, .nnodes = 1, .at = at(24'500)});
  job.on_resumed(resumed(4, 25'000, 3));
  job.on_beats(committed(5, 26'000));
  EXPECT_NEAR(sum(counted_at(26'000)), 26.0, 1e-9);
  // No other cause is ever reported: the break counts as a lost peer.
  job.on_broke(broke(27'000, "PeerLost", 3), 2);
  EXPECT_THAT(counted_at(33'900), Not(Contains(Key("PeerLost"))));
  EXPECT_NEAR(sum(counted_at(34'100)), 34.1, 1e-9);
  job.on_broke(broke(27'000, "TimedOut", 3), 2);  // too late: its time has been counted
  EXPECT_NEAR(sum(counted_at(34'150)), 34.15, 1e-9);
  // … and the next break is added to it once its cause is known.
  job.on_placed({.generation = 4, .world_size = 2, .nnodes = 1, .at = at(34'200)});
  job.on_resumed(resumed(6, 34'500, 4));
  const double before = counted_at(35'000)["PeerLost"];
  EXPECT_GT(before, 7.0);
  job.on_broke(broke(36'000, "PeerLost", 4), 3);
  EXPECT_DOUBLE_EQ(counted_at(36'500)["PeerLost"], before);
}

// The last commit of the old group may arrive after the report of the break.
TEST(JobRecord, knows_that_nothing_was_committed_between_two_breaks) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(committed(1, 1'000));
  job.on_broke(broke(2'000), 1);
  job.on_beats(committed(2, 2'020));
  job.on_placed({.generation = 2, .world_size = 2, .nnodes = 1, .at = at(2'100)});
  job.on_broke(broke(2'200, "NodeLost", 2), 2);
  job.on_placed({.generation = 3, .world_size = 2, .nnodes = 1, .at = at(9'500)});
  job.on_resumed(resumed(3, 10'000, 3));
  EXPECT_THAT(job.goodput_line(at(10'000)), HasSubstr("(NodeLost 7.8, SignalKILL 0.2, startup 1.0)"));
}

// ---- where the time went ----

using Goodput = std::map<std::string, double>;

// Seconds by "kind cause"; they add up to the time since the start.
Goodput seconds_of(const JobRecord& job, int64_t milliseconds) {
  Goodput seconds;
  double sum = 0.0;
  for (const GoodputPart& part : job.goodput(at(milliseconds)).parts) {
    EXPECT_GT(part.seconds, 0.0);
    seconds[part.kind + (part.cause.empty() ? "" : " " + part.cause)] = part.seconds;
    sum += part.seconds;
  }
  EXPECT_NEAR(sum, static_cast<double>(milliseconds) / 1'000, 1e-6);
  return seconds;
}

GroupBroke at_once(int64_t milliseconds, const std::string& cause, uint64_t generation, bool step_in_flight = true) {
  return {.generation = generation, .cause = cause, .step_in_flight = step_in_flight, .at = at(milliseconds)};
}

// Goes on from `from`; the next step is committed 1 s after that.
Resumed goes_on(int64_t from, int64_t milliseconds, uint64_t generation) {
  return {.generation = generation,
          .step = from + 1,
          .synced_ns = milliseconds * kMillisecond,
          .committed_ns = (milliseconds + 1'000) * kMillisecond,
          .resumed_step = from};
}

// Start-up of 5 s, then ten steps of 1 s each: until second 14.
JobRecord of_ten_steps() {
  JobRecord job(at(0), kHeartbeatTimeout);
  for (int64_t step = 1; step <= 10; ++step) job.on_beats(committed(step, 4'000 + 1'000 * step));
  return job;
}

TEST(JobRecord, is_starting_until_the_first_commit_whatever_breaks) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_broke(at_once(2'000, "SignalKILL", 1), 1);
  EXPECT_EQ(seconds_of(job, 3'000), (Goodput{{"waiting startup", 3}}));
  job.on_resumed(goes_on(50, 4'000, 2));  // from a checkpoint
  EXPECT_EQ(seconds_of(job, 8'000), (Goodput{{"waiting startup", 5}, {"work", 3}}));
  EXPECT_EQ(job.redone_steps(), 0);
  EXPECT_DOUBLE_EQ(job.goodput(at(8'000)).ratio, 3.0 / 8);
}

TEST(JobRecord, loses_nothing_when_all_have_left_together_at_the_end_of_a_step) {
  JobRecord job = of_ten_steps();
  job.on_broke(at_once(14'250, "Join", 1, /*step_in_flight=*/false), 1);
  job.on_resumed(goes_on(10, 14'500, 2));
  EXPECT_EQ(seconds_of(job, 16'000), (Goodput{{"waiting startup", 5}, {"waiting Join", 1.25}, {"work", 9.75}}));
  EXPECT_EQ(job.redone_steps(), 0);
}

TEST(JobRecord, redoes_what_was_committed_after_the_checkpoint) {
  JobRecord job = of_ten_steps();
  job.on_broke(at_once(14'500, "NodeLost", 1), 1);
  EXPECT_EQ(job.on_resumed(goes_on(4, 20'000, 2))->redone_steps, 7) << "and the one in flight";
  job.on_beats(committed(8, 24'000));
  EXPECT_EQ(seconds_of(job, 24'500),
            (Goodput{{"waiting startup", 5}, {"waiting NodeLost", 5.5}, {"redone NodeLost", 5}, {"work", 9}}));
  job.on_beats(committed(10, 26'000));
  job.on_beats(committed(11, 27'000));
  EXPECT_EQ(seconds_of(job, 28'000),
            (Goodput{{"waiting startup", 5}, {"waiting NodeLost", 5.5}, {"redone NodeLost", 6.5}, {"work", 11}}));
}

TEST(JobRecord, charges_a_break_while_it_redoes_steps_to_its_own_cause) {
  JobRecord job = of_ten_steps();
  job.on_broke(at_once(14'000, "NodeLost", 1, false), 1);
  job.on_resumed(goes_on(4, 15'000, 2));
  job.on_beats(committed(6, 17'000));
  job.on_broke(at_once(17'500, "SignalSEGV", 2), 2);
  job.on_resumed(goes_on(6, 19'000, 3));
  job.on_beats(committed(10, 23'000));
  EXPECT_EQ(seconds_of(job, 23'000), (Goodput{{"waiting startup", 5},
                                              {"waiting NodeLost", 1},
                                              {"redone NodeLost", 2},
                                              {"waiting SignalSEGV", 1.5},
                                              {"redone SignalSEGV", 4.5},
                                              {"work", 9}}));
  EXPECT_EQ(job.redone_steps(), 6 + 1);
}

TEST(JobRecord, counts_the_step_once_that_a_lost_rank_alone_had_committed) {
  JobRecord job = of_ten_steps();
  job.on_broke(at_once(14'100, "SignalKILL", 1), 1);
  EXPECT_EQ(job.on_resumed(goes_on(9, 15'000, 2))->redone_steps, 1);
  job.on_broke(at_once(16'000, "Join", 2, false), 2);
  EXPECT_EQ(job.on_resumed(goes_on(9, 17'000, 3))->redone_steps, 1) << "nothing was in flight";
  EXPECT_EQ(job.redone_steps(), 2);
}

BeatSnapshot waited_for_data(int64_t step, int64_t committed_ms, int64_t waited_ms) {
  BeatSnapshot beats = committed(step, committed_ms);
  beats.phase_ns[static_cast<size_t>(Phase::kDataWait)] = waited_ms * kMillisecond;
  return beats;
}

TEST(JobRecord, moves_rank_0_s_waits_inside_of_work) {
  JobRecord job(at(0), kHeartbeatTimeout);
  job.on_beats(waited_for_data(1, 5'000, 1'000));  // for the first batch, during the start-up
  BeatSnapshot stalled = waited_for_data(2, 9'000, 3'000);
  stalled.phase_ns[static_cast<size_t>(Phase::kCheckpointStall)] = 500 * kMillisecond;
  job.on_beats(stalled);
  EXPECT_EQ(seconds_of(job, 10'000),
            (Goodput{{"waiting startup", 5}, {"waiting data", 2}, {"waiting checkpoint", 0.5}, {"work", 2.5}}));
  // The step that it waits in now is lost: its time is redone, and not counted twice.
  job.on_beats(waited_for_data(2, 9'000, 4'000));
  job.on_broke(at_once(11'500, "SignalKILL", 1), 1);
  job.on_beats(waited_for_data(0, 0, 600));  // a new process, which waits for its first batch
  job.on_resumed(goes_on(2, 12'000, 2));
  job.on_beats(waited_for_data(4, 14'000, 700));
  const Goodput seconds = seconds_of(job, 14'000);
  EXPECT_DOUBLE_EQ(seconds.at("waiting data"), 3.1);
  EXPECT_DOUBLE_EQ(seconds.at("redone SignalKILL"), 1.5);
}

TEST(JobRecord, adds_up_to_the_wall_clock_whatever_happens) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t below) { return std::uniform_int_distribution<int64_t>(0, below - 1)(random); };
    JobRecord job(at(0), kHeartbeatTimeout);
    int64_t now = 0;
    int64_t step = 0;
    int64_t waited = 0;
    int64_t seen = 0;  // the time of the newest event that was reported
    uint64_t generation = 1;
    for (int i = 0; i < 300; ++i) {
      now += pick(2'000);
      const int64_t when = std::max<int64_t>(0, now - pick(500));
      if (pick(20) == 0) {
        tell_before(job, now, now - pick(9'000), generation, step, pick(2) == 0);
        seen = now;
      }
      switch (pick(6)) {
        case 0:
          job.on_broke(at_once(when, pick(2) == 0 ? "a" : "b", generation, pick(2) == 0), 1);
          generation += static_cast<uint64_t>(pick(2));
          break;
        case 1:
          step = std::max<int64_t>(0, step - pick(30));
          job.on_resumed(goes_on(step, when - 1'000, generation));
          break;
        default:
          step += pick(10);
          waited += pick(std::max<int64_t>(0, when - seen) + 1) / 2;
          job.on_beats(waited_for_data(step, when, waited));
      }
      seen = std::max(seen, when);
      if (now > 0) seconds_of(job, now);
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ", event " << i;
    }
  }
}

TEST(AgentMetrics, speak_of_the_job_on_node_0_alone) {
  std::optional<Recovery> recovery;
  JobRecord job = after_one_recovery(recovery);
  RunStatus status;
  status.generation = (uint64_t{1'700'000'000} << 32U) | 2;
  status.nnodes = 2;
  status.world_size = 4;
  status.workers = {WorkerStatus{.rank = 3, .seconds_unchanged = 1.5},
                    WorkerStatus{.rank = 2, .activity = Activity::kAwaiting, .seconds_unchanged = 300.0}};
  status.slowest = SlowestStatus{.rank = 3, .lag_seconds = 0.25};
  AgentFigures figures{.status = status,
                       .workers_alive = 2,
                       .restarts = {{{"process", "SignalKILL"}, 1}},
                       .gave_up = {{{"pod", "Crash"}, 2}}};
  const std::vector<MetricFamily> alone = agent_metrics(figures);
  EXPECT_EQ(alone.size(), 3U);
  figures.job = &job;
  figures.goodput_counters = job.goodput_counters(at(20'000));
  const std::vector<MetricFamily> families = agent_metrics(figures);
  const std::string text = metrics_text({&families});
  for (const char* line :
       {"lockstep_restarts_total{reason=\"SignalKILL\",rung=\"process\"} 1\n",
        "lockstep_gave_up_total{reason=\"Crash\",rung=\"pod\"} 2\n", "lockstep_generation 2\n", "lockstep_nodes 2\n",
        "lockstep_world_size 4\n", "lockstep_recoveries_total{cause=\"SignalKILL\"} 1\n",
        "lockstep_redone_steps_total 1\n", "lockstep_slowest_rank 3\n", "lockstep_straggler_lag_seconds 0.25\n",
        "lockstep_rank_unchanged_seconds{rank=\"3\"} 1.5\n",
        "lockstep_recovery_duration_seconds_bucket{part=\"detect\",le=\"0.01\"} 1\n",
        "lockstep_recovery_duration_seconds_bucket{part=\"total\",le=\"0.25\"} 0\n",
        "lockstep_recovery_duration_seconds_bucket{part=\"total\",le=\"+Inf\"} 1\n",
        "lockstep_goodput_seconds_total{cause=\"startup\",kind=\"waiting\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("lockstep_rank_unchanged_seconds{rank=\"2\"}"))) << "it waits for a group";
}

TEST(ShortTime, has_the_digits_that_matter) {
  EXPECT_EQ(short_time(0.0084), "8 ms");
  EXPECT_EQ(short_time(0.43), "0.43 s");
  EXPECT_EQ(short_time(65.31), "65.3 s");
}

}  // namespace
}  // namespace lockstep
