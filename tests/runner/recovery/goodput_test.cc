#include "runner/recovery/goodput.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

const Goodput::Key kWorkKey{GoodputKind::kWork, ""};

Goodput::Key waiting(const std::string& cause) { return {GoodputKind::kWaiting, cause}; }
Goodput::Key redone(const std::string& cause) { return {GoodputKind::kRedone, cause}; }

// A job that began at second 0; times are in seconds after that.
class Job {
 public:
  static TimePoint at(double seconds) {
    return TimePoint(1000s) + std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  }

  double seconds(const Goodput::Key& key, double now) {
    const auto all = goodput.seconds(at(now));
    double sum = 0.0;
    for (const auto& [any, time] : all) sum += time;
    EXPECT_NEAR(sum, now, 1e-6);
    const auto found = all.find(key);
    return found == all.end() ? 0.0 : found->second;
  }
  // Starts in 5 s, then commits steps 1 … n, one per second: the last one at second 4 + n.
  void work(int64_t steps) {
    for (int64_t step = 1; step <= steps; ++step) goodput.on_commit(step, at(4.0 + static_cast<double>(step)));
  }

  Goodput goodput{at(0)};
};

TEST(Goodput, is_startup_until_the_first_commit) {
  Job job;
  EXPECT_DOUBLE_EQ(job.seconds(waiting("startup"), 3), 3);
  job.goodput.on_resume(0, Job::at(3));
  job.goodput.on_break("SignalKILL", Job::at(3.5));
  job.goodput.on_commit(1, Job::at(5));
  EXPECT_DOUBLE_EQ(job.seconds(waiting("startup"), 8), 5);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 8), 3);
  EXPECT_EQ(job.goodput.redone_steps(), 0);
}

TEST(Goodput, stays_startup_whatever_older_state_is_resumed_and_while_the_page_is_empty) {
  Job job;
  job.goodput.on_resume(100, Job::at(1));
  EXPECT_EQ(job.goodput.furthest_step(), 100) << "an earlier start has committed it";
  job.goodput.on_break("SignalKILL", Job::at(2));
  job.goodput.on_resume(50, Job::at(3));
  job.goodput.on_commit(0, Job::at(4));
  EXPECT_DOUBLE_EQ(job.seconds(waiting("startup"), 5), 5);
  EXPECT_DOUBLE_EQ(job.seconds(redone("startup"), 5), 0);
}

TEST(Goodput, waits_for_a_group_that_broke_before_from_when_that_is_told) {
  Job job;
  job.goodput.on_earlier_break("NodeLost", 120, /*step_in_flight=*/false, Job::at(1));
  EXPECT_EQ(job.goodput.redone_steps(), 0);
  job.goodput.on_earlier_break("NodeLost", 119, /*step_in_flight=*/true, Job::at(1.5));  // by another node
  EXPECT_EQ(job.goodput.furthest_step(), 120);
  EXPECT_EQ(job.goodput.redone_steps(), 1);
  job.goodput.on_resume(120, Job::at(2));
  job.goodput.on_commit(121, Job::at(3));
  EXPECT_DOUBLE_EQ(job.seconds(waiting("startup"), 5), 1);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("NodeLost"), 5), 2);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 5), 2);
  EXPECT_EQ(job.goodput.redone_steps(), 1);
}

TEST(Goodput, ignores_an_earlier_group_once_a_later_one_has_committed) {
  Job job;
  job.goodput.on_resume(100, Job::at(1));
  job.goodput.on_earlier_break("NodeLost", 500, true, Job::at(2));
  job.goodput.on_commit(101, Job::at(3));
  job.goodput.on_break("SignalKILL", Job::at(4), Goodput::Interrupted::kNothing);
  job.goodput.on_earlier_break("NodeLost", 500, true, Job::at(5));
  EXPECT_DOUBLE_EQ(job.seconds(waiting("NodeLost"), 6), 0);
  EXPECT_EQ(job.goodput.furthest_step(), 101);
  EXPECT_EQ(job.goodput.redone_steps(), 0);

  Job after;
  after.goodput.on_earlier_break("NodeLost", 120, true, Job::at(1));
  after.goodput.on_commit(121, Job::at(2));  // nobody has reported from which step it went on
  after.goodput.on_earlier_break("NodeLost", 500, false, Job::at(3));
  EXPECT_EQ(after.goodput.furthest_step(), 121);
  EXPECT_EQ(after.goodput.redone_steps(), 1);
}

