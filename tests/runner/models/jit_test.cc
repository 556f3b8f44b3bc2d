#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "runner/base/file_system.h"
#include "runner/models/jit/data/prepare_images.h"
#include "runner/models/jit/frechet_distance.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/jit_model.h"
#include "runner/models/jit/jit_sampling.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunConfig jit_config(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"jit", "--img_size", "8", "--model", "2x64/4"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return *parse_run_config(arguments, all_workload_flags());
}

std::unique_ptr<JitWorkload> jit_workload(const RunConfig& config) {
  PosixFileSystem fs;
  const JitOptions& options = options_of<JitOptions>(config);
  auto workload =
      JitWorkload::create(config, *prepare_images(fs, options.data_path, options.image_size, "", {}), at::kCPU);
  (*workload)->initialize(config.training.seed);
  return std::move(*workload);
}

int64_t parameters_in(const JitModel& model) {
  const NamedTensors& all = model.parameters();
  return std::accumulate(all.begin(), all.end(), int64_t{0},
                         [](int64_t sum, const NamedTensor& p) { return sum + p.tensor.numel(); });
}

TEST(Jit, validation_on_training_images_has_no_flips_no_drops_and_noise_of_its_own) {
  const auto workload =
      jit_workload(jit_config({"--data_path", "generated:40:4", "--valid_images", "0", "--label_drop_prob", "0.9"}));
  BatchShare share{.split = Split::kTrain, .seed = 1, .epoch = 0, .samples = {}};
  for (int64_t sample = 0; sample < 40; ++sample) share.samples.push_back(sample);
  const DeviceBatch trained{.share = {}, .tensors = workload->fetch(share)->tensors};
  EXPECT_TRUE(trained["is_mirrored_B"].any().item<bool>());
  EXPECT_TRUE((trained["classes_B"] == 4).any().item<bool>());
  share.split = Split::kValidation;
  const DeviceBatch validated{.share = {}, .tensors = workload->fetch(share)->tensors};
  EXPECT_FALSE(validated["is_mirrored_B"].any().item<bool>());
  EXPECT_FALSE((validated["classes_B"] == 4).any().item<bool>());
  EXPECT_FALSE(at::allclose(validated["noise_BCHH"], trained["noise_BCHH"]));
  EXPECT_FALSE(at::allclose(validated["t_B"], trained["t_B"]));
  EXPECT_TRUE(at::equal(validated["noise_BCHH"], workload->fetch(share)->tensors.back().tensor))
      << "the same each time";
}

TEST(Jit, has_the_published_size) {
  const RunConfig config = *parse_run_config({"jit", "--data_path", "generated"}, all_workload_flags());
  const JitModel model(jit_shape(options_of<JitOptions>(config), 10), at::kMeta);
  EXPECT_EQ(parameters_in(model), 129'717'552);
  EXPECT_NEAR(model.flops_per_image(), 2 * 25.0e9, 0.2e9);  // published: 25 billion products
}

TEST(Jit, has_the_published_sizes_of_256_and_512_pixels) {
  struct Published {
    std::string side;
    std::string model;
    int64_t parameters;
  };
  const std::vector<Published> sizes = {{"256", "JiT-B/16", 131'123'712}, {"256", "JiT-L/16", 458'877'664},
                                        {"256", "JiT-H/16", 952'514'368}, {"512", "JiT-B/32", 133'190'400},
                                        {"512", "JiT-L/32", 461'534'176}, {"512", "JiT-H/32", 956'055'616}};
  for (const auto& [side, model, parameters] : sizes) {
    const RunConfig config = *parse_run_config(
        {"jit", "--data_path", "generated", "--img_size", side, "--model", model}, all_workload_flags());
    EXPECT_EQ(parameters_in(JitModel(jit_shape(options_of<JitOptions>(config), 1000), at::kMeta)), parameters) << model;
  }
}

