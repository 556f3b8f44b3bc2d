#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "runner/models/sasrec/hyper_connection.h"
#include "runner/models/sasrec/time_attention.h"
#include "runner/models/sasrec/tisasrec_model.h"
#include "tests/runner/models/sasrec_fixture.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMaxlen = 12;

SasrecOptions small_options() {
  SasrecOptions options;
  options.maxlen = kMaxlen;
  options.hidden_units = 16;
  options.num_heads = 2;
  options.tisasrec.time_span = 8;
  return options;
}

TisasrecModel make_model(const SasrecOptions& options) {
  TisasrecModel model(options, /*num_items=*/30, at::Device(at::kCPU));
  model.initialize(7);
  return model;
}

// Two samples: one full, one with padding.
at::Tensor items() {
  const at::Tensor items_BT = at::arange(1, 2 * kMaxlen + 1).view({2, kMaxlen});
  items_BT[1].narrow(0, 0, 5).zero_();
  return items_BT;
}

at::Tensor times() {
  const at::Tensor times_BT = (at::arange(0, 2 * kMaxlen).view({2, kMaxlen}) * 3).remainder(17) + 1;
  times_BT[1].narrow(0, 0, 5).zero_();
  return times_BT;
}

RunConfig tisasrec_config() {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).variant = SequenceVariant::kTisasrec;
  options_of<SasrecOptions>(config).tisasrec.time_span = 20;
  return config;
}

TEST(TimeAttention, relations_are_the_distances_up_to_the_span) {
  const at::Tensor relations = time_relations(torch::tensor({{0, 1, 4, 100}}, torch::kLong), 5);
  EXPECT_TRUE(relations.equal(torch::tensor({{{0, 1, 4, 5}, {1, 0, 3, 5}, {4, 3, 0, 5}, {5, 5, 5, 0}}}, torch::kLong)));
}

