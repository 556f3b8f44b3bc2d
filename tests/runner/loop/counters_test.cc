#include <gtest/gtest.h>

#include <limits>

#include "runner/loop/training_state.h"

namespace lockstep {
namespace {

Counters sample() {
  Counters c;
  c.step = 1200;
  c.lineage = (uint64_t{1} << 32) | 3;
  c.has_state = true;
  c.batch = {.global_batch = 128, .micro_batch_max = 64, .declared_world_size = 2};
  c.position = {.epoch = 150, .index = 3};
  c.epoch_steps = 8;
  c.phase = 1;
  c.phase_epoch = 120;
  c.skipped_in_row = 1;
  c.skipped_total = 4;
  c.plateau = {.best = 0.5, .bad_evaluations = 2, .factor = 0.25};
  c.loss_scale = {.scale = 1024.0, .good_steps = 17};
  c.best_metric = 0.625;
  c.patience_best = 0.5;
  c.evaluations_without_best = 1;
  c.evaluated_step = 1000;
  c.seconds_training = 12.5;
  c.resumed_from = "other/";
  c.weights_from = "SASRec.epoch=150.pth";
  c.generation = (uint64_t{1} << 32) | 4;
  c.run = 1'882'460'887'869'183;
  c.training = {{.name = "train_loss", .sum = 12.25, .count = 3.0}};
  return c;
}

TEST(Counters, come_back_from_json_as_they_were) {
  const Json json = to_json(sample());
  const Result<Counters> back = counters_from_json(*parse_json(dump_line(json), "counters"));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(to_json(*back), json);
  EXPECT_TRUE(back->has_state);
}

TEST(Counters, keep_what_was_never_measured) {
  const Result<Counters> back = counters_from_json(to_json([] {
    Counters c = sample();
    c.best_metric = -std::numeric_limits<double>::infinity();
    c.plateau = {};
    return c;
  }()));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->best_metric, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(back->plateau, PlateauState{});
}

TEST(Counters, of_a_damaged_document_are_refused_by_field) {
  const Json whole = to_json(sample());
  for (const auto& [field, value] : whole.items()) {
    if (field == "patience_best" || field == "weights_from") continue;  // the next test
    Json json = whole;
    json.erase(field);
    const Result<Counters> back = counters_from_json(json);
    ASSERT_FALSE(back.ok()) << field;
    EXPECT_NE(back.error().message.find(field), std::string::npos) << back.error().message;
  }
  for (const char* const field : {"global_batch", "epoch_steps"}) {
    Json json = whole;
    json[field] = 0;
    EXPECT_FALSE(counters_from_json(json).ok()) << field;
  }
}

TEST(Counters, of_an_earlier_version_count_patience_from_the_best) {
  Json json = to_json(sample());
  json.erase("patience_best");
  json.erase("weights_from");
  const Result<Counters> back = counters_from_json(json);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->patience_best, sample().best_metric);
  EXPECT_EQ(back->weights_from, "");
}

StepReport figures(bool skipped, std::optional<double> loss_scale = std::nullopt) {
  StepReport report;
  report.skipped = skipped;
  report.loss_scale = loss_scale;
  return report;
}

TEST(Figures, count_skips_in_a_row) {
  Counters c;
  for (const bool skipped : {true, true, false, true}) count_figures(c, figures(skipped));
  EXPECT_EQ(c.skipped_in_row, 1);
  EXPECT_EQ(c.skipped_total, 3);
  EXPECT_EQ(c.loss_scale, LossScale{}) << "nothing was scaled";
}

// A device is two steps ahead of its figures: those two were scaled by what had overflowed.
TEST(Figures, of_an_overflow_halve_the_scale_once_and_are_no_skip_while_a_smaller_scale_may_help) {
  Counters c;
  const double scale = c.loss_scale.scale;
  for (int i = 0; i < 3; ++i) count_figures(c, figures(true, scale));
  EXPECT_EQ(c.loss_scale.scale, scale / 2);
  EXPECT_EQ(c.skipped_total, 3);
  EXPECT_EQ(c.skipped_in_row, 0);
  count_figures(c, figures(true, scale / 2));
  EXPECT_EQ(c.loss_scale.scale, scale / 4);
  count_figures(c, figures(false, scale / 4));
  EXPECT_EQ(c.loss_scale.good_steps, 1);
}

TEST(Figures, that_are_not_finite_without_a_scale_are_skips) {
  Counters c;
  while (c.loss_scale.scale > 1.0) count_figures(c, figures(true, c.loss_scale.scale));
  EXPECT_EQ(c.skipped_in_row, 0);
  for (int i = 0; i < 2; ++i) count_figures(c, figures(true, c.loss_scale.scale));
  EXPECT_EQ(c.skipped_in_row, 2);
}

TEST(Figures, add_the_loss_up_without_the_steps_that_were_skipped) {
  Counters c;
  StepReport report;
  for (const double loss : {1.0, 2.0}) {
    report.loss = loss;
    count_figures(c, report);
  }
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.skipped = true;
  count_figures(c, report);
  ASSERT_EQ(c.training.size(), 1U);
  EXPECT_EQ(c.training[0].name, kTrainLoss);
  EXPECT_EQ(c.training[0].sum, 3.0);
  EXPECT_EQ(c.training[0].count, 2.0);
}

TEST(Evaluations, use_up_patience_where_they_improve_too_little_or_are_no_number) {
  const WorkloadInfo info{
      .name = "toy", .loss_terms = {}, .best = {.name = "valid_loss", .direction = Direction::kLower}};
  TrainingOptions training;
  training.early_stop_min_delta = 0.1;
  struct Expected {
    double loss;
    bool is_best;
    int64_t evaluations_without_best;
  };
  Counters c;
  for (const Expected& expected : std::vector<Expected>{{std::numeric_limits<double>::quiet_NaN(), false, 1},
                                                        {2.0, true, 0},
                                                        {1.95, true, 1},
                                                        {1.98, false, 2},
                                                        {std::numeric_limits<double>::quiet_NaN(), false, 3},
                                                        {1.875, true, 0}}) {
    EXPECT_EQ(count_evaluation(c, info, training, {{"valid_loss", expected.loss}}), expected.is_best) << expected.loss;
    EXPECT_EQ(c.evaluations_without_best, expected.evaluations_without_best) << expected.loss;
  }
  EXPECT_EQ(c.best_metric, -1.875);
}

}  // namespace
}  // namespace lockstep