TEST(Goodput, redoes_what_a_group_before_had_committed) {
  Job job;
  job.goodput.on_earlier_break("NodeLost", 120, /*step_in_flight=*/false, Job::at(1));
  job.goodput.on_resume(100, Job::at(2));
  job.goodput.on_earlier_break("NodeLost", 500, true, Job::at(3));
  job.goodput.on_commit(120, Job::at(22));
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 22), 20);
  EXPECT_EQ(job.goodput.redone_steps(), 20);
}

TEST(Goodput, may_miss_commits_between_two_looks) {
  Job job;
  job.work(10);
  job.goodput.on_commit(10, Job::at(14));
  job.goodput.on_commit(500, Job::at(504));
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 504), 499);
  EXPECT_EQ(job.goodput.furthest_step(), 500);
}

TEST(Goodput, counts_the_step_in_flight_as_redone_and_waits_until_the_first_commit) {
  Job job;
  job.work(10);
  job.goodput.on_break("SignalKILL", Job::at(14.4));
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 15), 0.4);
  job.goodput.on_resume(10, Job::at(15));
  job.goodput.on_commit(11, Job::at(16));
  EXPECT_NEAR(job.seconds(redone("SignalKILL"), 20), 0.4, 1e-9);
  EXPECT_NEAR(job.seconds(waiting("SignalKILL"), 20), 1.6, 1e-9);
  EXPECT_NEAR(job.seconds(kWorkKey, 20), 9 + 4, 1e-9);
  EXPECT_EQ(job.goodput.redone_steps(), 1);
}

TEST(Goodput, books_a_break_under_the_cause_that_is_learnt_later) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("PeerLost", Job::at(14.25));
  job.goodput.on_commit(11, Job::at(15));
  job.goodput.on_commit(12, Job::at(16));
  job.goodput.on_break("PeerLost", Job::at(16.5));
  job.goodput.learn_cause("SignalKILL");
  EXPECT_DOUBLE_EQ(job.seconds(redone("PeerLost"), 17), 0.25);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("PeerLost"), 17), 0.75);
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 17), 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("SignalKILL"), 17), 0.5);
  job.goodput.on_resume(12, Job::at(17));
  job.goodput.on_commit(13, Job::at(18));
  job.goodput.learn_cause("Timeout");  // too late: the group goes on
  EXPECT_DOUBLE_EQ(job.seconds(waiting("SignalKILL"), 20), 1.5);
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 20), 0.5);
}

TEST(Goodput, shows_only_causes_of_breaks) {
  Job job;
  job.work(10);
  job.goodput.on_break("PeerLost", Job::at(14.25));
  job.goodput.learn_cause("SignalKILL");
  EXPECT_FALSE(job.goodput.seconds(Job::at(15)).contains(redone("PeerLost")));
  EXPECT_FALSE(job.goodput.seconds(Job::at(15)).contains(waiting("PeerLost")));
}

TEST(Goodput, leaves_the_step_of_an_earlier_break_with_that_one) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("PeerLost", Job::at(14.5));
  job.goodput.on_commit(11, Job::at(15));
  job.goodput.on_break("NodeLost", Job::at(15.25));
  job.goodput.on_break("PeerLost", Job::at(15.5));  // nothing was in flight
  job.goodput.learn_cause("SignalKILL");
  EXPECT_DOUBLE_EQ(job.seconds(redone("PeerLost"), 16), 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 16), 0.25);
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 16), 0);
}

TEST(Goodput, startup_stays_startup_whatever_is_learnt) {
  Job job;
  job.goodput.on_break("PeerLost", Job::at(3));
  job.goodput.learn_cause("SignalKILL");
  EXPECT_DOUBLE_EQ(job.seconds(waiting("startup"), 5), 5);
}

TEST(Goodput, loses_nothing_when_all_left_together_at_the_end_of_a_step) {
  Job job;
  job.work(10);
  job.goodput.on_break("Join", Job::at(14.25), Goodput::Interrupted::kNothing);
  job.goodput.on_commit(11, Job::at(15));
  EXPECT_DOUBLE_EQ(job.seconds(redone("Join"), 15), 0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("Join"), 15), 1);
  EXPECT_EQ(job.goodput.redone_steps(), 0);
}