TEST(Jit, modulates_all_blocks_in_one_product_as_in_one_for_each) {
  const RunConfig config = jit_config({"--data_path", "generated:20"});
  const JitModel model(jit_shape(options_of<JitOptions>(config), 1), at::kCPU);
  {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : model.parameters()) parameter.tensor.normal_();  // initialize() leaves zeros
  }
  const at::Tensor condition_BD = torch::randn({3, model.shape().hidden_dim});
  const std::vector<at::Tensor> together = model.modulations(condition_BD, /*in_one_product=*/true);
  const std::vector<at::Tensor> apart = model.modulations(condition_BD, /*in_one_product=*/false);
  ASSERT_EQ(together.size(), static_cast<size_t>(model.shape().depth));
  ASSERT_EQ(apart.size(), together.size());
  for (size_t i = 0; i < apart.size(); ++i) EXPECT_TRUE(torch::allclose(together[i], apart[i], 1e-4, 1e-4)) << i;
}

// The prediction is 0 at the start, so the loss is E[x²] · E[1 / max(1 − t, 0.05)²], and the second factor is 2.966.
// The gradients of all parameters, which are drawn here so that none is 0.
std::vector<at::Tensor> gradients_on(at::Device device, at::ScalarType type) {
  const RunConfig config = jit_config({"--data_path", "generated:20", "--model", "6x64/4"});
  const JitModel model(jit_shape(options_of<JitOptions>(config), 3), device);
  torch::manual_seed(11);
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& p : model.parameters()) {
      const double mean = p.name.find("norm") == std::string::npos ? 0.0 : 1.0;
      p.tensor.copy_(torch::randn(p.tensor.sizes()) * 0.1 + mean);
    }
  }
  const at::Tensor z_BCHH = torch::randn({5, 3, 8, 8}).to(device);
  const at::Tensor t_B = torch::rand({5}).to(device);
  const at::Tensor classes_B = torch::tensor({0, 1, 2, 3, 1}, at::kLong).to(device);
  at::autocast::set_autocast_enabled(device.type(), type != at::kFloat);
  at::autocast::set_autocast_dtype(device.type(), type == at::kFloat ? at::kBFloat16 : type);
  const at::Tensor loss = (model(z_BCHH, t_B, classes_B).to(at::kFloat) - z_BCHH).square().mean();
  at::autocast::set_autocast_enabled(device.type(), false);
  at::autocast::clear_cache();
  loss.backward();
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& p : model.parameters()) gradients.push_back(p.tensor.grad().cpu());
  return gradients;
}

void expect_gradients_of_fp32(at::Device device) {
  const std::vector<at::Tensor> expected = gradients_on(at::kCPU, at::kFloat);
  struct Way {
    at::ScalarType type;
    double most;
  };
  for (const auto& [type, most] : {Way{at::kFloat, 1e-3}, Way{at::kBFloat16, 0.1}}) {
    const std::vector<at::Tensor> found = gradients_on(device, type);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), at::kFloat);
      const double off = ((found[i] - expected[i]).norm() / expected[i].norm()).item<double>();
      EXPECT_LT(off, most) << "parameter " << i << " in " << type;
    }
  }
}

TEST(Jit, has_the_same_gradients_under_autocast) { expect_gradients_of_fp32(at::kCPU); }

TEST(JitOnCuda, has_the_gradients_of_the_cpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU on this machine";
  expect_gradients_of_fp32(at::kCUDA);
}

TEST(Jit, begins_with_the_loss_that_follows_from_the_times) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:6000", "--valid_images", "0"}));
  BatchShare share{.seed = 7, .samples = std::vector<int64_t>(6000)};
  std::iota(share.samples.begin(), share.samples.end(), int64_t{0});
  const DeviceBatch batch{.share = share, .tensors = workload->fetch(share)->tensors};
  const torch::NoGradGuard no_grad;
  const double loss = workload->loss(batch)[0].item<double>() / 6000.0;
  const double mean_square = (batch["pixels_BHHC"].to(at::kFloat) / 127.5 - 1.0).square().mean().item<double>();
  EXPECT_NEAR(loss / mean_square, 2.966, 0.2);
}

