#include "runner/models/gpt2rec/gpt2rec_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/models/gpt2rec/data/generated_movies.h"
#include "runner/models/gpt2rec/gpt2rec_evaluation.h"
#include "runner/models/workload_flags.h"
#include "tests/support/disk.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RunConfig gpt2rec_config(std::vector<std::string> more = {}) {
  std::vector<std::string> line = {"gpt2rec", "--data_path", "generated", "--gpt2_config", "2x32"};
  line.insert(line.end(), more.begin(), more.end());
  Result<RunConfig> config = parse_run_config(line, all_workload_flags());
  EXPECT_TRUE(config.ok()) << config.error().message;
  return *config;
}

std::unique_ptr<Gpt2recWorkload> gpt2rec_workload(const std::vector<std::string>& more = {}, int64_t phase = 0) {
  const RunConfig config = gpt2rec_config(more);
  std::unique_ptr<TextEncoder> encoder =
      std::move(
          TextEncoder::make(disk(), text_encoder_options(options_of<Gpt2recOptions>(config)), at::Device(at::kCPU)))
          .value();
  std::unique_ptr<Gpt2recWorkload> workload =
      std::move(Gpt2recWorkload::create(config, generated_movies(), std::move(encoder), at::Device(at::kCPU))).value();
  workload->initialize(42);
  EXPECT_TRUE(workload->enter_phase(phase, [] { return true; }).ok());
  return workload;
}

BatchShare share_of_samples(int64_t first, int64_t end, int64_t phase = 0) {
  BatchShare share{.seed = 42, .step = 3, .epoch = 0, .phase = phase, .first_slot = first};
  for (int64_t sample = first; sample < end; ++sample) share.samples.push_back(7 * sample);
  return share;
}

at::Tensor loss_of(Gpt2recWorkload& workload, const BatchShare& share, bool is_training = true) {
  DeviceBatch batch{.share = share, .tensors = workload.fetch(share)->tensors};
  batch.is_training = is_training;
  return workload.loss(batch).at(0);
}

TEST(Gpt2recWorkload, begins_with_the_loss_of_a_guess) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--use_attention", "false"}, {"--num_negatives", "8"}}) {
    const auto workload = gpt2rec_workload(flags);
    EXPECT_NEAR(loss_of(*workload, share_of_samples(0, 512)).item<double>() / 512.0, std::log(2.0), 1e-3);
  }
}

TEST(Gpt2recWorkload, of_several_negatives_each_counts_by_the_softmax_of_their_scores) {
  const auto workload = gpt2rec_workload({"--num_negatives", "3"});
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters_of(*workload)) {
    if (parameter.name == "score_mlp.6.weight") parameter.tensor.mul_(1e4);  // scores that differ
  }
  const BatchShare share = share_of_samples(0, 20);
  const DeviceBatch batch{.share = share, .tensors = workload->fetch(share)->tensors};
  const at::Tensor texts_TW = workload->encode_all([] { return true; });
  const RecommenderModel& model = workload->model();
  const at::Tensor users_UH =
      model.user_term(model.users(batch["users_U"], {.vectors_TW = texts_TW, .rows_B = batch["user_texts_U"]}));
  const at::Tensor films_IH =
      model.item_term(model.items(batch["films_I"], {.vectors_TW = texts_TW, .rows_B = batch["film_texts_I"]}));
  Dropouts none;
  double expected = 0.0;
  for (int64_t sample = 0; sample < 20; ++sample) {
    const at::Tensor user_H = users_UH[batch["user_rows_B"][sample].item<int64_t>()];
    std::vector<double> scores;
    for (int64_t film = 0; film < 4; ++film) {
      const int64_t row = batch["film_rows_BM"][4 * sample + film].item<int64_t>();
      scores.push_back(model.score((user_H + films_IH[row]).unsqueeze(0), none).item<double>());
    }
    double sum = 0.0;
    for (size_t k = 1; k < 4; ++k) sum += std::exp(scores[k]);
    for (size_t k = 1; k < 4; ++k) expected += std::exp(scores[k]) / sum * std::log1p(std::exp(scores[k] - scores[0]));
  }
  EXPECT_NEAR(loss_of(*workload, share, /*is_training=*/false).item<double>(), expected, 1e-3 * expected);
}

