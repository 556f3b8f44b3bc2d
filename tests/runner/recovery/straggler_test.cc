#include "runner/recovery/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

RankBeat rank(int rank, Activity activity, Phase phase, double seconds_unchanged, int64_t step = 12) {
  RankBeat beat;
  beat.rank = rank;
  beat.node_rank = rank / 2;
  beat.beat.local_rank = rank % 2;
  beat.beat.activity = activity;
  beat.beat.phase = phase;
  beat.beat.seconds_unchanged = seconds_unchanged;
  beat.beat.step = step;
  return beat;
}
RankBeat trains(int number, Phase phase, double seconds_unchanged, int64_t step = 12) {
  return rank(number, Activity::kTraining, phase, seconds_unchanged, step);
}

TEST(FindStalls, blames_nobody_while_all_make_progress) {
  EXPECT_THAT(find_stalls({}, 600s), IsEmpty());
  EXPECT_THAT(find_stalls({trains(0, Phase::kForward, 599), trains(1, Phase::kGradSync, 599)}, 600s), IsEmpty());
}

TEST(FindStalls, blames_the_rank_that_hangs_and_not_those_that_wait_for_it) {
  const auto stalls = find_stalls(
      {trains(0, Phase::kGradSync, 601), trains(3, Phase::kDataWait, 600), trains(2, Phase::kWaiting, 601)}, 600s);
  ASSERT_THAT(stalls, SizeIs(1));
  EXPECT_EQ(stalls[0].rank, 3);
  EXPECT_EQ(stalls[0].node_rank, 1);
  EXPECT_EQ(stalls[0].local_rank, 1);
  EXPECT_EQ(stalls[0].message,
            "rank 3 (node 1) has shown no progress for 600 s at step 12, waiting for data; 2 ranks wait for it");
}

TEST(FindStalls, says_where_a_rank_hangs) {
  struct Case {
    Activity activity;
    Phase phase;
    std::string words;
  };
  const std::vector<Case> cases{{Activity::kTraining, Phase::kForward, "computing"},
                                {Activity::kTraining, Phase::kBackward, "computing"},
                                {Activity::kTraining, Phase::kOptimizer, "computing"},
                                {Activity::kTraining, Phase::kOther, "computing"},
                                {Activity::kTraining, Phase::kDataWait, "waiting for data"},
                                {Activity::kTraining, Phase::kValidation, "evaluating"},
                                {Activity::kTraining, Phase::kCheckpointStall, "waiting for the disk"},
                                {Activity::kTraining, Phase::kStartup, "starting up"},
                                {Activity::kLoading, Phase::kStartup, "starting up"},
                                {Activity::kRestoring, Phase::kOther, "waiting for the disk"},
                                {Activity::kCheckpointing, Phase::kOther, "waiting for the disk"},
                                {Activity::kEvaluating, Phase::kForward, "evaluating"},
                                {Activity::kStopping, Phase::kOther, "computing"}};
  for (const Case& c : cases) {
    const auto stalls = find_stalls({rank(0, c.activity, c.phase, 601), trains(1, Phase::kGradSync, 601)}, 600s);
    ASSERT_THAT(stalls, SizeIs(1)) << c.words;
    EXPECT_THAT(stalls[0].message, HasSubstr(", " + c.words + "; 1 rank waits for it"));
  }
}

TEST(FindStalls, blames_all_that_hang_by_themselves) {
  EXPECT_THAT(find_stalls({trains(0, Phase::kForward, 601), trains(1, Phase::kDataWait, 700)}, 600s), SizeIs(2));
}

TEST(FindStalls, blames_nobody_in_a_collective_that_one_has_not_reached) {
  EXPECT_THAT(find_stalls({trains(0, Phase::kGradSync, 900), trains(1, Phase::kForward, 5)}, 600s), IsEmpty());
}

TEST(FindStalls, blames_nobody_in_a_collective_that_one_has_just_reached) {
  EXPECT_THAT(find_stalls({trains(0, Phase::kGradSync, 900), trains(1, Phase::kGradSync, 5)}, 600s), IsEmpty());
}

TEST(FindStalls, blames_the_slowest_of_a_group_that_is_stuck) {
  const auto stalls = find_stalls(
      {trains(0, Phase::kGradSync, 601, 13), trains(1, Phase::kGradSync, 602, 12), trains(2, Phase::kWaiting, 603, 13)},
      600s);
  ASSERT_THAT(stalls, SizeIs(1));
  EXPECT_EQ(stalls[0].rank, 1);
  EXPECT_THAT(stalls[0].message, HasSubstr("in a collective"));
}

TEST(FindStalls, blames_all_of_a_group_that_is_stuck_at_one_step_and_says_that_it_is) {
  const auto stalls = find_stalls({trains(0, Phase::kGradSync, 601), trains(1, Phase::kGradSync, 601)}, 600s);
  ASSERT_THAT(stalls, SizeIs(2));
  for (const Stall& stall : stalls) {
    EXPECT_TRUE(stall.group_is_stuck);
    EXPECT_EQ(stall.step, 12);
  }
  EXPECT_FALSE(
      find_stalls({trains(0, Phase::kGradSync, 601), trains(1, Phase::kForward, 601)}, 600s).at(0).group_is_stuck);
}