TEST(Jit, draws_for_an_image_the_same_whatever_is_beside_it_and_others_in_the_next_epoch) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:40:2"}));
  const auto noise_of = [&](int64_t epoch, std::vector<int64_t> samples, int64_t row) {
    const HostBatch batch = *workload->fetch({.seed = 7, .epoch = epoch, .samples = std::move(samples)});
    return DeviceBatch{.share = {}, .tensors = batch.tensors}["noise_BCHH"][row].clone();
  };
  EXPECT_TRUE(noise_of(0, {3, 5}, 1).equal(noise_of(0, {5}, 0)));
  EXPECT_FALSE(noise_of(0, {5}, 0).equal(noise_of(1, {5}, 0)));
  EXPECT_NEAR(noise_of(0, {5}, 0).std().item<double>(), 1.0, 0.2);
}

TEST(Jit, mirrors_and_drops_classes_in_training_alone) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:200:2", "--label_drop_prob", "0.5"}));
  const auto batch_of = [&](Split split) {
    const auto source = *workload->batches({.split = split, .seed = 7, .global_batch = 20});
    const BatchShare share{.split = split, .seed = 7, .samples = source->batch(0, 0)};
    return DeviceBatch{.share = share, .tensors = workload->fetch(share)->tensors};
  };
  const DeviceBatch training = batch_of(Split::kTrain);
  EXPECT_GT(training["is_mirrored_B"].sum().item<int64_t>(), 0);
  EXPECT_LT(training["is_mirrored_B"].sum().item<int64_t>(), 20);
  EXPECT_GT((training["classes_B"] == 2).sum().item<int64_t>(), 0);
  const DeviceBatch validation = batch_of(Split::kValidation);
  EXPECT_EQ(validation["is_mirrored_B"].sum().item<int64_t>(), 0);
  EXPECT_EQ((validation["classes_B"] == 2).sum().item<int64_t>(), 0);
}

TEST(Jit, keeps_images_from_training_to_validate) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:200:2", "--valid_images", "15"}));
  const auto train = *workload->batches({.split = Split::kTrain, .seed = 7, .global_batch = 50});
  const auto valid = *workload->batches({.split = Split::kValidation, .seed = 7, .global_batch = 50});
  EXPECT_EQ(train->steps(0), 3) << "185 images: what fills no batch is left out";
  EXPECT_EQ(valid->batch(0, 0).size(), 15U);
  EXPECT_EQ(valid->batch(0, 0).front(), 185);
}

TEST(Jit, says_what_takes_less_memory) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20"}));
  EXPECT_THAT(workload->memory_advice(), Not(HasSubstr("--use_amp")));  // it is on
  EXPECT_THAT(jit_workload(jit_config({"--data_path", "generated:20", "--no_use_amp"}))->memory_advice(),
              HasSubstr("--use_amp"));
  EXPECT_THAT(workload->memory_advice(), HasSubstr("--model (now 2x64/4)"));
}

TEST(Jit, samples_as_many_images_at_once_as_it_trains_on_and_asks_before_each_forward) {
  const auto workload =
      jit_workload(jit_config({"--data_path", "generated:20", "--sample_images", "5", "--sample_steps", "3"}));
  const auto sampled = [&](int64_t at_once, int& asked) {
    std::string pixels;
    EvaluationShard shard;
    shard.samples_at_once = at_once;
    shard.goes_on = [&asked] { return ++asked > 0; };
    shard.loss = [](const DeviceBatch&) { return std::vector<at::Tensor>{at::zeros({})}; };
    shard.give_part = [&](const std::string&, std::string bytes) { pixels = std::move(bytes); };
    EXPECT_TRUE(workload->evaluate(shard).ok());
    return pixels;
  };
  int asked_of_all = 0;
  int asked_of_pairs = 0;
  const std::string all = sampled(5, asked_of_all);
  EXPECT_EQ(all.size(), 5U * 8 * 8 * 3);
  EXPECT_EQ(sampled(2, asked_of_pairs), all);
  // Five forwards of three steps of Heun's method, for one batch and for three.
  EXPECT_GE(asked_of_pairs - asked_of_all, 2 * 5);
}

