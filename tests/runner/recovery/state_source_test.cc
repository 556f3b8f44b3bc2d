#include "runner/recovery/state_source.h"

#include <gtest/gtest.h>

#include "runner/contract/generation.h"

namespace lockstep {
namespace {

TEST(ChooseSource, finds_none_when_nobody_holds_a_state) {
  const SourceChoice choice = choose_source({{}, {}});
  EXPECT_FALSE(choice.source);
  EXPECT_EQ(choice.receives, (std::vector<bool>{false, false}));
}

TEST(ChooseSource, takes_the_highest_step_and_spares_those_who_have_it) {
  const SourceChoice choice = choose_source({{.lineage = 1, .step = 7, .has_state = true},
                                             {.lineage = 1, .step = 8, .has_state = true},
                                             {.lineage = 1, .step = 8, .has_state = true},
                                             {}});
  EXPECT_EQ(choice.source, 1);
  EXPECT_EQ(choice.receives, (std::vector<bool>{true, false, false, true}));
  EXPECT_NE(choice.reason.find("step 8"), std::string::npos);
}

TEST(ChooseSource, prefers_a_newer_lineage_to_a_higher_step) {
  const SourceChoice choice =
      choose_source({{.lineage = 1, .step = 900, .has_state = true}, {.lineage = 2, .step = 3, .has_state = true}});
  EXPECT_EQ(choice.source, 1);
  EXPECT_EQ(choice.receives, (std::vector<bool>{true, false}));
}

// The group broke when one rank had received the last message of an evaluation and the other had not.
TEST(ChooseSource, prefers_who_has_evaluated_a_step_to_who_has_not) {
  const SourceChoice choice = choose_source({{.lineage = 1, .step = 8, .evaluated_step = 4, .has_state = true},
                                             {.lineage = 1, .step = 8, .evaluated_step = 8, .has_state = true},
                                             {.lineage = 1, .step = 7, .evaluated_step = 7, .has_state = true}});
  EXPECT_EQ(choice.source, 1);
  EXPECT_EQ(choice.receives, (std::vector<bool>{true, false, true}));
}

// One node was cut off with a step that the others repeated in a group of another size.
TEST(ChooseSource, prefers_the_newer_group_where_two_have_made_the_same_step) {
  const SourceChoice choice =
      choose_source({{.lineage = 1, .step = 8, .evaluated_step = 8, .has_state = true, .generation = 4},
                     {.lineage = 1, .step = 8, .has_state = true, .generation = 5}});
  EXPECT_EQ(choice.source, 1);
  EXPECT_EQ(choice.receives, (std::vector<bool>{true, false}));
}

TEST(ChooseSource, does_not_count_a_step_without_a_state) {
  const SourceChoice choice =
      choose_source({{.lineage = 9, .step = 900, .has_state = false}, {.lineage = 1, .step = 0, .has_state = true}});
  EXPECT_EQ(choice.source, 1);
}

TEST(MayHaveMissedGroups, says_so_where_another_group_fits_in_between) {
  const StateClaim best{.lineage = 1, .step = 5, .has_state = true, .generation = 7};
  EXPECT_FALSE(may_have_missed_groups(best, 8)) << "synced in the group before this one";
  EXPECT_TRUE(may_have_missed_groups(best, 9));
  EXPECT_FALSE(may_have_missed_groups(best, (uint64_t{1} << 32U) | 1U)) << "an earlier coordinator may live on";
  EXPECT_FALSE(may_have_missed_groups(best, 3)) << "a clock was set back";
}

TEST(IsNewer, of_a_later_group_that_has_come_further) {
  const StateClaim best{.lineage = 1, .step = 5, .has_state = true, .generation = 7};
  EXPECT_TRUE(is_newer({.generation = 8, .step = 6}, best));
  EXPECT_FALSE(is_newer({.generation = 8, .step = 5}, best)) << "what is in memory needs no reading";
  EXPECT_FALSE(is_newer({.generation = 7, .step = 6}, best)) << "of a rank that was a step ahead: it is made again";
  EXPECT_FALSE(is_newer({.generation = 6, .step = 80}, best)) << "given up by a later group";
}

TEST(ChooseSource, gives_the_state_to_whoever_has_none_whatever_it_says_of_one) {
  const SourceChoice choice =
      choose_source({{.lineage = 1, .step = 5, .has_state = true}, {.lineage = 1, .step = 5, .has_state = false}});
  EXPECT_EQ(choice.source, 0);
  EXPECT_EQ(choice.receives, (std::vector<bool>{false, true}));
}

TEST(AgeInGroup, keeps_its_lineage_under_one_coordinator) {
  const uint64_t lineage = make_generation(3, 1);
  const StateAge age = age_in_group(lineage, make_generation(3, 5), {{.generation = make_generation(3, 4)}});
  EXPECT_EQ(age.lineage, lineage);
  EXPECT_EQ(age.generation, make_generation(3, 5));
}

TEST(AgeInGroup, begins_a_new_lineage_under_a_new_coordinator) {
  const StateAge age =
      age_in_group(make_generation(3, 1), make_generation(4, 1), {{.generation = make_generation(3, 9)}});
  EXPECT_EQ(age.lineage, make_generation(4, 1));
}

// Without an operator, start times serve as attempts.
TEST(AgeInGroup, is_above_every_claim_when_a_clock_was_set_back) {
  const std::vector<StateClaim> claims{{.generation = make_generation(7, 2)}, {.generation = make_generation(7, 3)}};
  const StateAge age = age_in_group(make_generation(7, 1), make_generation(5, 1), claims);
  EXPECT_EQ(age.generation, make_generation(7, 4));
  EXPECT_EQ(age.lineage, make_generation(7, 1));
  // … and a new lineage above the one before it.
  EXPECT_EQ(age_in_group(make_generation(9, 1), make_generation(5, 1), claims).lineage, make_generation(9, 1) + 1);
}

TEST(StampWhenRestored, is_of_this_generation) {
  const CheckpointStamp here{.generation = make_generation(4, 2)};
  EXPECT_EQ(stamp_when_restored(here, std::nullopt), here);
  EXPECT_EQ(stamp_when_restored(here, CheckpointStamp{.generation = make_generation(3, 9)}), here);
}

TEST(StampWhenRestored, is_above_the_checkpoint_when_a_clock_was_set_back) {
  const CheckpointStamp stamp =
      stamp_when_restored({.generation = make_generation(4, 2)}, CheckpointStamp{.generation = make_generation(7, 5)});
  EXPECT_EQ(stamp.generation, make_generation(7, 5) + 1);
}

TEST(StampWhenRestored, of_a_job_that_was_made_again_begins_with_its_own_low_generations) {
  const CheckpointStamp here{.run = 200, .generation = make_generation(0, 1)};
  EXPECT_EQ(stamp_when_restored(here, CheckpointStamp{.run = 100, .generation = make_generation(7, 5)}), here);
}

// Two jobs that were created within a second, or an API server whose clock was set back; or a checkpoint of a cluster
// that is continued on a laptop, where there are no run numbers.
TEST(StampWhenRestored, is_above_the_checkpoint_of_a_run_with_a_higher_number) {
  const CheckpointStamp read{.run = 300, .generation = make_generation(0, 5)};
  const CheckpointStamp stamp = stamp_when_restored({.run = 200, .generation = make_generation(0, 1)}, read);
  EXPECT_GT(stamp, read);
  EXPECT_EQ(stamp.run, 300U);
  EXPECT_GT(stamp_when_restored({.generation = make_generation(1'800'000'000, 1)}, read), read);
}

}  // namespace
}  // namespace lockstep