TEST(Gpt2recWorkload, flops_of_a_sample_include_gpt2_only_in_phases_that_train_its_adapters) {
  const auto cached = gpt2rec_workload();
  const auto dynamic = gpt2rec_workload({"--use_cache", "false"});
  const Json facts = dynamic->shared_facts();
  const double tokens = facts.at("number of tokens").get<double>() / facts.at("number of distinct texts").get<double>();
  // Three texts; forward, and backward once as much; multiply and add; 12 d² weights in each of 2 layers of width 32.
  const double of_weights = 3.0 * tokens * 2.0 * 2.0 * 2.0 * 12.0 * 32.0 * 32.0;
  const double difference = dynamic->flops_per_sample() - cached->flops_per_sample();
  EXPECT_GT(difference, 0.9 * of_weights);  // the tokens of a text are rounded down
  EXPECT_LT(difference, 3.0 * of_weights);  // adapters and attention
  const std::vector<std::string> two_phases = {"--preset", "two_phase"};
  EXPECT_EQ(gpt2rec_workload(two_phases, 0)->flops_per_sample(), cached->flops_per_sample());
  EXPECT_EQ(gpt2rec_workload(two_phases, 1)->flops_per_sample(), dynamic->flops_per_sample());
}

TEST(Gpt2recWorkload, says_what_takes_less_memory) {
  EXPECT_THAT(gpt2rec_workload()->memory_advice(),
              HasSubstr("a smaller --embed_dim (now 64) takes less (--use_cache false takes more)"));
  EXPECT_THAT(gpt2rec_workload({"--use_cache", "false"})->memory_advice(),
              HasSubstr("a smaller --max_length (now 128 tokens) takes less, and so does --use_cache true"));
  EXPECT_THAT(gpt2rec_workload({"--preset", "two_phase"}, 1)->memory_advice(), HasSubstr("--phase2_cache"));
  // While the texts of a cached phase are being encoded.
  const auto entering = gpt2rec_workload({"--preset", "two_phase"}, 1);
  ASSERT_TRUE(entering->enter_phase(0, [] { return false; }).ok());
  EXPECT_THAT(entering->memory_advice(),
              AllOf(HasSubstr("a smaller --max_length (now 128 tokens) takes less"), Not(HasSubstr("cache"))));
}

TEST(Gpt2recWorkload, no_parameter_is_left_without_a_gradient) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--use_attention", "false"}, {"--use_cache", "false"}}) {
    const auto workload = gpt2rec_workload(flags);
    loss_of(*workload, share_of_samples(0, 64)).backward();
    for (const NamedTensor& parameter : parameters_of(*workload)) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
      // The difference of two scores does not depend on what is added to each.
      if (parameter.name == "score_mlp.6.bias") continue;
      // lora_B begins at 0, and lora_A learns when it has left it.
      const bool begins_later = parameter.name.find("lora_A") != std::string::npos;
      EXPECT_EQ(parameter.tensor.grad().abs().max().item<double>() > 0.0, !begins_later) << parameter.name;
    }
  }
}

TEST(Gpt2recWorkload, adapters_are_a_group_with_a_rate_of_their_own_and_rest_in_a_cached_phase) {
  const auto two = gpt2rec_workload({"--preset", "two_phase"});
  const std::vector<ParameterGroup> groups = two->groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].lr_factor, 1.0);
  EXPECT_EQ(groups[1].name, "adapters");
  EXPECT_EQ(groups[1].parameters.size(), 12U);
  for (const NamedTensor& adapter : groups[1].parameters) EXPECT_THAT(adapter.name, HasSubstr(".lora_"));
  // Both decay by --weight_decay.
  for (const ParameterGroup& group : groups) EXPECT_FALSE(group.weight_decay.has_value()) << group.name;
  const std::vector<TrainingPhase> phases = two->info().phases;
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0].epochs_flag, "phase1_epochs");
  EXPECT_EQ(phases[1].epochs_flag, "phase2_epochs");
  EXPECT_EQ(phases[0].lr, std::optional<double>(1e-4));
  EXPECT_EQ(phases[1].lr, std::optional<double>(5e-5));
  EXPECT_DOUBLE_EQ(*phases[1].lr * groups[1].lr_factor, 1e-5);
  EXPECT_EQ(phases[0].clip_grad_norm, std::optional<double>(1.0));
  EXPECT_EQ(phases[1].clip_grad_norm, std::optional<double>(0.5));
  EXPECT_THAT(phases[0].frozen, ElementsAre("adapters"));
  EXPECT_TRUE(phases[1].frozen.empty());

  EXPECT_EQ(gpt2rec_workload({"--use_cache", "false", "--gpt2_lr_factor", "0.5"})->groups()[1].lr_factor, 0.5);
  // Where no phase trains them they are no part of the state.
  EXPECT_EQ(gpt2rec_workload()->groups().size(), 1U);
  EXPECT_EQ(gpt2rec_workload()->info().phases.at(0).epochs_flag, "num_epochs");
  const auto cached = gpt2rec_workload({"--preset", "two_phase", "--phase2_cache"});
  EXPECT_EQ(cached->groups().size(), 1U);
  EXPECT_TRUE(cached->info().phases[0].frozen.empty());
}

