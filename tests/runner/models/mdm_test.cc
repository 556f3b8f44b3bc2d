#include "runner/models/protein/mdm_model.h"

#include <ATen/core/Reduction.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/config/run_config.h"
#include "runner/models/protein/data/fragments.h"
#include "runner/models/protein/data/prepare_structures.h"
#include "runner/models/protein/data/structure.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/data/structure_tensors.h"
#include "runner/models/protein/mdm_workload.h"
#include "runner/models/protein/sample_split.h"
#include "runner/models/workload_flags.h"
#include "tests/runner/data/structure_caches.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMdmSeed = 11;

MdmModel made_mdm() {
  MdmModel model({}, at::Device(at::kCPU));
  model.initialize(kMdmSeed);
  return model;
}

// A sample of its own: what is known of it, and what is asked for.
struct Sample {
  at::Tensor X_L4C;
  std::vector<int64_t> fragments;
  std::vector<int64_t> masked;
  std::vector<int64_t> torsions;
};

// `length` residues along a helix that bends, with two fragments each; every fifth token is masked.
Sample made_sample(int64_t length, int64_t seed) {
  const at::Tensor places = at::arange(length, at::kFloat);
  const auto atom = [&](double turn, double radius, double rise) {
    const at::Tensor angle = places * 1.745 + turn + static_cast<double>(seed);
    return at::stack({angle.cos() * radius + (places * 0.07).sin() * 11.0, angle.sin() * radius, places * 1.3 + rise},
                     -1);
  };
  Sample sample;
  sample.X_L4C = at::stack({atom(0.0, 1.55, 0.0), atom(0.45, 2.3, 0.9), atom(0.9, 1.7, 1.9), atom(0.95, 2.0, 3.1)}, 1);
  for (int64_t i = 0; i < 2 * length; ++i) {
    const bool is_masked = i % 5 == 0;
    sample.fragments.push_back(is_masked ? int64_t{kFragmentMask} : kMethyl + (i * 7 + seed) % 12);
    if (is_masked) sample.masked.push_back(i);
    if (i % 2 == 0) sample.torsions.push_back(i);
  }
  return sample;
}

struct MdmBatch {
  MdmInput input;
  at::Tensor kinds_N;
  at::Tensor bins_T;
};

at::Tensor indices_of(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Padded to the longest, or further.
MdmBatch joined(const std::vector<Sample>& samples, int64_t residues = 0, int64_t tokens = 0) {
  for (const Sample& sample : samples) {
    residues = std::max(residues, sample.X_L4C.size(0));
    tokens = std::max(tokens, static_cast<int64_t>(sample.fragments.size()));
  }
  const auto b = static_cast<int64_t>(samples.size());
  MdmInput input{.X_BL4C = at::zeros({b, residues, 4, 3}),
                 .is_residue_BL = at::zeros({b, residues}, at::kBool),
                 .fragments_BM = at::zeros({b, tokens}, at::kLong),
                 .masked_N = {},
                 .torsions_T = {}};
  std::vector<int64_t> masked;
  std::vector<int64_t> kinds;
  std::vector<int64_t> torsions;
  std::vector<int64_t> bins;
  for (int64_t i = 0; i < b; ++i) {
    const Sample& sample = samples[static_cast<size_t>(i)];
    input.X_BL4C[i].narrow(0, 0, sample.X_L4C.size(0)).copy_(sample.X_L4C);
    input.is_residue_BL[i].narrow(0, 0, sample.X_L4C.size(0)).fill_(true);
    const auto count = static_cast<int64_t>(sample.fragments.size());
    input.fragments_BM[i].narrow(0, 0, count).copy_(indices_of(sample.fragments));
    for (const int64_t at : sample.masked) {
      masked.push_back(i * tokens + at);
      kinds.push_back(kMethyl + at % 12);
    }
    for (const int64_t at : sample.torsions) {
      torsions.push_back(i * tokens + at);
      bins.push_back(at % kChi1Bins);
    }
  }
  input.masked_N = indices_of(masked);
  input.torsions_T = indices_of(torsions);
  return {.input = input, .kinds_N = indices_of(kinds), .bins_T = indices_of(bins)};
}

at::Tensor loss_of(const MdmModel& model, const MdmBatch& batch, const std::optional<DropoutKey>& dropout) {
  const MdmLogits logits = model.logits(batch.input, dropout);
  return at::cross_entropy_loss(logits.fragments_NV, batch.kinds_N, {}, at::Reduction::Sum) +
         at::cross_entropy_loss(logits.bins_TV, batch.bins_T, {}, at::Reduction::Sum);
}

DropoutKey dropout_from(int64_t first_slot) {
  return {.seed = kMdmSeed, .step = 5, .first_slot = first_slot, .layer = 0};
}

double greatest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Mdm, has_the_guides_number_of_parameters) {
  const MdmModel model = made_mdm();
  int64_t encoder = 0;
  int64_t all = 0;
  std::set<std::string> names;
  for (const NamedTensor& parameter : model.parameters()) {
    all += parameter.tensor.numel();
    if (parameter.name.starts_with("encoder.")) encoder += parameter.tensor.numel();
    names.insert(parameter.name);
  }
  EXPECT_EQ(encoder, 1034688);
  EXPECT_EQ(all, 4420120);
  EXPECT_EQ(names.size(), model.parameters().size());
}

