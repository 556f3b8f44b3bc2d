#include "runner/models/sasrec/sasrec_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/runner/models/sasrec_fixture.h"

namespace lockstep {
namespace {

struct Row {
  explicit Row(size_t maxlen) : seq(maxlen), pos(maxlen), neg(maxlen) {}
  SasrecData::TrainRow view() { return {.seq = seq, .pos = pos, .neg = neg}; }
  std::vector<int64_t> seq, pos, neg;
};

SasrecData data_from(Dataset dataset) {
  Result<SasrecData> data = SasrecData::create(std::move(dataset), {});
  EXPECT_TRUE(data.ok());
  return std::move(data).value();
}

// User 1: seven events; user 2: three (trained on whole); user 3: one; user 4: four (two of them trained on).
const char* const kFourUsers =
    "1 1\n1 2\n1 3\n1 4\n1 5\n1 6\n1 7\n"
    "2 8\n2 9\n2 10\n"
    "3 11\n"
    "4 1\n4 5\n4 9\n4 12\n";

TEST(SasrecData, input_and_targets_are_shifted_by_one_and_right_aligned) {
  const SasrecData data = data_from(dataset_from(kFourUsers));
  Row row(6);
  const BatchShare spec{.seed = 1, .step = 0, .epoch = 0, .first_slot = 0, .samples = {0, 1}};
  EXPECT_EQ(data.fill_train_row(spec, 0, row.view()), 4);  // trains on 1 … 5; 6 and 7 are held out
  EXPECT_EQ(row.seq, (std::vector<int64_t>{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(row.pos, (std::vector<int64_t>{0, 0, 2, 3, 4, 5}));
  EXPECT_EQ(row.neg[0], 0);
  EXPECT_EQ(row.neg[1], 0);
  EXPECT_EQ(data.fill_train_row(spec, 1, row.view()), 2);
  EXPECT_EQ(row.seq, (std::vector<int64_t>{0, 0, 0, 0, 8, 9}));
}

TEST(SasrecData, long_histories_keep_their_newest_events) {
  const SasrecData data = data_from(dataset_from(kFourUsers));
  Row row(3);
  EXPECT_EQ(data.fill_train_row({.seed = 1, .samples = {0}}, 0, row.view()), 3);
  EXPECT_EQ(row.seq, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(row.pos, (std::vector<int64_t>{3, 4, 5}));
}

TEST(SasrecData, negatives_are_never_among_the_items_trained_on) {
  const SasrecData data = data_from(small_dataset());
  Row row(12);
  for (int64_t user = 1; user <= data.num_users(); ++user) {
    const auto trained = data.trained_on(user);
    const BatchShare spec{.seed = 1, .step = 9, .epoch = 0, .first_slot = user, .samples = {user - 1}};
    const int64_t positives = data.fill_train_row(spec, 0, row.view());
    for (size_t i = 12 - static_cast<size_t>(positives); i < 12; ++i) {
      EXPECT_GE(row.neg[i], 1);
      EXPECT_LE(row.neg[i], data.num_items());
      EXPECT_FALSE(std::binary_search(trained.begin(), trained.end(), static_cast<int32_t>(row.neg[i])));
    }
  }
}

TEST(SasrecData, negatives_reach_every_item_left_even_when_one_is_left) {
  // User 1 trains on items 1 … 5 of 6; user 2 only makes item 6 exist.
  const SasrecData data = data_from(dataset_from("1 1\n1 2\n1 3\n1 4\n1 5\n1 1\n1 2\n2 6\n2 5\n"));
  Row row(8);
  for (int64_t step = 0; step < 50; ++step) {
    ASSERT_EQ(data.fill_train_row({.seed = 1, .step = step, .samples = {0}}, 0, row.view()), 4);
    EXPECT_EQ(std::vector<int64_t>(row.neg.end() - 4, row.neg.end()), (std::vector<int64_t>{6, 6, 6, 6}));
  }
}

TEST(SasrecData, a_user_without_a_target_is_replaced_by_a_random_one_of_its_slot) {
  const SasrecData data = data_from(dataset_from(kFourUsers));
  EXPECT_EQ(data.usable_users(), 3);
  std::set<std::vector<int64_t>> seen;
  for (int64_t slot = 0; slot < 40; ++slot) {
    Row row(6);
    const BatchShare spec{.seed = 1, .step = 0, .epoch = 0, .first_slot = slot, .samples = {2}};
    EXPECT_GT(data.fill_train_row(spec, 0, row.view()), 0);
    seen.insert(row.seq);
  }
  EXPECT_EQ(seen.size(), 3U);
}

TEST(SasrecData, users_with_fewer_than_four_events_are_not_evaluated) {
  const SasrecData data = data_from(dataset_from(kFourUsers));
  EXPECT_EQ(data.evaluation_users(0, 1), (std::vector<int64_t>{1, 4}));
}

TEST(SasrecData, the_test_pass_sees_the_validation_item_last) {
  const SasrecData data = data_from(dataset_from(kFourUsers));
  std::vector<int64_t> seq(4);
  data.fill_evaluation_row(1, EvaluationPass::kValid, seq);
  EXPECT_EQ(seq, (std::vector<int64_t>{2, 3, 4, 5}));
  data.fill_evaluation_row(1, EvaluationPass::kTest, seq);
  EXPECT_EQ(seq, (std::vector<int64_t>{3, 4, 5, 6}));
}

TEST(SasrecData, a_limited_evaluation_takes_the_same_users_for_the_same_seed) {
  const SasrecData data = data_from(small_dataset());
  const std::vector<int64_t> users = data.evaluation_users(50, 1);
  EXPECT_EQ(users.size(), 50U);
  EXPECT_EQ(std::set<int64_t>(users.begin(), users.end()).size(), 50U);
  EXPECT_EQ(users, data.evaluation_users(50, 1));
  EXPECT_NE(users, data.evaluation_users(50, 2));
}

TEST(SasrecData, nothing_to_train_on_is_an_error_that_names_the_file) {
  const Result<SasrecData> data = SasrecData::create(dataset_from("1 1\n2 2\n3 3\n"), {});
  ASSERT_FALSE(data.ok());
  EXPECT_NE(data.error().message.find("test data: nothing to train on"), std::string::npos) << data.error().message;
}

}  // namespace
}  // namespace lockstep