// Collectives of GPUs run on the device.
TEST(FindStalls, who_waits_for_its_device_may_wait_for_a_peer) {
  const auto late = find_stalls({trains(0, Phase::kDevice, 601), trains(1, Phase::kDataWait, 601)}, 600s);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].rank, 1);
  const auto stuck = find_stalls({trains(0, Phase::kDevice, 601), trains(1, Phase::kGradSync, 601)}, 600s);
  ASSERT_THAT(stuck, SizeIs(2));
  EXPECT_TRUE(stuck[0].group_is_stuck);
  EXPECT_THAT(stuck[0].message, HasSubstr("waiting for its device"));
  EXPECT_THAT(stuck[0].message, HasSubstr("waiting for its device"));
}

TEST(FindStalls, forming_a_group_is_waiting_for_its_members) {
  const auto forms = [](int number) { return rank(number, Activity::kForming, Phase::kOther, 601); };
  const auto stalls = find_stalls({forms(0), rank(1, Activity::kRestoring, Phase::kOther, 601)}, 600s);
  ASSERT_THAT(stalls, SizeIs(1));
  EXPECT_EQ(stalls[0].rank, 1);
}

TEST(FindStalls, never_blames_a_rank_that_awaits_an_assignment) {
  EXPECT_THAT(find_stalls({rank(0, Activity::kAwaiting, Phase::kOther, 900)}, 600s), IsEmpty());
  EXPECT_THAT(find_stalls({rank(0, Activity::kAwaiting, Phase::kWaiting, 900), trains(1, Phase::kGradSync, 900)}, 600s),
              SizeIs(1));
}

// ---- the slowest ----

// `ranks` ranks at `step`; rank r works seconds[r] in each step.
std::vector<RankBeat> beats_at(int64_t step, const std::vector<double>& seconds) {
  std::vector<RankBeat> beats;
  for (size_t number = 0; number < seconds.size(); ++number) {
    beats.push_back(trains(static_cast<int>(number), Phase::kForward, 0, step));
    beats.back().beat.busy_seconds = 100 + static_cast<double>(step) * seconds[number];
  }
  return beats;
}

TEST(StragglerView, finds_the_rank_with_the_most_work_per_step) {
  StragglerView view;
  view.add(beats_at(0, {0.1, 0.4, 0.2, 0.1}));
  view.add(beats_at(kStragglerWindowSteps - 1, {0.1, 0.4, 0.2, 0.1}));
  EXPECT_FALSE(view.slowest());
  view.add(beats_at(kStragglerWindowSteps, {0.1, 0.4, 0.2, 0.1}));
  EXPECT_EQ(view.slowest()->rank, 1);
  EXPECT_EQ(view.slowest()->node, 0);
  EXPECT_NEAR(view.slowest()->lag_seconds, 0.3, 1e-9);
}

TEST(StragglerView, looks_at_the_last_window_alone) {
  StragglerView view;
  view.add(beats_at(0, {0.4, 0.1}));
  view.add(beats_at(20, {0.4, 0.1}));
  EXPECT_EQ(view.slowest()->rank, 0);
  std::vector<RankBeat> later = beats_at(40, {0.4, 0.1});
  later[1].beat.busy_seconds += 100;
  view.add(later);
  EXPECT_EQ(view.slowest()->rank, 1);
  EXPECT_NEAR(view.slowest()->lag_seconds, 0.1 + 100.0 / 20 - 0.4, 1e-9);
}

TEST(StragglerView, one_rank_alone_is_not_slow) {
  StragglerView view;
  view.add(beats_at(0, {0.4}));
  view.add(beats_at(20, {0.4}));
  EXPECT_FALSE(view.slowest());
}

TEST(StragglerView, nobody_is_slow_where_no_work_is_known) {
  StragglerView view;
  view.add(beats_at(0, {0, 0}));
  view.add(beats_at(20, {0, 0}));
  EXPECT_FALSE(view.slowest());
}

TEST(StragglerView, a_new_process_is_counted_anew) {
  StragglerView view;
  view.add(beats_at(0, {0.1, 0.2}));
  view.add(beats_at(10, {0.1, 0.2}));
  std::vector<RankBeat> fresh = beats_at(30, {0.1, 0.2});
  fresh[1].beat.busy_seconds = 0;
  view.add(fresh);
  EXPECT_FALSE(view.slowest());
  std::vector<RankBeat> later = beats_at(50, {0.1, 0.2});
  later[1].beat.busy_seconds = 8;
  view.add(later);
  EXPECT_EQ(view.slowest()->rank, 1);
  EXPECT_NEAR(view.slowest()->lag_seconds, 0.3, 1e-9);
}

TEST(StragglerView, a_fall_back_to_a_checkpoint_is_counted_anew) {
  StragglerView view;
  view.add(beats_at(100, {0.1, 0.2}));
  std::vector<RankBeat> back = beats_at(90, {0.1, 0.2});
  for (RankBeat& beat : back) beat.beat.busy_seconds += 10;
  view.add(back);
  std::vector<RankBeat> later = beats_at(110, {0.1, 0.2});
  for (RankBeat& beat : later) beat.beat.busy_seconds += 10;
  view.add(later);
  EXPECT_NEAR(view.slowest()->lag_seconds, 0.1, 1e-9);
}

TEST(StragglerView, forgets) {
  StragglerView view;
  view.add(beats_at(0, {0.1, 0.2}));
  view.add(beats_at(20, {0.1, 0.2}));
  view.forget();
  EXPECT_FALSE(view.slowest());
  view.add(beats_at(40, {0.1, 0.2}));
  EXPECT_FALSE(view.slowest());
}

}  // namespace
}  // namespace lockstep