TEST(Mdm, does_not_see_the_padding_nor_the_other_samples_with_dropout_on) {
  const MdmModel model = made_mdm();
  const at::NoGradGuard no_grad;
  for (const int64_t length : {1, 2, 29, 31, 50}) {
    const Sample sample = made_sample(length, 1);
    const MdmLogits alone = model.logits(joined({sample}).input, dropout_from(4));
    const MdmLogits padded = model.logits(joined({sample}, 70, 150).input, dropout_from(4));
    EXPECT_LT(greatest_difference(padded.fragments_NV, alone.fragments_NV), 1e-4) << length;
    EXPECT_LT(greatest_difference(padded.bins_TV, alone.bins_TV), 1e-4) << length;
    const MdmLogits second = model.logits(joined({made_sample(60, 2), sample}).input, dropout_from(3));
    const int64_t own = alone.bins_TV.size(0);
    EXPECT_LT(greatest_difference(second.bins_TV.narrow(0, 60, own), alone.bins_TV), 1e-4) << length;
  }
}

TEST(Mdm, gives_the_same_sums_and_gradients_when_a_batch_is_split_with_dropout_on) {
  const std::vector<Sample> samples = {made_sample(30, 1), made_sample(52, 2), made_sample(9, 3)};
  const MdmModel model = made_mdm();
  const auto gradients_of = [&](const std::vector<std::pair<int64_t, std::vector<Sample>>>& parts) {
    double loss = 0.0;
    for (const NamedTensor& parameter : model.parameters()) parameter.tensor.mutable_grad().reset();
    for (const auto& [first_slot, part] : parts) {
      const at::Tensor sum = loss_of(model, joined(part), dropout_from(first_slot));
      sum.backward();
      loss += sum.item<double>();
    }
    std::vector<at::Tensor> gradients;
    for (const NamedTensor& parameter : model.parameters()) gradients.push_back(parameter.tensor.grad().clone());
    return std::pair(loss, gradients);
  };
  const auto [whole, whole_gradients] = gradients_of({{0, samples}});
  const auto [split, split_gradients] = gradients_of({{2, {samples[2]}}, {0, {samples[0], samples[1]}}});
  EXPECT_NEAR(split / whole, 1.0, 1e-5);
  double largest = 0.0;
  for (const at::Tensor& gradient : whole_gradients) largest = std::max(largest, gradient.norm().item<double>());
  for (size_t i = 0; i < whole_gradients.size(); ++i) {
    // The bias of keys moves no softmax: all that there is of its gradient is rounding.
    const double norm = std::max(whole_gradients[i].norm().item<double>(), 1e-3 * largest);
    EXPECT_LT((whole_gradients[i] - split_gradients[i]).norm().item<double>(), 1e-4 * norm)
        << model.parameters()[i].name;
  }
}

TEST(Mdm, sends_a_gradient_to_every_parameter) {
  const MdmModel model = made_mdm();
  loss_of(model, joined({made_sample(40, 1), made_sample(33, 2)}), dropout_from(0)).backward();
  for (const NamedTensor& parameter : model.parameters()) {
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    EXPECT_GT(parameter.tensor.grad().abs().sum().item<double>(), 0.0) << parameter.name;
    EXPECT_TRUE(parameter.tensor.grad().isfinite().all().item<bool>()) << parameter.name;
  }
}