TEST(TimeAttention, products_with_the_table_give_what_a_row_for_each_pair_gives) {
  torch::manual_seed(1);
  const int64_t b = 3, h = 2, t = 7, d = 8, span = 5;
  const at::Tensor relations = time_relations(torch::randint(0, 12, {b, t}, torch::kLong), span);
  std::vector<at::Tensor> scores, values, gradients;
  const at::Tensor query = torch::randn({b, h, t, d / h}, torch::kDouble);
  const at::Tensor attention = torch::randn({b, h, t, t}, torch::kDouble).softmax(-1);
  const at::Tensor weights = torch::randn({span + 1, d}, torch::kDouble);
  for (const bool bucketed : {true, false}) {
    const at::Tensor table = weights.clone().requires_grad_();
    const at::Tensor rows = bucketed ? at::Tensor() : at::embedding(table, relations);
    scores.push_back(bucketed ? bucketed_time_scores(query, table, relations) : pairwise_time_scores(query, rows));
    values.push_back(bucketed ? bucketed_time_values(attention, table, relations)
                              : pairwise_time_values(attention, rows));
    (scores.back().square().sum() + values.back().pow(3).sum()).backward();
    gradients.push_back(table.grad());
  }
  EXPECT_TRUE(at::allclose(scores[0], scores[1], 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(values[0], values[1], 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(gradients[0], gradients[1], 1e-12, 1e-12));
}

TEST(TisasrecModel, has_the_names_and_shapes_of_the_public_implementation) {
  const TisasrecModel model = make_model(small_options());
  std::vector<std::string> first;
  for (size_t i = 0; i < 5; ++i) first.push_back(model.parameters()[i].name);
  EXPECT_THAT(first, ElementsAre("item_emb.weight", "abs_pos_K_emb.weight", "abs_pos_V_emb.weight",
                                 "time_matrix_K_emb.weight", "time_matrix_V_emb.weight"));
  EXPECT_EQ(model.parameters()[3].tensor.sizes(), at::IntArrayRef({9, 16}));
  EXPECT_EQ(model.parameters().back().name, "last_layernorm.bias");
  EXPECT_EQ(model.parameters().size(), 5U + 2 * (2 + 6 + 2 + 4) + 2);
}

// The published file: relations stop at 256, so that the other rows of the keys' table cannot be reached.
TEST(TisasrecModel, takes_the_rows_that_can_be_reached_of_a_longer_time_table) {
  const TisasrecModel model = make_model(small_options());
  const auto file_with = [&](int64_t key_rows, int64_t value_rows) {
    NamedTensors file = model.parameters();
    file[3].tensor = torch::rand({key_rows, 16});
    file[4].tensor = torch::rand({value_rows, 16});
    return file;
  };
  NamedTensors published = file_with(3417, 9);
  const at::Tensor keys = published[3].tensor;
  EXPECT_EQ(cut_time_table(published, 8), "time_matrix_K_emb.weight: the first 9 of 3417 rows");
  EXPECT_TRUE(published[3].tensor.equal(keys.narrow(0, 0, 9)));
  NamedTensors other_span = file_with(20, 20);
  EXPECT_EQ(cut_time_table(other_span, 8), "") << "all rows were trained: another --time_span";
  EXPECT_EQ(other_span[3].tensor.size(0), 20);
  NamedTensors fits = file_with(9, 9);
  EXPECT_EQ(cut_time_table(fits, 8), "");
}

TEST(TisasrecModel, without_dropout_both_forms_of_it_are_the_same_model) {
  SasrecOptions pairwise = small_options();
  pairwise.tisasrec.time_dropout = TimeDropout::kPairwise;
  const at::Tensor bucketed_BTD = make_model(small_options()).encode(items(), times());
  const at::Tensor pairwise_BTD = make_model(pairwise).encode(items(), times());
  EXPECT_TRUE(at::allclose(bucketed_BTD, pairwise_BTD, 1e-5, 1e-6));
}

TEST(TisasrecModel, does_not_look_ahead) {
  const TisasrecModel model = make_model(small_options());
  const at::Tensor later_items = items();
  const at::Tensor later_times = times();
  later_items.select(1, kMaxlen - 1).fill_(3);
  later_times.select(1, kMaxlen - 1).fill_(90);
  const at::Tensor before = model.encode(items(), times());
  const at::Tensor after = model.encode(later_items, later_times);
  EXPECT_TRUE(before.narrow(1, 0, kMaxlen - 1).equal(after.narrow(1, 0, kMaxlen - 1)));
  EXPECT_FALSE(before.equal(after));
}

TEST(TisasrecModel, sees_how_long_ago_an_event_was_and_not_when) {
  const TisasrecModel model = make_model(small_options());
  const at::Tensor full = items().narrow(0, 0, 1);
  const at::Tensor at_first = times().narrow(0, 0, 1);
  const at::Tensor sooner = at_first.clone();
  sooner[0][kMaxlen - 2] += 2;
  EXPECT_TRUE(at::allclose(model.encode(full, at_first), model.encode(full, at_first + 1000), 0, 0));
  EXPECT_FALSE(model.encode(full, at_first).equal(model.encode(full, sooner)));
}

TEST(TisasrecModel, without_times_has_no_time_tables_and_needs_no_times) {
  SasrecOptions options = small_options();
  options.tisasrec.no_time = true;
  const TisasrecModel model = make_model(options);
  for (const NamedTensor& p : model.parameters()) EXPECT_EQ(p.name.find("time_matrix"), std::string::npos) << p.name;
  EXPECT_TRUE(model.encode(items(), {}).isfinite().all().item<bool>());
}

TEST(TisasrecModel, its_penalty_is_the_sum_of_its_tables_norms) {
  const TisasrecModel model = make_model(small_options());
  double norms = 0.0;
  for (size_t i = 0; i < 5; ++i) norms += model.parameters()[i].tensor.norm().item<double>();
  EXPECT_NEAR(model.embedding_penalty().item<double>(), norms, 1e-5);
}

TEST(HyperConnection, comes_down_to_the_copies_and_a_gate) {
  torch::manual_seed(2);
  HyperConnection connection({.copies = 3}, 8, at::Device(at::kCPU));
  NamedTensors parameters;
  connection.add_parameters(parameters, "c");
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& p : parameters) p.tensor.normal_();
  const at::Tensor x = torch::randn({2, 4, 8});
  const at::Tensor f = torch::randn({2, 4, 8});
  EXPECT_TRUE(at::allclose(connection(x, at::zeros_like(f)), 3 * x, 1e-4, 1e-5));
  const at::Tensor gate = (connection(x, f) - 3 * x) / f;
  EXPECT_TRUE(at::allclose(gate, gate.narrow(2, 0, 1).expand_as(gate), 1e-2, 1e-3));
  EXPECT_TRUE((gate > 0).all().item<bool>() && (gate < 6).all().item<bool>());
}

TEST(TisasrecWorkload, every_parameter_gets_a_gradient) {
  for (const bool no_mhc : {true, false}) {
    RunConfig config = tisasrec_config();
    options_of<SasrecOptions>(config).tisasrec.no_mhc = no_mhc;
    const auto workload = make_small(config);
    (loss_of(*workload, batch_spec(0, 8)) + workload->regularization()).backward();
    for (const NamedTensor& p : parameters_of(*workload)) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
  }
}

TEST(TisasrecWorkload, micro_batches_add_up_to_the_batch_with_either_dropout) {
  for (const TimeDropout form : {TimeDropout::kTable, TimeDropout::kPairwise}) {
    RunConfig config = tisasrec_config();
    options_of<SasrecOptions>(config).tisasrec.time_dropout = form;
    const auto workload = make_small(config);
    const torch::NoGradGuard no_grad;
    const auto loss = [&](int64_t first, int64_t count) {
      return loss_of(*workload, batch_spec(first, count)).item<double>();
    };
    const double whole = loss(0, 12);
    EXPECT_NEAR(loss(0, 5) + loss(5, 7), whole, 1e-4 * whole);
  }
}

TEST(TisasrecWorkload, evaluates_to_the_same_figures_on_any_number_of_ranks) {
  const auto workload = make_small(tisasrec_config());
  const auto on_rank = [&](int rank, int world_size) {
    return evaluate(*workload, {.rank = rank, .world_size = world_size, .seed = 5, .samples_at_once = kUsersPerChunk});
  };
  const std::vector<MetricSum> alone = on_rank(0, 1);
  const std::vector<MetricSum> first = on_rank(0, 2);
  const std::vector<MetricSum> second = on_rank(1, 2);
  ASSERT_EQ(alone.size(), first.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(first[i].sum + second[i].sum, alone[i].sum) << alone[i].name;
    EXPECT_EQ(first[i].count + second[i].count, alone[i].count) << alone[i].name;
    EXPECT_GT(alone[i].count, 0.0);
  }
}

// Lines `user item rating timestamp`.
std::string ratings(const std::vector<std::vector<int64_t>>& times_of_users) {
  std::string text;
  for (size_t user = 0; user < times_of_users.size(); ++user) {
    for (size_t i = 0; i < times_of_users[user].size(); ++i) {
      text += std::to_string(user + 1) + "\t" + std::to_string(10 * user + i + 1) + "\t1\t" +
              std::to_string(times_of_users[user][i]) + "\n";
    }
  }
  return text;
}

std::vector<int64_t> times_of_first(const std::vector<int64_t>& times, TimeUnit unit) {
  const Result<SasrecData> data =
      SasrecData::create(dataset_from(ratings({times, times})), {.has_times = true, .time_unit = unit});
  EXPECT_TRUE(data.ok()) << data.error().message;
  if (!data.ok()) return {};
  const std::span<const int64_t> found = data->times_of(1);
  return {found.begin(), found.end()};
}

TEST(TisasrecData, times_count_from_the_first_in_the_user_s_smallest_gap) {
  EXPECT_THAT(times_of_first({1000, 1020, 1020, 1070}, TimeUnit::kUser), ElementsAre(1, 2, 2, 5));  // 3.5 → 4
  EXPECT_THAT(times_of_first({1000, 1020, 1050}, TimeUnit::kUser), ElementsAre(1, 2, 3));           // 2.5 → 2
}

TEST(TisasrecData, equal_times_are_one_time) {
  EXPECT_THAT(times_of_first({77, 77, 77}, TimeUnit::kUser), ElementsAre(1, 1, 1));
}

TEST(TisasrecData, decreasing_times_are_put_in_order) {
  EXPECT_THAT(times_of_first({30, 20, 10}, TimeUnit::kUser), ElementsAre(1, 2, 3));
}

TEST(TisasrecData, a_user_with_a_hundred_thousand_events_keeps_the_newest) {
  constexpr int64_t kEvents = 100'000;
  std::string text;
  for (int64_t i = kEvents; i-- > 0;) {  // the newest stand first
    text.append("1\t").append(std::to_string(1 + i % 500)).append("\t5\t").append(std::to_string(1000 + 60 * i));
    text += "\n";
  }
  text += "2\t501\t5\t1\n2\t502\t5\t2\n2\t503\t5\t3\n";
  const Result<SasrecData> data = SasrecData::create(dataset_from(text), {.has_times = true});
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->split(1).train.size(), kEvents - 2);
  std::vector<int64_t> seq(50);
  std::vector<int64_t> pos(50);
  std::vector<int64_t> neg(50);
  std::vector<int64_t> times(50);
  const BatchShare spec{.seed = 1, .step = 0, .epoch = 0, .first_slot = 0, .samples = {0}};
  EXPECT_EQ(data->fill_train_row(spec, 0, {.seq = seq, .pos = pos, .neg = neg, .times = times}), 50);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_EQ(times[i], times[i - 1] + 1);
  EXPECT_EQ(times.back(), kEvents - 3) << "the last input is the one before the last target";
  for (const int64_t item : neg) EXPECT_GT(item, 500);
}

