#include "runner/recovery/state_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "runner/contract/generation.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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

// ---- ranks that keep the results of collectives ----

// Of a rank that keeps what has been complete since its commit.
StateClaim at(int64_t step, uint64_t at_commit, uint64_t complete) {
  return {.lineage = 1,
          .step = step,
          .has_state = true,
          .at_commit = at_commit,
          .complete = complete,
          .kept_from = at_commit,
          .can_take = false};
}
StateClaim keeping_from(uint64_t kept_from, StateClaim claim) {
  claim.kept_from = kept_from;
  return claim;
}
StateClaim that_can_take(StateClaim claim) {
  claim.can_take = true;
  return claim;
}
StateClaim changed(StateClaim claim) {
  claim.is_whole = false;
  return claim;
}
const StateClaim kNew;

std::vector<int> receivers_of(const SourceChoice& choice) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < choice.receives.size(); ++rank) {
    if (choice.receives[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}
using Lacking = std::map<int, uint64_t>;
Lacking lacking_of(const SourceChoice& choice) {
  Lacking found;
  for (size_t rank = 0; rank < choice.lacks_from.size(); ++rank) {
    if (choice.lacks_from[rank]) found[static_cast<int>(rank)] = *choice.lacks_from[rank];
  }
  return found;
}

TEST(ChooseSource, of_a_first_start_has_nobody_hand_anything_over) {
  const SourceChoice choice = choose_source({kNew, kNew, kNew});
  EXPECT_FALSE(choice.source || choice.keeper);
  EXPECT_THAT(receivers_of(choice), IsEmpty());
  EXPECT_THAT(plans_of(choice), IsEmpty());
}

TEST(ChooseSource, gives_a_new_rank_the_newest_commit_of_the_lowest_rank_that_has_it) {
  const SourceChoice choice = choose_source({kNew, at(4, 8, 8), at(5, 10, 10), at(5, 10, 10)});
  EXPECT_EQ(choice.source, 2);
  EXPECT_THAT(receivers_of(choice), ElementsAre(0));
}

TEST(ChooseSource, leaves_a_rank_alone_that_is_about_to_commit) {
  const SourceChoice choice = choose_source({at(4, 8, 10), at(5, 10, 10)});
  EXPECT_EQ(choice.source, 1);
  EXPECT_THAT(receivers_of(choice), IsEmpty());
  EXPECT_THAT(choice.behind, IsEmpty());
  EXPECT_FALSE(choice.keeper);
}

TEST(ChooseSource, gives_a_new_rank_the_results_since_the_commit_that_others_have) {
  const SourceChoice choice = choose_source({at(5, 10, 12), kNew, at(5, 10, 12)});
  EXPECT_EQ(choice.keeper, 0);
  EXPECT_EQ(lacking_of(choice), (Lacking{{1, 10}}));
}

TEST(ChooseSource, gives_a_rank_the_newest_result_that_it_lacks_from_one_that_has_it) {
  const SourceChoice choice = choose_source({at(5, 10, 11), at(5, 10, 12), kNew});
  EXPECT_EQ(choice.source, 0);
  EXPECT_EQ(choice.keeper, 1);
  EXPECT_EQ(lacking_of(choice), (Lacking{{0, 11}, {2, 10}}));
  EXPECT_THAT(choice.behind, IsEmpty());
}

TEST(ChooseSource, gives_a_rank_a_step_behind_what_the_others_have_kept_after_their_commit) {
  const SourceChoice choice = choose_source({keeping_from(11, at(6, 12, 12)), at(5, 10, 11), kNew});
  EXPECT_EQ(choice.source, 0);
  EXPECT_EQ(choice.keeper, 0);
  EXPECT_EQ(lacking_of(choice), (Lacking{{1, 11}}));
  EXPECT_THAT(choice.behind, IsEmpty());
}

TEST(ChooseSource, leaves_a_rank_behind_whose_result_nobody_keeps) {
  const SourceChoice choice = choose_source({at(6, 12, 12), at(5, 10, 11), kNew});
  EXPECT_EQ(choice.source, 0);
  EXPECT_THAT(choice.behind, ElementsAre(1));
  EXPECT_THAT(lacking_of(choice), IsEmpty());
}

TEST(ChooseSource, gives_a_rank_that_is_behind_the_later_state_if_it_can_take_it) {
  const SourceChoice choice = choose_source({at(6, 12, 13), that_can_take(at(5, 10, 11)), kNew});
  EXPECT_EQ(choice.source, 0);
  EXPECT_THAT(receivers_of(choice), ElementsAre(1, 2));
  EXPECT_THAT(choice.behind, IsEmpty());
  EXPECT_EQ(lacking_of(choice), (Lacking{{1, 12}, {2, 12}}));
  EXPECT_TRUE(choose_source({changed(at(6, 12, 12)), that_can_take(at(5, 10, 11))}).is_lost);
}

TEST(ChooseSource, has_of_ranks_with_the_same_results_the_one_send_that_keeps_most) {
  EXPECT_EQ(choose_source({at(6, 12, 12), keeping_from(10, at(6, 12, 12)), at(5, 10, 11)}).keeper, 1);
}

TEST(ChooseSource, hands_no_state_over_that_has_been_changed) {
  const SourceChoice choice = choose_source({changed(at(5, 10, 11)), at(5, 10, 11), kNew});
  EXPECT_EQ(choice.source, 1);
  EXPECT_FALSE(choice.is_lost);
  EXPECT_TRUE(choose_source({changed(at(5, 10, 11)), changed(at(5, 10, 11)), kNew}).is_lost);
  EXPECT_FALSE(choose_source({changed(at(5, 10, 11)), changed(at(5, 10, 11))}).is_lost);
}

// What collectives came to before a checkpoint was read again is void, whatever their numbers.
TEST(ChooseSource, counts_no_collectives_of_another_lineage) {
  StateClaim old = at(9, 18, 20);
  StateClaim young = at(5, 10, 11);
  young.lineage = 2;
  EXPECT_THAT(choose_source({old, young}).behind, ElementsAre(0));
  EXPECT_EQ(choose_source({old, young}).complete, 11U);
  EXPECT_EQ(lacking_of(choose_source({that_can_take(old), young})), (Lacking{{0, 10}}));
}

// Whatever a plan says, its handovers have one sender and distinct places, so that no rank waits for one that will not
// come.
void check_handover(const std::vector<Plan>& plans, Handover Plan::*handover, std::optional<int> sender) {
  std::vector<int> places;
  for (const Plan& plan : plans) {
    EXPECT_EQ((plan.*handover).size, (plans.front().*handover).size);
    if ((plan.*handover).rank >= 0) places.push_back((plan.*handover).rank);
  }
  EXPECT_EQ(std::ssize(places), (plans.front().*handover).size);
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], static_cast<int>(i));
  if (places.empty()) return;
  EXPECT_EQ((plans[static_cast<size_t>(sender.value())].*handover).rank, 0);
}