TEST(Jit, draws_the_times_that_its_flags_say) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:40", "--P_mean", "1.5", "--P_std", "0.25"}));
  std::vector<double> logits;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    BatchShare share{.seed = 7, .step = 0, .epoch = epoch, .first_slot = 0};
    for (int64_t sample = 0; sample < 30; ++sample) share.samples.push_back(sample);
    const HostBatch batch = *workload->fetch(share);
    const at::Tensor t_B = DeviceBatch{.share = share, .tensors = batch.tensors}["t_B"];
    for (int64_t i = 0; i < 30; ++i) {
      const double t = t_B[i].item<double>();
      logits.push_back(std::log(t / (1.0 - t)));
    }
  }
  const double mean = std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(logits.size());
  double squares = 0.0;
  for (const double logit : logits) squares += (logit - mean) * (logit - mean);
  EXPECT_NEAR(mean, 1.5, 0.05);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(logits.size())), 0.25, 0.03);
}

TEST(Jit, leaves_out_a_sheet_whose_samples_were_lost) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20", "--sample_images", "4"}));
  const auto files = workload->outputs({.step = 3, .epoch = 1, .metrics = {{"valid_loss", 1.0}}});
  const OutputContent content = workload->output(files.back(), {.step = 3});
  EXPECT_EQ(std::get<std::string>(content), "") << files.back();
}

TEST(Jit, writes_the_file_of_an_epoch_when_that_ends) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20", "--sample_images", "0"}));
  Workload::EvaluationReport report{.epoch = 10, .metrics = {{"valid_loss", 1.0}}};
  EXPECT_THAT(workload->outputs(report), ElementsAre("best_model.pth", "checkpoint_epoch_10.pth"));
  report.ends_epoch = false;
  EXPECT_THAT(workload->outputs(report), IsEmpty());
}

// The ranks share the samples of one picture.
TEST(Jit, wants_the_same_number_of_samples_on_all_ranks) {
  const RunConfig config = jit_config({"--data_path", "generated", "--sample_images", "3"});
  const auto flag = std::find_if(config.flags.begin(), config.flags.end(),
                                 [](const FlagValue& one) { return one.name == "sample_images"; });
  ASSERT_NE(flag, config.flags.end());
  EXPECT_TRUE(flag->same_on_all_ranks);
  EXPECT_FALSE(flag->changes_maths);
}

TEST(Jit, refuses_a_folder_of_its_own_among_the_images) {
  const auto refused = [](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"jit", "--data_format", "images"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Result<RunConfig> config = parse_run_config(arguments, all_workload_flags());
    return config.ok() ? std::string() : config.error().message;
  };
  EXPECT_EQ(refused({"--data_path", "imgs", "--cache_dir", "imgs/cache"}),
            "--cache_dir imgs/cache lies in --data_path imgs, so the next start would take it for data: give a folder "
            "outside of it");
  EXPECT_THAT(refused({"--data_path", "./imgs/", "--output_dir", "imgs/../imgs/a/out"}),
              HasSubstr("--output_dir imgs/../imgs/a/out lies in --data_path ./imgs/"));
  EXPECT_THAT(refused({"--data_path", ".", "--output_dir", "out"}), HasSubstr("--output_dir ./out lies in"));
  EXPECT_THAT(refused({"--data_path", "imgs", "--train_dir", "imgs/out"}), HasSubstr("--train_dir imgs/out lies in"));
  EXPECT_THAT(refused({"--data_path", "imgs", "--data_format", "tokens", "--train_dir", "imgs/out"}),
              HasSubstr("--train_dir imgs/out lies in"));
  for (const char* place : {"imgs", "imgs/", "imgs/.cache", "imgs/.hidden/cache", "imgs2", "imgs/../cache", "/cache"}) {
    EXPECT_EQ(refused({"--data_path", "imgs", "--cache_dir", place}), "") << place;
  }
  EXPECT_EQ(refused({"--data_path", "generated", "--cache_dir", "generated/cache"}), "");
  EXPECT_EQ(refused({"--data_path", "imgs", "--data_format", "tokens", "--cache_dir", "imgs/cache"}), "");
}