TEST(Gpt2recWorkload, has_the_published_numbers_of_parameters) {
  RecommenderModel model({.num_users = 6041, .num_items = 3953, .text_width = 768}, at::Device(at::kCPU));
  int64_t used = 0;
  for (const NamedTensor& parameter : model.parameters()) used += parameter.tensor.numel();
  int64_t unused = 0;
  for (const NamedTensor& tensor : model.unused(1)) unused += tensor.tensor.numel();
  EXPECT_EQ(used + unused, 839'905);
}

TEST(Gpt2recWorkload, a_batch_in_parts_has_the_loss_of_the_whole_with_dropout_on) {
  for (const char* const cache : {"true", "false"}) {
    const auto workload = gpt2rec_workload({"--use_cache", cache, "--dropout", "0.4", "--lora_dropout", "0.3"});
    // Adapters that are still 0 drop nothing out.
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : parameters_of(*workload)) parameter.tensor.add_(0.05);
    const double whole = loss_of(*workload, share_of_samples(0, 90)).item<double>();
    const double parts = loss_of(*workload, share_of_samples(0, 20)).item<double>() +
                         loss_of(*workload, share_of_samples(20, 21)).item<double>() +
                         loss_of(*workload, share_of_samples(21, 90)).item<double>();
    EXPECT_NEAR(parts, whole, 1e-4 * whole) << cache;
    EXPECT_NE(loss_of(*workload, share_of_samples(0, 90), /*is_training=*/false).item<double>(), whole);
  }
}

TEST(Gpt2recWorkload, cached_and_encoded_texts_give_the_same_loss_while_nothing_is_dropped_out) {
  const std::vector<std::string> flags = {"--phase1_epochs", "1", "--phase2_epochs", "1"};
  const auto cached = gpt2rec_workload(flags, 0);
  const auto dynamic = gpt2rec_workload(flags, 1);
  const double expected = loss_of(*cached, share_of_samples(0, 60, 0), false).item<double>();
  EXPECT_NEAR(loss_of(*dynamic, share_of_samples(0, 60, 1), false).item<double>(), expected, 1e-4 * expected);
}

TEST(Gpt2recWorkload, a_text_is_encoded_once_in_a_batch_and_in_short_company) {
  const auto workload = gpt2rec_workload({"--use_cache", "false"});
  const Result<HostBatch> batch = workload->fetch(share_of_samples(0, 600));
  std::set<int64_t> texts;
  int64_t places = 0;
  int64_t tokens = 0;
  for (const NamedTensor& tensor : batch->tensors) {
    if (tensor.name.starts_with("texts_N")) {
      for (int64_t i = 0; i < tensor.tensor.numel(); ++i) {
        EXPECT_TRUE(texts.insert(tensor.tensor[i].item<int64_t>()).second);
      }
    }
    if (tensor.name.starts_with("tokens_NT")) places += tensor.tensor.numel();
    if (tensor.name.starts_with("lengths_N")) tokens += tensor.tensor.sum().item<int64_t>();
  }
  EXPECT_GT(texts.size(), 100U);
  EXPECT_LT(static_cast<double>(places), 1.2 * static_cast<double>(tokens));
}

TEST(Gpt2recWorkload, a_stop_leaves_the_phase_as_it_was) {
  const auto workload = gpt2rec_workload({"--phase1_epochs", "1", "--phase2_epochs", "1", "--phase2_cache"});
  const double before = loss_of(*workload, share_of_samples(0, 8), false).item<double>();
  EXPECT_TRUE(workload->enter_phase(1, [] { return false; }).ok());
  EXPECT_EQ(loss_of(*workload, share_of_samples(0, 8), false).item<double>(), before);
}

using RankedSums = std::map<std::string, std::pair<double, double>>;

RankedSums evaluated_by(Gpt2recWorkload& workload, int world_size) {
  RankedSums sums;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto parts = workload.evaluate({.rank = rank, .world_size = world_size, .seed = 5});
    for (const MetricSum& part : *parts) {
      sums[part.name].first += part.sum;
      sums[part.name].second += part.count;
    }
  }
  return sums;
}