TEST(ChooseSource, lets_everybody_end_with_the_same_number_of_collectives_whatever_they_hold) {
  std::mt19937 draw(7);
  const auto below = [&](uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(draw); };
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint64_t> commits{below(7), below(7), below(7), below(7)};
    std::sort(commits.begin(), commits.end());
    std::vector<StateClaim> claims(1 + below(5));
    for (StateClaim& claim : claims) {
      if (below(10) < 3) continue;
      const uint64_t step = below(4);
      claim = keeping_from(below(commits[step] + 1),
                           at(static_cast<int64_t>(step), commits[step], commits[step] + below(3)));
      claim.can_take = below(10) < 3;
    }
    const SourceChoice choice = choose_source(claims);
    const std::vector<Plan> plans = plans_of(choice);
    if (!choice.source) {
      EXPECT_THAT(plans, IsEmpty());
      EXPECT_TRUE(std::none_of(claims.begin(), claims.end(), [](const StateClaim& claim) { return claim.has_state; }));
      continue;
    }
    check_handover(plans, &Plan::state, choice.source);
    check_handover(plans, &Plan::results, choice.keeper);
    for (size_t rank = 0; rank < claims.size(); ++rank) {
      const uint64_t has =
          choice.receives[rank] ? claims[static_cast<size_t>(*choice.source)].at_commit : claims[rank].complete;
      const bool is_behind =
          std::find(choice.behind.begin(), choice.behind.end(), static_cast<int>(rank)) != choice.behind.end();
      EXPECT_EQ(plans[rank].behind == static_cast<int>(rank), is_behind);
      if (is_behind || has == choice.complete) continue;
      const StateClaim& keeper = claims[static_cast<size_t>(choice.keeper.value())];
      EXPECT_EQ(choice.lacks_from[rank], has);
      EXPECT_TRUE(keeper.kept_from <= has || choice.receives[rank]);
      EXPECT_EQ(keeper.complete, choice.complete);
      EXPECT_LE(plans[rank].first_result, has);
      EXPECT_GT(plans[rank].results.rank, 0);
    }
  }
}

