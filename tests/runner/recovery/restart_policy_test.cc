#include "runner/recovery/restart_policy.h"

#include <gtest/gtest.h>

#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

TEST(RestartPolicy, ends_the_job_for_5_always_and_for_2_and_3_before_the_first_commit) {
  for (int code = 1; code < 256; ++code) {
    const bool is_input = code == 2 || code == 3;
    const auto consequence = [&](bool after) {
      return judge_end({.code = code, .after_first_commit = after}).consequence;
    };
    EXPECT_EQ(consequence(false), is_input || code == 5 ? Consequence::kEndJob : Consequence::kRestart) << code;
    EXPECT_EQ(consequence(true), code == 5 ? Consequence::kEndJob : Consequence::kRestart) << code;
  }
}

TEST(RestartPolicy, suspends_the_job_when_its_configuration_changed) {
  for (const bool after : {false, true}) {
    const BadEnd end{.code = 2, .is_configuration_changed = true, .after_first_commit = after};
    EXPECT_EQ(judge_end(end).consequence, Consequence::kSuspendJob);
  }
}

TEST(RestartPolicy, does_not_count_what_is_not_the_fault_of_who_ended) {
  for (int code = 1; code < 256; ++code) {
    EXPECT_EQ(judge_end({.code = code}).is_counted, code != 10 && code != 130 && code != 143) << code;
  }
}

TEST(RestartPolicy, blames_the_machine_for_a_device_fault_alone) {
  for (int code = 1; code < 256; ++code) EXPECT_EQ(judge_end({.code = code}).avoids_machine, code == 12) << code;
}

TEST(RestartPolicy, counts_ends_in_the_window_until_a_new_checkpoint) {
  RestartCounts counts;
  const RestartLimits limits{.max_restarts = 1, .window_seconds = 3600, .no_progress_restarts = 100};
  EXPECT_EQ(count_end({}, limits, 0, counts).used_up, UsedUp::kNothing);
  EXPECT_EQ(count_end({.is_counted = false}, limits, 10, counts).failures, 1);
  EXPECT_EQ(count_end({}, limits, 20, counts).used_up, UsedUp::kRestarts);
  EXPECT_EQ(count_end({}, limits, 3'700, counts).failures, 1);
  clear_counts_at(50, counts);
  EXPECT_EQ(count_end({}, limits, 3'710, counts).failures, 1);
  clear_counts_at(50, counts);
  EXPECT_EQ(count_end({}, limits, 3'720, counts).failures, 2) << "the same one is no news";
}

TEST(RestartPolicy, tries_all_nodes_before_it_gives_up_for_want_of_progress) {
  RestartCounts counts;
  const auto end_at = [&](int64_t step) { return count_end({.node = 1, .known_step = step}, {}, 0, counts); };
  EXPECT_FALSE(end_at(10).is_last_try);
  EXPECT_FALSE(end_at(10).is_last_try);
  EXPECT_EQ(end_at(11).no_progress, 1);
  end_at(11);
  EXPECT_TRUE(end_at(9).is_last_try);
  EXPECT_EQ(end_at(11).used_up, UsedUp::kNoProgress);
}

}  // namespace
}  // namespace lockstep
