// Random schedules of a whole job: see membership_simulation.h.
//   LOCKSTEP_SCHEDULES=50000  how many schedules
//   LOCKSTEP_FIRST_SEED=1     the seed of the first one
//   LOCKSTEP_SEED=4711        this one alone, with its decisions and faults on stderr
#include "tests/runner/recovery/membership_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace lockstep {
namespace {

// Ten seconds on one core; a sanitizer makes them slower. 80,000 others are membership_simulation_test.long
// (make e2e).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSchedules = 4'000;
#else
constexpr int64_t kSchedules = 20'000;
#endif
// With fewer schedules, some rare event may not occur at all.
constexpr int64_t kSchedulesForRareEvents = 50'000;

int64_t number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoll(text);
}

TEST(MembershipSimulation, the_same_seed_gives_the_same_schedule) {
  const SimulationResult once = simulate_membership(7);
  const SimulationResult again = simulate_membership(7);
  EXPECT_EQ(once.counts.events, again.counts.events);
  EXPECT_EQ(to_text(once.counts), to_text(again.counts));
}

TEST(MembershipSimulation, no_invariant_is_broken_in_random_schedules) {
  if (const int64_t seed = number("LOCKSTEP_SEED", -1); seed >= 0) {
    const SimulationResult result = simulate_membership(static_cast<uint64_t>(seed), true);
    EXPECT_EQ(result.failure, "");
    return;
  }
  const int64_t schedules = number("LOCKSTEP_SCHEDULES", kSchedules);
  const int64_t first = number("LOCKSTEP_FIRST_SEED", 1);
  SimulationCounts sum;
  for (int64_t seed = first; seed < first + schedules; ++seed) {
    const SimulationResult result = simulate_membership(static_cast<uint64_t>(seed));
    sum += result.counts;
    ASSERT_EQ(result.failure, "") << "seed " << seed << "; LOCKSTEP_SEED=" << seed << " replays it alone";
  }
  std::cout << to_text(sum) << "\n";
  if (schedules < kSchedulesForRareEvents) return;
  for (const int64_t count : {sum.smaller_groups,    sum.old_groups_formed,
                              sum.torn_commits,      sum.twins,
                              sum.fresh_starts,      sum.stale_states,
                              sum.undisturbed_ends,  sum.states_received,
                              sum.coordinators_lost, sum.older_coordinators_declined,
                              sum.doubled,           sum.cuts,
                              sum.regroups,          sum.stops,
                              sum.superseded,        sum.stale_placements,
                              sum.workers_restarted, sum.hangs_killed,
                              sum.nodes_failed,      sum.gave_up}) {
    EXPECT_GT(count, 0) << "something never happened";
  }
}

}  // namespace
}  // namespace lockstep