TEST(Mdm, sees_the_fragments_before_and_behind_and_never_the_padding) {
  const MdmModel model = made_mdm();
  const Sample sample = made_sample(20, 1);
  const auto gradient_of_table = [&](const MdmBatch& batch) {
    for (const NamedTensor& parameter : model.parameters()) parameter.tensor.mutable_grad().reset();
    model.logits(batch.input, std::nullopt).fragments_NV.sum().backward();
    const auto found = std::find_if(model.parameters().begin(), model.parameters().end(),
                                    [](const NamedTensor& one) { return one.name == "decoder.fragment_embed.weight"; });
    return found->tensor.grad().abs().sum(1);
  };
  EXPECT_EQ(gradient_of_table(joined({sample}, 30, 90))[kFragmentPad].item<double>(), 0.0);

  const at::NoGradGuard no_grad;
  const at::Tensor before = model.logits(joined({sample}).input, std::nullopt).fragments_NV;
  for (const size_t changed : {1U, 38U}) {
    Sample other = sample;
    other.fragments[changed] = other.fragments[changed] == kIndole ? kMethyl : kIndole;
    const at::Tensor behind = model.logits(joined({other}).input, std::nullopt).fragments_NV;
    EXPECT_GT((behind - before).abs().amax(1).min().item<double>(), 0.0) << changed;
  }
}

TEST(Mdm, works_on_one_residue_and_where_nothing_is_asked_for) {
  const MdmModel model = made_mdm();
  const MdmBatch one = joined({made_sample(1, 1)});
  EXPECT_TRUE(loss_of(model, one, dropout_from(0)).isfinite().item<bool>());
  MdmBatch nothing = joined({made_sample(10, 1)});
  nothing.input.masked_N = nothing.kinds_N = at::empty({0}, at::kLong);
  nothing.input.torsions_T = nothing.bins_T = at::empty({0}, at::kLong);
  const at::Tensor loss = loss_of(model, nothing, dropout_from(0));
  EXPECT_EQ(loss.item<double>(), 0.0);
  loss.backward();
  for (const NamedTensor& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
  }
}

TEST(Mdm, begins_near_the_loss_of_a_guess) {
  const MdmModel model = made_mdm();
  const at::NoGradGuard no_grad;
  const MdmBatch batch = joined({made_sample(120, 1), made_sample(90, 2)});
  const MdmLogits logits = model.logits(batch.input, std::nullopt);
  EXPECT_NEAR(at::cross_entropy_loss(logits.fragments_NV, batch.kinds_N).item<double>(), std::log(16.0), 0.9);
  EXPECT_NEAR(at::cross_entropy_loss(logits.bins_TV, batch.bins_T).item<double>(), std::log(72.0), 0.9);
}

TEST(MdmDihedrals, are_zero_at_the_ends_and_right_between) {
  // A straight zigzag in a plane: all angles are 180°.
  const int64_t length = 4;
  at::Tensor X = at::zeros({1, length, 4, 3});
  for (int64_t i = 0; i < 3 * length; ++i) {
    X[0][i / 3][i % 3][0] = static_cast<float>(i);
    X[0][i / 3][i % 3][1] = static_cast<float>(i % 2);
  }
  const at::Tensor features = backbone_dihedrals(X, at::ones({1, length}, at::kBool))[0];
  for (int64_t i = 0; i < length; ++i) {
    const std::vector<double> cosines = {i == 0 ? 1.0 : -1.0, i + 1 == length ? 1.0 : -1.0,
                                         i + 1 == length ? 1.0 : -1.0};
    for (int64_t angle = 0; angle < 3; ++angle) {
      EXPECT_NEAR(features[i][angle].item<double>(), 0.0, 1e-5) << i;
      EXPECT_NEAR(features[i][3 + angle].item<double>(), cosines[static_cast<size_t>(angle)], 1e-5) << i;
    }
  }
  // What is padding does not count as the next residue.
  at::Tensor is_residue = at::ones({1, length}, at::kBool);
  is_residue[0][length - 1] = false;
  EXPECT_NEAR(backbone_dihedrals(X, is_residue)[0][length - 2][4].item<double>(), 1.0, 1e-5);
}

