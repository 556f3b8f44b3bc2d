#include <gtest/gtest.h>

#include "runner/loop/training_state.h"

namespace lockstep {
namespace {

TEST(Journal, keeps_the_last_steps_only) {
  Journal journal;
  for (int64_t step = 0; step < 20; ++step) journal.add({.step = step});
  ASSERT_EQ(journal.steps.size(), Journal::kStepsMax);
  EXPECT_EQ(journal.steps.front().step, 12);
  EXPECT_EQ(journal.steps.back().step, 19);
}

TEST(Journal, survives_being_sent_to_another_rank) {
  Journal journal;
  journal.add({.step = 7, .epoch = 1, .samples = 64, .loss = 1.25, .grad_norm = 0.5, .lr = 1e-3, .skipped = true});
  journal.evaluation = EvaluationNote{
      .report = {.step = 8, .epoch = 2, .seconds_training = 3.5, .metrics = {{"NDCG@10", 0.4}, {"HR@10", 0.6}}},
      .outputs = {"best.pth"},
      .lr = 1e-3};
  journal.improved = true;
  const Result<Journal> back = journal_from_json(to_json(journal));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(to_json(*back), to_json(journal));
  EXPECT_TRUE(back->improved);
  EXPECT_EQ(back->evaluation->report.metrics[0].first, "NDCG@10");
}

TEST(Journal, refuses_what_is_none) {
  const Result<Journal> back = journal_from_json(Json{{"steps", 3}});
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace lockstep