// A rank may say anything.
TEST(ChooseSource, makes_handovers_that_fit_of_any_numbers) {
  std::mt19937_64 draw(11);
  const auto number = [&]() -> uint64_t { return draw() % 3 == 0 ? ~uint64_t{0} - draw() % 2 : draw() % 4; };
  for (int i = 0; i < 2000; ++i) {
    std::vector<StateClaim> claims(1 + draw() % 6);
    for (StateClaim& claim : claims) {
      claim = {.lineage = number(),
               .step = static_cast<int64_t>(number()),
               .evaluated_step = static_cast<int64_t>(number()),
               .has_state = draw() % 4 != 0,
               .generation = number(),
               .at_commit = number(),
               .complete = number(),
               .kept_from = number(),
               .is_whole = draw() % 2 == 0,
               .can_take = draw() % 2 == 0};
    }
    const SourceChoice choice = choose_source(claims);
    const std::vector<Plan> plans = plans_of(choice);
    if (!choice.source) continue;
    check_handover(plans, &Plan::state, choice.source);
    check_handover(plans, &Plan::results, choice.keeper);
  }
}

TEST(PlansOf, give_each_rank_its_place_in_the_groups_in_which_something_is_sent) {
  const std::vector<Plan> plans = plans_of(choose_source({at(5, 10, 11), kNew, at(5, 10, 12), at(5, 10, 12), kNew}));
  ASSERT_EQ(plans.size(), 5U);
  std::vector<int> of_state;
  std::vector<int> of_results;
  for (const Plan& plan : plans) {
    EXPECT_EQ(plan.source, 0);
    EXPECT_EQ(plan.state.size, 3);
    EXPECT_EQ(plan.results.size, 4);
    EXPECT_EQ(plan.first_result, 10U);
    EXPECT_EQ(plan.complete, 12U);
    EXPECT_EQ(plan.behind, -1);
    EXPECT_FALSE(plan.is_lost);
    of_state.push_back(plan.state.rank);
    of_results.push_back(plan.results.rank);
  }
  EXPECT_THAT(of_state, ElementsAre(0, 1, -1, -1, 2));
  EXPECT_THAT(of_results, ElementsAre(1, 2, 0, -1, 3));
}

TEST(PlansOf, tell_all_of_a_rank_that_is_behind_and_those_that_are_of_themselves) {
  std::vector<int> behind;
  for (const Plan& plan : plans_of(choose_source({at(6, 12, 12), at(5, 10, 11), at(5, 10, 11)}))) {
    behind.push_back(plan.behind);
  }
  EXPECT_THAT(behind, ElementsAre(1, 1, 2));
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