TEST(Gpt2recEvaluation, figures_are_equal_to_the_last_bit_for_one_to_four_ranks) {
  const auto workload = gpt2rec_workload();
  const RankedSums alone = evaluated_by(*workload, 1);
  EXPECT_EQ(alone.size(), 16U);
  const RecommenderData& data = workload->data();
  EXPECT_EQ(alone.at("valid_ndcg@10").second, static_cast<double>(data.validated().users().size()));
  EXPECT_EQ(alone.at("test_ndcg@10").second, static_cast<double>(data.tested().users().size()));
  EXPECT_GT(data.validated().users().size(), 300U);
  EXPECT_GT(alone.at("test_cold_ndcg@10").second, 200.0);
  for (const int world_size : {2, 3, 4, 25}) EXPECT_EQ(evaluated_by(*workload, world_size), alone) << world_size;
}

TEST(Gpt2recEvaluation, training_films_can_be_left_out_of_the_validation) {
  const RankedSums all = evaluated_by(*gpt2rec_workload(), 1);
  const RankedSums unseen = evaluated_by(*gpt2rec_workload({"--valid_seen", "false"}), 1);
  for (const auto& [name, sum] : all) {
    EXPECT_EQ(unseen.at(name).second, sum.second) << name;
    if (name.starts_with("valid_")) {
      EXPECT_GE(unseen.at(name).first, sum.first) << name;  // fewer films can come before those that are looked for
    } else {
      EXPECT_EQ(unseen.at(name).first, sum.first) << name;
    }
  }
  EXPECT_GT(unseen.at("valid_ndcg@50").first, all.at("valid_ndcg@50").first);
}

TEST(RecommenderModel, scores_all_pairs_as_it_scores_those_of_a_step) {
  RecommenderModel model({.num_users = 3, .num_items = 40, .text_width = 8}, at::kCPU);
  model.initialize(5);
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& parameter : model.parameters()) parameter.tensor.add_(at::randn_like(parameter.tensor) * 0.1);
  const at::Tensor user_terms_UH = at::randn({3, 128});
  const at::Tensor item_terms_IH = at::randn({40, 128});
  Dropouts none;
  const at::Tensor wanted_UI = model.score(user_terms_UH.unsqueeze(1) + item_terms_IH.unsqueeze(0), none);
  EXPECT_LT((model.scores(user_terms_UH, item_terms_IH) - wanted_UI).abs().max().item<double>(), 1e-5);
  EXPECT_GT(wanted_UI.abs().max().item<double>(), 1e-2);
}

TEST(Gpt2recEvaluation, figures_of_one_ranking_are_those_of_the_definitions) {
  const std::vector<int32_t> ranking = {5, 2, 9, 7};
  const std::vector<int32_t> wanted = {2, 7, 8};
  const RankingFigures at4 = ranking_figures(ranking, wanted, 4);
  const double gained = 1.0 / std::log2(3.0) + 1.0 / std::log2(5.0);
  EXPECT_NEAR(at4.ndcg, gained / (1.0 + 1.0 / std::log2(3.0) + 0.5), 1e-8);
  EXPECT_NEAR(at4.recall, 2.0 / 3.0, 1e-8);
  EXPECT_EQ(at4.precision, 0.5);
  EXPECT_EQ(at4.hit, 1.0);
  // The best that two places can reach.
  EXPECT_NEAR(ranking_figures(ranking, wanted, 2).ndcg, (1.0 / std::log2(3.0)) / (1.0 + 1.0 / std::log2(3.0)), 1e-8);
  EXPECT_EQ(ranking_figures(ranking, wanted, 1).hit, 0.0);
  EXPECT_EQ(ranking_figures({}, wanted, 10).ndcg, 0.0);
}