TEST(TisasrecData, units_are_of_the_clock_where_one_is_given) {
  EXPECT_THAT(times_of_first({0, 3600, 3 * 3600 + 100}, TimeUnit::kHour), ElementsAre(1, 2, 4));
  EXPECT_THAT(times_of_first({0, 86400, 4 * 86400}, TimeUnit::kDay), ElementsAre(1, 2, 5));
  EXPECT_THAT(times_of_first({5, 6, 9}, TimeUnit::kSecond), ElementsAre(1, 2, 5));
}

TEST(TisasrecData, milliseconds_are_known_by_their_size) {
  constexpr int64_t kNow = 1'700'000'000'000;
  EXPECT_THAT(times_of_first({kNow, kNow + 60'000, kNow + 180'000}, TimeUnit::kMinute), ElementsAre(1, 2, 4));
  const Result<SasrecData> data = SasrecData::create(
      dataset_from(ratings({{kNow, kNow + 5, kNow + 9, kNow + 10}, {kNow, kNow + 1}})), {.has_times = true});
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->timestamp_unit(), "milliseconds");
}

TEST(TisasrecData, a_date_that_means_never_does_not_change_the_unit) {
  constexpr int64_t kNever = 253'402'300'799;  // 9999-12-31 in seconds, which as milliseconds would be 1978
  const Result<SasrecData> data = SasrecData::create(dataset_from(ratings({{0, 3600, 7200, kNever}, {1, 2, 3, 4}})),
                                                     {.has_times = true, .time_unit = TimeUnit::kHour});
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->timestamp_unit(), "");
  EXPECT_THAT(data->times_of(1), ElementsAre(1, 2, 3, (kNever + 1) / 3600 + 1));
}