TEST(Goodput, counts_the_step_once_that_a_lost_rank_alone_had_committed) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("SignalKILL", Job::at(14.1));
  job.goodput.on_resume(9, Job::at(15));
  job.goodput.on_commit(12, Job::at(18));
  EXPECT_EQ(job.goodput.redone_steps(), 1);
  EXPECT_NEAR(job.seconds(redone("SignalKILL"), 18), 0.1 + 1, 1e-9);
  job.goodput.on_break("Join", Job::at(18), Goodput::Interrupted::kNothing);
  job.goodput.on_resume(11, Job::at(19));
  job.goodput.on_commit(12, Job::at(20));
  EXPECT_EQ(job.goodput.redone_steps(), 2) << "nothing was in flight";
}

TEST(Goodput, counts_such_a_step_once_for_each_break) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("SignalKILL", Job::at(14.1));
  job.goodput.on_resume(9, Job::at(15));
  EXPECT_EQ(job.goodput.redone_steps(), 1) << "it never falls, whatever comes next";
  job.goodput.on_break("NodeLost", Job::at(15.5));
  job.goodput.on_resume(9, Job::at(16));
  EXPECT_EQ(job.goodput.redone_steps(), 2);
  job.goodput.on_commit(10, Job::at(17));
  EXPECT_EQ(job.goodput.redone_steps(), 2);
  job.goodput.on_break("SignalSEGV", Job::at(17.5));
  job.goodput.on_resume(4, Job::at(18));
  job.goodput.on_commit(10, Job::at(24));
  EXPECT_EQ(job.goodput.redone_steps(), 2 + 1 + 6);
}

TEST(Goodput, has_no_step_in_flight_any_more_when_one_was_committed_after_the_break) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("SignalKILL", Job::at(14.1));
  job.goodput.on_commit(11, Job::at(16));
  job.goodput.on_break("Join", Job::at(16), Goodput::Interrupted::kNothing);
  job.goodput.on_resume(10, Job::at(17));
  job.goodput.on_commit(11, Job::at(18));
  EXPECT_EQ(job.goodput.redone_steps(), 1 + 1);
}

TEST(Goodput, counts_such_a_step_of_a_group_before_once_too) {
  Job other;
  other.goodput.on_earlier_break("NodeLost", 120, /*step_in_flight=*/true, Job::at(1));
  other.goodput.on_earlier_break("NodeLost", 120, /*step_in_flight=*/false, Job::at(1));
  EXPECT_EQ(other.goodput.redone_steps(), 1);
  Job job;
  job.goodput.on_earlier_break("NodeLost", 120, /*step_in_flight=*/true, Job::at(1));
  job.goodput.on_resume(119, Job::at(2));
  job.goodput.on_commit(121, Job::at(4));
  EXPECT_EQ(job.goodput.redone_steps(), 1);
}

TEST(Goodput, redoes_what_was_committed_after_the_checkpoint) {
  Job job;
  job.work(10);  // until second 14
  job.goodput.on_break("NodeLost", Job::at(14));
  job.goodput.on_resume(4, Job::at(20));
  job.goodput.on_commit(8, Job::at(24));
  EXPECT_DOUBLE_EQ(job.seconds(waiting("NodeLost"), 24), 6);
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 24.5), 4.5) << "step 9 is being redone";
  job.goodput.on_commit(12, Job::at(28));  // two redone, two new
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 30), 6);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 30), 9 + 2 + 2);
  EXPECT_EQ(job.goodput.redone_steps(), 1 + 6);
  EXPECT_EQ(job.goodput.furthest_step(), 12);
}

TEST(Goodput, ends_redoing_exactly_at_the_furthest_step) {
  Job job;
  job.work(3);
  job.goodput.on_break("NodeLost", Job::at(7));
  job.goodput.on_resume(0, Job::at(8));
  job.goodput.on_commit(3, Job::at(9));
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 12), 1);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 12), 2 + 3);
}

TEST(Goodput, gives_each_break_its_own_cause) {
  Job job;
  job.work(2);  // until second 6
  job.goodput.on_break("SignalKILL", Job::at(6.5));
  job.goodput.on_break("NodeLost", Job::at(8));
  job.goodput.on_commit(3, Job::at(9));
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 9), 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("SignalKILL"), 9), 1.5);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("NodeLost"), 9), 1);
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 9), 0);
}