TEST(MaskedTokens, are_a_share_of_them_drawn_anew_for_each_epoch_and_sample) {
  const MdmOptions options;
  const std::vector<int64_t> masked = masked_tokens(options, 100, 1, 2, 3);
  EXPECT_EQ(masked.size(), 15U);
  EXPECT_TRUE(std::is_sorted(masked.begin(), masked.end()));
  EXPECT_EQ(std::set<int64_t>(masked.begin(), masked.end()).size(), 15U);
  EXPECT_GE(masked.front(), 0);
  EXPECT_LT(masked.back(), 100);
  EXPECT_EQ(masked, masked_tokens(options, 100, 1, 2, 3));
  EXPECT_NE(masked, masked_tokens(options, 100, 2, 2, 3));
  EXPECT_NE(masked, masked_tokens(options, 100, 1, 3, 3));
  EXPECT_NE(masked, masked_tokens(options, 100, 1, 2, 4));
  EXPECT_EQ(masked_tokens(options, 1, 1, 2, 3), std::vector<int64_t>{0});
  EXPECT_EQ(masked_tokens({.mask_ratio = 1.0}, 9, 1, 2, 3).size(), 9U);
}

TEST(MaskedTokens, of_blocks_are_three_runs_of_five) {
  const MdmOptions options{.masking_strategy = MaskingStrategy::kBlock};
  for (int64_t sample = 0; sample < 50; ++sample) {
    const std::vector<int64_t> masked = masked_tokens(options, 400, 1, 0, sample);
    EXPECT_LE(masked.size(), 15U);
    EXPECT_LT(masked.back(), 400);
    int64_t runs = 1;
    int64_t length = 1;
    for (size_t i = 1; i < masked.size(); ++i) {
      const bool goes_on = masked[i] == masked[i - 1] + 1;
      if (!goes_on) {
        EXPECT_GE(length, 5);
        ++runs;
      }
      length = goes_on ? length + 1 : 1;
    }
    EXPECT_LE(runs, 3);
  }
  EXPECT_EQ(masked_tokens(options, 3, 1, 0, 0), (std::vector<int64_t>{0, 1, 2}));
}

// Each in a cluster of its own.
std::vector<SampleToSplit> samples_listed_as(const std::vector<std::optional<ChainSplit>>& listed) {
  std::vector<SampleToSplit> samples;
  for (const std::optional<ChainSplit>& split : listed) {
    samples.push_back({.listed = split, .cluster = static_cast<int64_t>(samples.size())});
  }
  return samples;
}

TEST(SampleSplit, holds_out_a_share_and_leaves_something_to_train_on) {
  const auto held_out = [](double share, size_t count) {
    return split_samples(samples_listed_as(std::vector<std::optional<ChainSplit>>(count)), share, 1).validation.size();
  };
  EXPECT_EQ(held_out(0.1, 100), 10U);
  EXPECT_EQ(held_out(0.01, 5), 1U);
  EXPECT_EQ(held_out(0.99, 5), 4U);
  EXPECT_EQ(held_out(0.0, 100), 0U);
  EXPECT_EQ(held_out(0.5, 1), 0U);
}

TEST(SampleSplit, follows_the_lists_and_leaves_out_what_is_to_be_tested_on) {
  const SampleSplit split = split_samples(samples_listed_as({ChainSplit::kTrain, ChainSplit::kValidation,
                                                             ChainSplit::kTest, std::nullopt, ChainSplit::kTrain}),
                                          0.5, 1);
  EXPECT_EQ(split.train, (std::vector<int64_t>{0, 4, 3}));
  EXPECT_EQ(split.validation, (std::vector<int64_t>{1}));
}

// ProteinMPNN's training set without valid_clusters.txt: all chains but those of test_clusters.txt are listed to train.
TEST(SampleSplit, draws_whole_clusters_where_the_lists_name_nothing_to_validate_on) {
  std::vector<SampleToSplit> samples;
  for (int64_t i = 0; i < 60; ++i) {
    samples.push_back({.listed = i % 6 == 0 ? ChainSplit::kTest : ChainSplit::kTrain, .cluster = i % 12});
  }
  const SampleSplit split = split_samples(samples, 0.3, 1);  // 3 of 10 clusters of 5
  EXPECT_EQ(split.validation.size(), 15U);
  EXPECT_EQ(split.train.size(), 35U);
  std::set<int64_t> held_out;
  for (const int64_t sample : split.validation) held_out.insert(sample % 12);
  EXPECT_EQ(held_out.size(), 3U);
  for (const int64_t sample : split.train) {
    EXPECT_FALSE(held_out.contains(sample % 12)) << sample;
    EXPECT_NE(sample % 6, 0) << sample;
  }
  EXPECT_EQ(split_samples(samples, 0.3, 1).validation, split.validation);
  EXPECT_NE(split_samples(samples, 0.3, 2).validation, split.validation);
}