TEST(Jit, goes_on_with_its_own_classes_alone) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20"}));
  Json state = workload->progress_state();
  EXPECT_TRUE(workload->restore_progress(state).ok());
  state["classes"][0] = "another";
  const Status refused = workload->restore_progress(state);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("it was trained on other classes, [\"another\""));
  state.erase("classes");  // a checkpoint of before
  EXPECT_TRUE(workload->restore_progress(state).ok());
}

TEST(Jit, does_not_decay_what_has_one_dimension) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20"}));
  const std::vector<ParameterGroup> groups = workload->groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[1].weight_decay, 0.0);
  for (const NamedTensor& parameter : groups[1].parameters) EXPECT_EQ(parameter.tensor.dim(), 1) << parameter.name;
}

// N(0, 1) and N(3, 4) in each of 5 features: 5 · (9 + 1 + 4 − 2 · 2).
TEST(FrechetDistance, is_that_of_two_normals) {
  const at::Tensor one = torch::eye(5, at::kDouble);
  const FeatureStatistics a{.mean_F = torch::zeros({5}, at::kDouble), .covariance_FF = one};
  const FeatureStatistics b{.mean_F = torch::full({5}, 3.0, at::kDouble), .covariance_FF = one * 4.0};
  EXPECT_NEAR(frechet_distance(a, b), 50.0, 1e-9);
  EXPECT_NEAR(frechet_distance(a, a), 0.0, 1e-9);
}

TEST(FrechetDistance, sums_of_parts_are_those_of_the_whole) {
  const at::Tensor features_BF = torch::randn({9, 4}, at::make_generator<at::CPUGeneratorImpl>(uint64_t{1}));
  FeatureSums whole;
  whole.add(features_BF);
  FeatureSums parts;
  for (const at::Tensor& part : features_BF.split(4)) {
    FeatureSums sums;
    sums.add(part);
    parts.add(sums);
  }
  parts.add(FeatureSums());  // a rank without images
  EXPECT_EQ(parts.count, 9);
  EXPECT_TRUE(statistics_of(parts).covariance_FF.allclose(statistics_of(whole).covariance_FF));
  EXPECT_TRUE(statistics_of(whole).covariance_FF.allclose(torch::cov(features_BF.t().to(at::kDouble))));
}

TEST(JitSampling, stops_when_it_is_told_to) {
  const auto workload = jit_workload(jit_config({"--data_path", "generated:20"}));
  const JitModel model(jit_shape(options_of<JitOptions>(jit_config({"--data_path", "generated:20"})), 1), at::kCPU);
  const at::Tensor none = sample_images(model, image_noise(7, 0, 8).unsqueeze(0), torch::zeros({1}, torch::kLong),
                                        {.steps = 3, .goes_on = [] { return false; }});
  EXPECT_FALSE(none.defined());
}

// A model that predicts 0 everywhere leads all noise to it.
TEST(JitSampling, ends_at_what_the_model_predicts) {
  const JitModel zeros(jit_shape(options_of<JitOptions>(jit_config({"--data_path", "generated:20"})), 1), at::kCPU);
  const at::Tensor images = sample_images(zeros, image_noise(7, 0, 8).unsqueeze(0), torch::zeros({1}, torch::kLong),
                                          {.steps = 40, .t_eps = 1e-6});
  EXPECT_LT(images.abs().max().item<double>(), 1e-5);
}

TEST(JitSampling, lays_images_out_with_a_line_between_them) {
  const at::Tensor pixels = torch::zeros({3, 2, 2, 3}, torch::kByte);
  const at::Tensor sheet = contact_sheet(pixels, 2);
  EXPECT_EQ(sheet.sizes(), (std::vector<int64_t>{5, 5, 3}));
  EXPECT_EQ(sheet[0][0][0].item<int>(), 0);
  EXPECT_EQ(sheet[2][0][0].item<int>(), 255) << "between the rows";
  EXPECT_EQ(sheet[4][4][0].item<int>(), 255) << "where no image is";
}

}  // namespace
}  // namespace lockstep