TEST(TisasrecData, a_file_without_times_is_refused_with_the_ways_out) {
  const Result<SasrecData> data = SasrecData::create(dataset_from("1 1\n1 2\n1 3\n2 4\n2 5\n"), {.has_times = true});
  ASSERT_FALSE(data.ok());
  EXPECT_THAT(data.error().message, testing::AllOf(HasSubstr("test data"), HasSubstr("has no timestamps"),
                                                   HasSubstr("--no_time"), HasSubstr("--variant sasrec")));
}

TEST(TisasrecData, a_time_before_1970_is_refused) {
  const Result<SasrecData> data =
      SasrecData::create(dataset_from(ratings({{-5, 1, 2, 3}, {1, 2, 3}})), {.has_times = true});
  ASSERT_FALSE(data.ok());
  EXPECT_THAT(data.error().message, HasSubstr("found the timestamp -5"));
}

TEST(TisasrecData, rows_have_the_times_of_their_inputs) {
  const Result<SasrecData> data = SasrecData::create(dataset_from(ratings({{10, 20, 40, 50, 90}, {1, 2, 3, 4}})),
                                                     protocol_of({.variant = SequenceVariant::kTisasrec}));
  ASSERT_TRUE(data.ok()) << data.error().message;
  std::vector<int64_t> seq(4), pos(4), neg(4), times(4, -1);
  ASSERT_EQ(data->fill_train_row({.seed = 1, .samples = {0}}, 0, {.seq = seq, .pos = pos, .neg = neg, .times = times}),
            2);
  EXPECT_THAT(seq, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(times, ElementsAre(0, 0, 1, 2));
  data->fill_evaluation_row(1, EvaluationPass::kTest, seq, times);
  EXPECT_THAT(seq, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(times, ElementsAre(1, 2, 4, 5));
}

TEST(TisasrecData, candidates_are_none_of_the_held_out_items) {
  const Result<SasrecData> data =
      SasrecData::create(small_dataset(), {.has_times = true, .evaluation_events_min = 3, .excludes_held_out = true});
  ASSERT_TRUE(data.ok());
  std::vector<int64_t> candidates(500);
  for (int64_t user = 1; user <= 20; ++user) {
    const UserSplit split = data->split(user);
    data->draw_candidates(user, EvaluationPass::kTest, 5, candidates);
    EXPECT_THAT(candidates, testing::Not(testing::Contains(split.valid)));
    EXPECT_THAT(candidates, testing::Not(testing::Contains(split.test)));
    data->draw_candidates(user, EvaluationPass::kValid, 5, candidates);
    EXPECT_THAT(candidates, testing::Not(testing::Contains(split.valid)));
  }
}

TEST(TisasrecData, a_user_with_three_events_is_evaluated) {
  const Dataset dataset = dataset_from(ratings({{1, 2, 3}, {1, 2, 3, 4, 5}}));
  EXPECT_EQ(SasrecData::create(dataset, protocol_of({.variant = SequenceVariant::kTisasrec}))->evaluable_users(), 2);
  EXPECT_EQ(SasrecData::create(dataset, protocol_of({}))->evaluable_users(), 1);
}

}  // namespace
}  // namespace lockstep