TEST(SampleSplit, names_the_list_that_is_missing) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      no_predefined_split(folder.path(), /*has_clusters=*/true).message,
      AllOf(HasSubstr(folder.file("valid_clusters.txt") + " is missing"), HasSubstr("--val_split draws clusters")));
  EXPECT_THAT(no_predefined_split(folder.path(), /*has_clusters=*/false).message,
              HasSubstr(folder.file("val.txt") + " is missing"));
  folder.write("valid_clusters.txt", "no number\n");
  EXPECT_THAT(no_predefined_split(folder.path(), /*has_clusters=*/true).message,
              HasSubstr("valid_clusters.txt names nothing of what was read"));
}

std::unique_ptr<MdmWorkload> made_workload() {
  const RunConfig config =
      *parse_run_config({"protein", "--pdb_path", "generated:4:20", "--variant", "mdm"}, all_workload_flags());
  PosixFileSystem fs;
  return *MdmWorkload::create(config, std::move(prepare_structures(fs, "generated:4:20", "", {})->cache),
                              at::Device(at::kCPU));
}

Workload::EvaluationReport report_of_loss(double loss) {
  return {.epoch = 1, .metrics = {{"valid_loss", loss}, {"valid_fragment", loss}, {"valid_torsion", 0.0}}};
}

TEST(MdmWorkload, keeps_a_loss_that_is_no_number_in_its_history_and_never_for_the_best) {
  const auto workload = made_workload();
  EXPECT_TRUE(workload->outputs(report_of_loss(std::nan(""))).empty());
  EXPECT_EQ(workload->outputs(report_of_loss(7.0)), std::vector<std::string>{"best_model.pt"});
  const auto resumed = made_workload();
  ASSERT_TRUE(resumed->restore_progress(*parse_json(dump_line(workload->progress_state()), "state")).ok());
  EXPECT_TRUE(resumed->outputs(report_of_loss(7.5)).empty());
  EXPECT_EQ(resumed->outputs(report_of_loss(6.5)), std::vector<std::string>{"best_model.pt"});
}

TEST(MdmWorkload, writes_the_file_of_an_epoch_when_that_ends) {
  Workload::EvaluationReport report = report_of_loss(7.0);
  report.epoch = 10;
  EXPECT_EQ(made_workload()->outputs(report), (std::vector<std::string>{"best_model.pt", "checkpoint_epoch_10.pt"}));
  report.ends_epoch = false;
  EXPECT_EQ(made_workload()->outputs(report), std::vector<std::string>{"best_model.pt"});
}

TEST(MdmWorkload, has_no_loss_where_nothing_was_masked) {
  const auto workload = made_workload();
  const auto figures = [&](double fragments, double torsions) {
    return workload->figures({{"valid_fragment", 2.0 * fragments, fragments}, {"valid_torsion", torsions, torsions}});
  };
  EXPECT_EQ(metric_value(figures(4.0, 3.0), "valid_loss"), 3.0);
  EXPECT_EQ(metric_value(figures(4.0, 0.0), "valid_loss"), 2.0) << "as in training";
  EXPECT_TRUE(std::isnan(metric_value(figures(4.0, 0.0), "valid_torsion")));
  EXPECT_TRUE(std::isnan(metric_value(figures(0.0, 0.0), "valid_loss")));
}

// A standard residue whose number is the x of its atoms.
Position residue(int32_t number, char letter, float chi1 = kMissing) {
  Position position;
  const auto x = static_cast<float>(number);
  position.backbone = {{{x, 0, 0}, {x, 1, 0}, {x, 1, 1}, {x, 0, 1}}};
  position.number = number;
  position.type = residue_type_of(letter);
  position.chi1 = chi1;
  position.flags = kInFile | kStandardResidue;
  return position;
}