TEST(Gpt2recWorkload, leaves_its_files_when_the_validation_has_improved_and_remembers_it) {
  const auto workload = gpt2rec_workload({"--use_cache", "false", "--model_path", "best.pt"});
  const auto report = [](double ndcg) {
    return Workload::EvaluationReport{.epoch = 1, .metrics = {{"valid_ndcg@10", ndcg}, {"test_ndcg@10", ndcg}}};
  };
  EXPECT_THAT(workload->outputs(report(0.2)),
              ElementsAre("test_results_standard.json", "best.pt", "lora/adapter_config.json",
                          "lora/adapter_model.safetensors"));
  EXPECT_TRUE(workload->outputs(report(0.2)).empty());
  EXPECT_TRUE(workload->outputs(report(std::nan(""))).empty());
  const auto resumed = gpt2rec_workload({"--no_save_model"});
  ASSERT_TRUE(resumed->restore_progress(*parse_json(dump_line(workload->progress_state()), "state")).ok());
  EXPECT_TRUE(resumed->outputs(report(0.1)).empty());
  EXPECT_THAT(resumed->outputs(report(0.3)), ElementsAre("test_results_standard.json"));
  EXPECT_FALSE(resumed->restore_progress(Json::object()).ok());
}

struct RefusedLine {
  std::vector<std::string> flags;
  const char* message;
};

TEST(Gpt2recFlags, contradictions_are_errors_that_name_what_to_give) {
  const RefusedLine lines[] = {
      {{"--epochs", "5", "--phase1_epochs", "2"}, "give --phase1_epochs and --phase2_epochs instead"},
      {{"--preset", "two_phase", "--lr", "1"}, "give --phase1_lr and --phase2_lr instead"},
      {{"--phase2_epochs", "2", "--use_cache", "false"}, "give --phase2_cache instead"},
      {{"--phase1_lr", "2"}, "add --preset two_phase"},
      {{"--split_ratio", "0.8,0.1"}, "expected three numbers that sum to 1"},
      {{"--split_ratio", "0.8,0.1,0.2"}, "expected three numbers that sum to 1"},
      {{"--split_ratio", "0,0.5,0.5"}, "expected three numbers that sum to 1"},
      {{"--split_ratio", "0.9,0,0.1"}, "sum to 1, the first two above 0, as 0.8,0.1,0.1"},
      {{"--gpt2_config", "2x"}, "expected LAYERSxWIDTH"},
      {{"--gpt2_config", "2x100"}, "expected LAYERSxWIDTH"},
      {{"--model_path", "../x.pth"}, "expected a file's name that ends in .pth or .pt"}};
  for (const RefusedLine& line : lines) {
    std::vector<std::string> words = {"gpt2rec", "--data_path", "generated"};
    words.insert(words.end(), line.flags.begin(), line.flags.end());
    const Result<RunConfig> config = parse_run_config(words, all_workload_flags());
    ASSERT_FALSE(config.ok()) << line.message;
    EXPECT_THAT(config.error().message, HasSubstr(line.message));
  }
  EXPECT_THAT(parse_run_config({"gpt2rec"}, all_workload_flags()).error().message,
              HasSubstr("--data_path is required"));
}

TEST(Gpt2recFlags, the_guides_words_and_the_two_phases_are_understood) {
  const RunConfig guide =
      gpt2rec_config({"--epochs", "50", "--lr", "1e-3", "--batch_size", "2048", "--split_ratio", "0.8,0.1,0.1",
                      "--embed_dim", "64", "--use_multi_gpu", "false", "--eval_step", "2", "--device", "cuda"});
  EXPECT_EQ(guide.training.batch_scope, BatchScope::kPerDevice);
  EXPECT_EQ(guide.training.eval_every, 2);
  EXPECT_EQ(guide.launch.multi_gpu, std::optional<bool>(false));
  ASSERT_EQ(recommender_phases(guide).size(), 1U);
  EXPECT_TRUE(recommender_phases(guide)[0].is_cached);
  const Result<SettledRun> settled =
      settled_run(disk(), guide, {"gpt2rec", "--data_path", "generated", "--device", "cuda"}, all_workload_flags());
  EXPECT_EQ(settled->config.launch.device, DeviceChoice::kAuto);
  EXPECT_THAT(settled->remark, HasSubstr("--device cuda means auto here"));

  const RunConfig two = gpt2rec_config({"--phase1_epochs", "3"});
  const std::vector<RecommenderPhase> phases = recommender_phases(two);
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0].num_epochs, 3);
  EXPECT_EQ(phases[1].num_epochs, 30);
  EXPECT_TRUE(phases[0].is_cached);
  EXPECT_FALSE(phases[1].is_cached);
  EXPECT_EQ(phases[1].clip_grad_norm, 0.5);
  EXPECT_EQ(two.training.optimizer, OptimizerKind::kAdamw);
  EXPECT_EQ(two.training.weight_decay, 1e-5);
  EXPECT_EQ(guide.training.weight_decay, 0.0);
}

}  // namespace
}  // namespace lockstep