TEST(Goodput, charges_a_break_while_redoing_to_its_own_cause) {
  Job job;
  job.work(10);
  job.goodput.on_break("NodeLost", Job::at(14));
  job.goodput.on_resume(4, Job::at(15));
  job.goodput.on_commit(6, Job::at(17));
  job.goodput.on_break("SignalSEGV", Job::at(17.5));
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 18), 2);
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalSEGV"), 18), 0.5);
  job.goodput.on_resume(6, Job::at(19));
  job.goodput.on_commit(10, Job::at(23));
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalSEGV"), 23), 4.5);
  EXPECT_EQ(job.goodput.redone_steps(), 1 + 2 + 1 + 4);
}

TEST(Goodput, takes_a_commit_from_before_the_break_as_late_news) {
  Job job;
  job.work(2);
  job.goodput.on_break("SignalKILL", Job::at(8));
  job.goodput.on_commit(3, Job::at(7));
  EXPECT_EQ(job.goodput.furthest_step(), 3);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("SignalKILL"), 9), 1) << "still broken";

  Job together;
  together.work(2);
  together.goodput.on_break("Join", Job::at(8), Goodput::Interrupted::kNothing);
  together.goodput.on_commit(3, Job::at(7));
  EXPECT_DOUBLE_EQ(together.seconds(kWorkKey, 9), 2);
  EXPECT_DOUBLE_EQ(together.seconds(waiting("Join"), 9), 2);

  Job at_the_break;
  at_the_break.work(2);
  at_the_break.goodput.on_break("Join", Job::at(8), Goodput::Interrupted::kNothing);
  at_the_break.goodput.on_commit(3, Job::at(8));
  EXPECT_DOUBLE_EQ(at_the_break.seconds(kWorkKey, 9), 3);
  EXPECT_DOUBLE_EQ(at_the_break.seconds(waiting("Join"), 9), 1);
}

TEST(Goodput, ignores_a_resume_that_comes_after_its_first_commit) {
  Job job;
  job.work(2);
  job.goodput.on_break("SignalKILL", Job::at(6));
  job.goodput.on_commit(3, Job::at(7));
  job.goodput.on_resume(2, Job::at(6.5));
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 9), 1 + 2);

  Job redoing;
  redoing.work(10);
  redoing.goodput.on_break("NodeLost", Job::at(14));
  redoing.goodput.on_commit(5, Job::at(20));
  redoing.goodput.on_resume(4, Job::at(19));
  redoing.goodput.on_commit(8, Job::at(23));
  EXPECT_EQ(redoing.goodput.redone_steps(), 1 + 1 + 3);
}

TEST(Goodput, sees_by_itself_that_a_step_is_committed_again) {
  Job job;
  job.work(10);
  job.goodput.on_break("NodeLost", Job::at(14));
  job.goodput.on_commit(5, Job::at(20));
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 21), 1);
  EXPECT_EQ(job.goodput.redone_steps(), 2) << "the one in flight and this one";
  job.goodput.on_commit(8, Job::at(23));
  EXPECT_DOUBLE_EQ(job.seconds(redone("NodeLost"), 23), 3);
  EXPECT_EQ(job.goodput.redone_steps(), 2 + 3);

  Job by_one;
  by_one.work(10);
  by_one.goodput.on_break("NodeLost", Job::at(14));
  by_one.goodput.on_commit(10, Job::at(20));
  EXPECT_EQ(by_one.goodput.redone_steps(), 2);
  EXPECT_DOUBLE_EQ(by_one.seconds(redone("NodeLost"), 21), 0);
  EXPECT_DOUBLE_EQ(by_one.seconds(kWorkKey, 21), 9 + 1);
}

TEST(Goodput, ignores_the_empty_page_of_a_new_process) {
  Job job;
  job.work(10);
  job.goodput.on_commit(0, TimePoint{});
  job.goodput.on_commit(11, Job::at(15));
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 15), 10);
}

TEST(Goodput, moves_the_waits_inside_work) {
  Job job;
  job.work(11);  // 10 s of work
  job.goodput.on_waits(2.0, 0.5);
  job.goodput.on_waits(3.0, 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 15), 3);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("checkpoint"), 15), 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 15), 6.5);
}

TEST(Goodput, shows_only_waits_that_happened) {
  Job job;
  job.work(11);
  job.goodput.on_waits(0.0, 0.0);
  EXPECT_EQ(job.goodput.seconds(Job::at(15)).size(), 2U) << "start-up and work";
}