TEST(MdmWorkload, torsions_that_fit_no_structure_are_counted_and_refused_where_that_is_so_of_all) {
  Structure with{.name = "with", .chains = {{.id = "A", .positions = {residue(1, 'S', 1.0F), residue(2, 'V', 1.0F)}}}};
  Structure without{.name = "without", .chains = {{.id = "A", .positions = {residue(1, 'F'), residue(2, 'K')}}}};
  without.remarks = {std::string(kWrongTorsions) + " has 3 values; expected 2"};
  const RunConfig config =
      *parse_run_config({"protein", "--pdb_path", "generated", "--variant", "mdm"}, all_workload_flags());
  const auto made = [&](const std::vector<Structure>& structures) {
    return MdmWorkload::create(config, structure_cache_of(structures), at::Device(at::kCPU));
  };
  const auto workload = made({with, without});
  ASSERT_TRUE(workload.ok()) << workload.error().message;
  std::string rows;
  for (const auto& [label, value] : (*workload)->describe()) rows += label + ": " + value + "\n";
  EXPECT_THAT(rows, HasSubstr(", 1 without torsion angles"));
  EXPECT_THAT(rows, HasSubstr("remark: without: torsion_bins has 3 values; expected 2"));
  EXPECT_THAT(
      made({without}).error().message,
      HasSubstr("has a torsion angle that can be learnt, as in without: torsion_bins has 3 values; expected 2"));
  without.remarks.clear();  // JSON lines have no side chains
  EXPECT_TRUE(made({without}).ok());
}

TEST(MdmWorkload, fetches_the_complete_standard_residues_of_the_first_protein_chain_and_masks_no_padding) {
  const StructureChain nucleic{.id = "R", .positions = {residue(70, 'W', 1.0F)}, .is_protein = false};
  StructureChain first{.id = "A",
                       .positions = {residue(1, 'S', 1.0F), residue(2, 'G'), residue(3, 'M', 1.0F), residue(4, 'A'),
                                     residue(5, 'V', -3.0F), residue(6, 'K', 0.01F), residue(7, 'F', 3.1F)}};
  first.positions[0].backbone[3] = kMissingAtom;
  first.positions[2].flags = kInFile;  // MSE
  const StructureChain second{.id = "B", .positions = {residue(80, 'W', 1.0F)}};
  const StructureChain held_out{.id = "A", .positions = {residue(8, 'C', 0.5F)}, .split = ChainSplit::kValidation};
  const std::vector<Structure> structures = {{.name = "1abc", .chains = {nucleic, first, second}},
                                             {.name = "2abc", .chains = {held_out}}};
  const RunConfig config = *parse_run_config(
      {"protein", "--pdb_path", "generated", "--variant", "mdm", "--mask_ratio", "0.5", "--use_predefined_split"},
      all_workload_flags());
  const auto workload = *MdmWorkload::create(config, structure_cache_of(structures), at::Device(at::kCPU));
  // A, V, K, F of the first structure; C of the second and its padding.
  const at::Tensor whole =
      at::constant_pad_nd(indices_of({kMethyl, kBranch, kMethyl, kMethyl, kMethylene, kMethylene, kMethylene,
                                      kMethylene, kAmine, kMethylene, kPhenyl, kThiol}),
                          {0, 10}, int64_t{kFragmentPad});
  const at::Tensor numbers_BL = indices_of({2, 4, 5, 6, 7, 8, 0, 0, 0, 0}).view({2, 5});
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const HostBatch host = *workload->fetch({.seed = kMdmSeed, .epoch = epoch, .samples = {0, 1}});
    EXPECT_EQ(host.weights, (std::vector<double>{6, 4})) << "half of 11 fragments and at least one of 1";
    const DeviceBatch batch{.share = {}, .tensors = host.tensors};
    EXPECT_TRUE(at::equal(batch["is_residue_BL"], numbers_BL > 0));
    EXPECT_TRUE(at::equal(batch["X_BL4C"].select(3, 0), numbers_BL.to(at::kFloat).unsqueeze(2).expand({2, 5, 4})));
    // Of V, K, F and C: at the first fragment of each.
    EXPECT_TRUE(at::equal(batch["torsions_T"], indices_of({1, 4, 9, 11})));
    EXPECT_TRUE(at::equal(batch["bins_T"], indices_of({1, 36, 71, 41})));
    const at::Tensor& masked_N = batch["masked_N"];
    EXPECT_TRUE(at::equal(batch["kinds_N"], whole.index_select(0, masked_N)));
    EXPECT_GT(batch["kinds_N"].min().item<int64_t>(), int64_t{kFragmentEnd}) << "no padding";
    EXPECT_TRUE(at::equal(batch["fragments_BM"].flatten(), whole.index_fill(0, masked_N, int64_t{kFragmentMask})));
  }
}

}  // namespace
}  // namespace lockstep