TEST(Goodput, ignores_waits_that_are_no_numbers) {
  Job job;
  job.work(11);
  job.goodput.on_waits(2.0, 0.5);
  job.goodput.on_waits(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  job.goodput.on_waits(2.0, 0.5);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 15), 2);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("checkpoint"), 15), 0.5);
}

TEST(Goodput, moves_a_wait_when_its_step_is_committed) {
  Job job;
  job.work(1);
  job.goodput.on_waits(4.0, 0.0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 9), 0);
  job.goodput.on_commit(2, Job::at(10));
  job.goodput.on_waits(4.0, 0.0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 10), 4);
  EXPECT_DOUBLE_EQ(job.seconds(kWorkKey, 10), 1);
}

TEST(Goodput, counts_the_waits_of_a_new_process_from_0_and_none_outside_work) {
  Job job;
  job.work(11);
  job.goodput.on_waits(2.0, 0.0);
  job.goodput.on_break("SignalKILL", Job::at(15));
  job.goodput.on_waits(0.5, 0.0);  // a new process, which is waiting for its first batch
  job.goodput.on_commit(12, Job::at(17));
  job.goodput.on_waits(0.75, 0.0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 17), 2.25);
}

TEST(Goodput, counts_the_first_waits_of_a_new_process_when_they_are_inside_work) {
  Job job;
  job.work(11);
  job.goodput.on_waits(2.0, 0.0);
  job.goodput.on_waits(0.75, 0.0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 15), 2.75);
}

TEST(Goodput, forgets_a_wait_whose_step_was_lost) {
  Job job;
  job.work(1);
  job.goodput.on_waits(4.0, 0.0);
  job.goodput.on_break("SignalKILL", Job::at(9));
  job.goodput.on_waits(4.0, 0.0);
  job.goodput.on_commit(2, Job::at(10));
  job.goodput.on_commit(3, Job::at(20));
  job.goodput.on_waits(4.0, 0.0);
  EXPECT_DOUBLE_EQ(job.seconds(waiting("data"), 20), 0);
  EXPECT_DOUBLE_EQ(job.seconds(redone("SignalKILL"), 20), 4);
}

TEST(Goodput, is_the_share_of_work) {
  Job job;
  EXPECT_DOUBLE_EQ(job.goodput.ratio(Job::at(0)), 0);
  job.work(6);
  EXPECT_DOUBLE_EQ(job.goodput.ratio(Job::at(10)), 0.5);
  EXPECT_DOUBLE_EQ(job.goodput.ratio(Job::at(5)), 0.5) << "a look that comes late is of what is accounted for";
  EXPECT_DOUBLE_EQ(job.goodput.seconds(Job::at(5))[kWorkKey], 5);
}

TEST(Goodput, adds_up_to_the_wall_clock_whatever_happens) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); };
    Job job;
    double now = 0.0;
    int64_t step = 0;
    for (int i = 0; i < 300; ++i) {
      now += 0.001 * pick(2000);
      const TimePoint when = Job::at(std::max(0.0, now - 0.001 * pick(500)));
      if (pick(20) == 0) job.goodput.on_earlier_break("c", step + pick(10), pick(2) == 0, when);
      switch (pick(6)) {
        case 0:
          job.goodput.on_break(pick(2) == 0 ? "a" : "b", when, static_cast<Goodput::Interrupted>(pick(3)));
          break;
        case 1:
          step = std::max<int64_t>(0, step - pick(30));
          job.goodput.on_resume(step, when);
          break;
        case 2:
          job.goodput.on_waits(0.01 * pick(1000), 0.01 * pick(1000));
          break;
        default:
          step += pick(10);
          job.goodput.on_commit(step, when);
      }
      for (const auto& [key, time] : job.goodput.seconds(Job::at(now))) ASSERT_GE(time, 0.0);
      job.seconds(kWorkKey, now);
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ", event " << i;
    }
  }
}

TEST(Goodput, names_its_kinds) {
  EXPECT_STREQ(to_string(GoodputKind::kWork), "work");
  EXPECT_STREQ(to_string(GoodputKind::kWaiting), "waiting");
  EXPECT_STREQ(to_string(GoodputKind::kRedone), "redone");
}

}  // namespace
}  // namespace lockstep
