#include "runner/models/protein/mpnn_model.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/kernels/nearest_residues.h"
#include "runner/kernels/radial_basis.h"
#include "runner/models/protein/design/mpnn_sampling.h"
#include "tests/runner/models/mpnn_fixture.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 7;
constexpr double kNoise = 0.2;

MpnnModel made_model() {
  at::set_num_threads(1);  // waiting for other threads takes longer than the work
  MpnnModel model({}, at::Device(at::kCPU));
  model.initialize(kSeed);
  return model;
}

at::Tensor order_of(const MpnnInput& input, int64_t first_slot) {
  const SampleKey key{.seed = kSeed, .step = 3, .first_slot = first_slot};
  return decoding_order(order_normals(key, input.S_BL.size(0), input.S_BL.size(1)), input.chain_M_BL * input.mask_BL);
}

// As a training step draws: samples from slot `first_slot` of the global batch on.
MpnnDraws training_draws(const MpnnInput& input, int64_t first_slot) {
  const SampleKey key{.seed = kSeed, .step = 3, .first_slot = first_slot};
  return {.noise_BL4C = backbone_normals(key, input.S_BL.size(0), input.S_BL.size(1)) * kNoise,
          .order_BL = order_of(input, first_slot),
          .dropout = DropoutKey{.seed = kSeed, .step = 3, .first_slot = first_slot, .layer = 0}};
}

MpnnDraws in_order(const at::Tensor& order_BL) { return {.noise_BL4C = {}, .order_BL = order_BL, .dropout = {}}; }

MpnnSums training_sums(const MpnnModel& model, const MpnnInput& input, int64_t first_slot) {
  return mpnn_sums(model.log_probs(input, training_draws(input, first_slot)), input.S_BL,
                   input.mask_BL * input.chain_M_BL);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Mpnn, has_the_parameters_of_the_public_weights) {
  const MpnnModel model = made_model();
  int64_t count = 0;
  std::set<std::string> names;
  for (const NamedTensor& parameter : model.parameters()) {
    count += parameter.tensor.numel();
    names.insert(parameter.name);
  }
  EXPECT_EQ(count, 1660485);
  EXPECT_EQ(names.size(), model.parameters().size());
  EXPECT_EQ(model.parameters().size(), 118U);
  EXPECT_TRUE(names.contains("encoder_layers.2.W13.bias"));
  EXPECT_TRUE(names.contains("decoder_layers.0.dense.W_in.weight"));
  EXPECT_TRUE(names.contains("features.norm_edges.bias"));
}

TEST(Mpnn, begins_with_parameters_that_depend_on_the_seed_alone) {
  const MpnnModel first = made_model();
  const MpnnModel again = made_model();
  MpnnModel other({}, at::Device(at::kCPU));
  other.initialize(kSeed + 1);
  bool any_differs = false;
  for (size_t i = 0; i < first.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(first.parameters()[i].tensor, again.parameters()[i].tensor));
    any_differs = any_differs || !at::equal(first.parameters()[i].tensor, other.parameters()[i].tensor);
  }
  EXPECT_TRUE(any_differs);
}

TEST(Mpnn, gives_probabilities_that_sum_to_one) {
  const at::NoGradGuard no_grad;
  const MpnnInput input = batch_of({made_protein(60, 1), made_protein(70, 2)});
  const at::Tensor log_probs = made_model().log_probs(input, in_order(order_of(input, 0)));
  EXPECT_EQ(log_probs.sizes(), (std::vector<int64_t>{2, 70, kNumAminoAcids}));
  EXPECT_LT(largest_difference(log_probs.exp().sum(-1), at::ones({2, 70})), 1e-5);
}

TEST(Mpnn, does_not_see_the_padding_nor_the_other_samples) {
  const MpnnModel model = made_model();
  const at::NoGradGuard no_grad;
  // Shorter than the number of neighbours, and longer.
  for (const int64_t length : {20, 48, 65}) {
    const MpnnInput alone = made_protein(length, 1);
    const at::Tensor expected = model.log_probs(alone, training_draws(alone, 4));
    const MpnnInput padded = batch_of({alone}, 90);
    EXPECT_LT(largest_difference(model.log_probs(padded, training_draws(padded, 4)).narrow(1, 0, length), expected),
              1e-5)
        << length;
    const MpnnInput second = batch_of({made_protein(77, 2), alone});
    EXPECT_LT(
        largest_difference(model.log_probs(second, training_draws(second, 3))[1].narrow(0, 0, length), expected[0]),
        1e-5)
        << length;
  }
}

TEST(Mpnn, gives_the_same_sums_and_gradients_when_a_batch_is_split) {
  const std::vector<MpnnInput> proteins = {made_protein(30, 1), made_protein(64, 2), made_protein(55, 3)};
  const MpnnModel model = made_model();
  const auto gradients_of = [&](const std::vector<std::pair<int64_t, MpnnInput>>& parts) {
    double loss = 0.0;
    for (const NamedTensor& parameter : model.parameters()) parameter.tensor.mutable_grad().reset();
    for (const auto& [first_slot, input] : parts) {
      const MpnnSums sums = training_sums(model, input, first_slot);
      sums.smoothed_loss.backward();
      loss += sums.smoothed_loss.item<double>();
    }
    std::vector<at::Tensor> gradients;
    for (const NamedTensor& parameter : model.parameters()) gradients.push_back(parameter.tensor.grad().clone());
    return std::pair(loss, gradients);
  };
  const auto [whole, whole_gradients] = gradients_of({{0, batch_of(proteins)}});
  const auto [split, split_gradients] = gradients_of({{2, proteins[2]}, {0, batch_of({proteins[0], proteins[1]})}});
  EXPECT_NEAR(split / whole, 1.0, 1e-5);
  for (size_t i = 0; i < whole_gradients.size(); ++i) {
    const double norm = whole_gradients[i].norm().item<double>();
    EXPECT_LT((whole_gradients[i] - split_gradients[i]).norm().item<double>(), 1e-4 * norm)
        << model.parameters()[i].name;
  }
}

TEST(Mpnn, sends_a_gradient_to_every_parameter) {
  const MpnnModel model = made_model();
  const MpnnInput input = batch_of({made_protein(60, 1), made_protein(50, 2)});
  training_sums(model, input, 0).smoothed_loss.backward();
  for (const NamedTensor& parameter : model.parameters()) {
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    EXPECT_GT(parameter.tensor.grad().abs().sum().item<double>(), 0.0) << parameter.name;
    EXPECT_TRUE(parameter.tensor.grad().isfinite().all().item<bool>()) << parameter.name;
  }
}

TEST(Mpnn, a_residue_sees_the_amino_acids_that_were_decoded_before_and_no_others) {
  const MpnnModel model = made_model();
  const at::NoGradGuard no_grad;
  MpnnInput input = made_protein(30, 1);  // all are neighbours of all
  const at::Tensor order = order_of(input, 0);
  const at::Tensor before = model.log_probs(input, in_order(order));
  constexpr int64_t kChanged = 14;  // in the order
  const int64_t place = order[0][kChanged].item<int64_t>();
  input.S_BL = input.S_BL.clone();
  input.S_BL[0][place] = (input.S_BL[0][place].item<int64_t>() + 5) % 20;
  const at::Tensor moved = (model.log_probs(input, in_order(order)) - before).abs().amax(-1)[0];
  for (int64_t n = 0; n < 30; ++n) {
    const double difference = moved[order[0][n].item<int64_t>()].item<double>();
    if (n <= kChanged) {
      EXPECT_EQ(difference, 0.0) << n;
    } else {
      EXPECT_GT(difference, 0.0) << n;
    }
  }
}

TEST(Mpnn, works_on_one_residue_and_on_residues_without_coordinates) {
  const MpnnModel model = made_model();
  const MpnnInput one = made_protein(1, 1);
  EXPECT_TRUE(model.log_probs(one, training_draws(one, 0)).isfinite().all().item<bool>());

  MpnnInput gaps = made_protein(40, 1);
  for (const int64_t place : {0, 17, 18}) {
    gaps.X_BL4C[0][place].fill_(std::nan(""));
    gaps.mask_BL[0][place] = 0.0;
  }
  gaps.X_BL4C[0][30][3].fill_(std::nan(""));  // an oxygen is missing
  gaps.mask_BL[0][30] = 0.0;
  const MpnnSums sums = training_sums(model, gaps, 0);
  EXPECT_EQ(sums.weight.item<double>(), 36.0);
  sums.smoothed_loss.backward();
  for (const NamedTensor& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.tensor.grad().isfinite().all().item<bool>()) << parameter.name;
  }
  MpnnInput none = made_protein(40, 1);
  none.X_BL4C.fill_(std::nan(""));
  none.mask_BL.zero_();
  EXPECT_EQ(training_sums(model, none, 0).smoothed_loss.item<double>(), 0.0);
}

TEST(Mpnn, turning_and_moving_the_backbone_changes_nothing) {
  const MpnnModel model = made_model();
  const at::NoGradGuard no_grad;
  const MpnnInput input = made_protein(60, 2);
  MpnnInput moved = input;
  const double c = std::cos(0.7);
  const double s = std::sin(0.7);
  const at::Tensor turn = at::tensor({c, -s, 0.0, s, c, 0.0, 0.0, 0.0, 1.0}, at::kFloat).view({3, 3});
  moved.X_BL4C = at::matmul(input.X_BL4C, turn) + at::tensor({3.0, -8.0, 5.0}, at::kFloat);
  EXPECT_LT(largest_difference(model.log_probs(input, {}), model.log_probs(moved, {})), 1e-3);
}

TEST(Mpnn, noise_and_dropout_change_with_the_step_and_the_slot) {
  const SampleKey key{.seed = 1, .step = 2, .first_slot = 3};
  const at::Tensor normals = backbone_normals(key, 2, 2000);
  EXPECT_NEAR(normals.mean().item<double>(), 0.0, 0.03);
  EXPECT_NEAR(normals.std().item<double>(), 1.0, 0.03);
  EXPECT_TRUE(at::equal(normals[1], backbone_normals({.seed = 1, .step = 2, .first_slot = 4}, 1, 2000)[0]));
  EXPECT_TRUE(at::equal(normals.narrow(1, 0, 50), backbone_normals(key, 2, 50)));
  EXPECT_FALSE(at::equal(normals, backbone_normals({.seed = 1, .step = 3, .first_slot = 3}, 2, 2000)));
  EXPECT_FALSE(at::equal(order_normals(key, 1, 12), normals.flatten(1).narrow(1, 0, 12).narrow(0, 0, 1)));
}

TEST(Mpnn, fixed_residues_are_decoded_first) {
  at::Tensor designed = at::ones({1, 50});
  designed.narrow(1, 10, 15).zero_();
  const at::Tensor order = decoding_order(order_normals({.seed = 3}, 1, 50), designed);
  const at::Tensor first = order[0].narrow(0, 0, 15);
  EXPECT_TRUE(first.ge(10).logical_and(first.lt(25)).all().item<bool>());
  EXPECT_TRUE(at::equal(std::get<0>(order.sort()), at::arange(50).unsqueeze(0)));
}

TEST(MpnnSums, are_those_of_their_definition) {
  const at::Tensor log_probs = at::log_softmax(at::arange(42).view({1, 2, 21}) * 0.1, -1);
  const at::Tensor S = at::tensor({20, 3}, at::kLong).unsqueeze(0);
  const at::Tensor target = (at::one_hot(S, 21).to(at::kFloat) + 0.1 / 21.0) / 1.1;
  const MpnnSums both = mpnn_sums(log_probs, S, at::ones({1, 2}));
  EXPECT_NEAR(both.smoothed_loss.item<double>(), -(target * log_probs).sum().item<double>(), 1e-5);
  EXPECT_NEAR(both.loss.item<double>(), -(log_probs[0][0][20] + log_probs[0][1][3]).item<double>(), 1e-5);
  EXPECT_EQ(both.correct.item<double>(), 1.0);
  const MpnnSums second = mpnn_sums(log_probs, S, at::tensor({0.0, 1.0}, at::kFloat).unsqueeze(0));
  EXPECT_NEAR(second.loss.item<double>(), -log_probs[0][1][3].item<double>(), 1e-6);
  EXPECT_EQ(second.correct.item<double>(), 0.0);
  EXPECT_EQ(second.weight.item<double>(), 1.0);
}

TEST(NearestResidues, ten_thousand_need_no_table_of_all_pairs) {
  constexpr int64_t kLength = 10000;
  const MpnnInput input = made_protein(kLength, 1);
  const at::Tensor all = at::ones({1, kLength}, at::kBool);
  const NearestResidues found = nearest_residues(input.X_BL4C.select(2, 1).contiguous(), all, all, 48);
  EXPECT_TRUE(at::equal(found.places_BLK.select(2, 0)[0], at::arange(kLength)));
}

TEST(RadialProjection, is_the_product_with_the_bases_and_its_gradient) {
  const at::Tensor atoms = at::sin(at::arange(20 * 15, at::kFloat)).view({20, 5, 3}).mul(12.0).contiguous();
  const at::Tensor from = at::arange(3000, at::kLong) % 20;
  const at::Tensor to = at::arange(3000, at::kLong) % 7;
  const double distance = 6.25;  // as it is given
  const at::Tensor alpha = at::full({3000}, distance);
  const at::Tensor bases = radial_basis(atoms, from, to, alpha);
  EXPECT_NEAR(bases[3][0].item<double>(), std::exp(-std::pow((distance - 2.0) / 1.25, 2)), 1e-6);
  const double last = std::sqrt((atoms[9][2] - atoms[2][3]).square().sum().item<double>() + 1e-6);
  EXPECT_NEAR(bases[9][24 * 16 + 7].item<double>(), std::exp(-std::pow((last - (2.0 + 7.0 * 20.0 / 15.0)) / 1.25, 2)),
              1e-6);

  const at::Tensor weight = at::cos(at::arange(6 * kRadialFeatures, at::kFloat)).view({6, -1}).requires_grad_();
  const at::Tensor out = radial_projection(atoms, from, to, alpha, weight);
  EXPECT_LT(largest_difference(out, at::mm(bases, weight.t())), 1e-4);
  out.square().sum().backward();
  const at::Tensor expected = at::mm((2.0 * out.detach()).t(), bases);
  EXPECT_LT((weight.grad() - expected).norm().item<double>(), 1e-4 * expected.norm().item<double>());
}

struct Designed {
  MpnnModel model = made_model();
  MpnnInput input = made_protein(40, 1);
  DesignOptions options{.temperature = 1.0, .designed_BL = at::ones({1, 40})};

  [[nodiscard]] at::Tensor sequences(int64_t number, int64_t first_slot = 0) const {
    const SampleKey key{.seed = kSeed, .step = 0, .first_slot = first_slot};
    at::Tensor order = decoding_order(order_normals(key, number, 40), options.designed_BL);
    if (!options.tied.empty()) order = order.narrow(0, 0, 1).expand({number, 40});
    const at::NoGradGuard no_grad;
    return design(model, model.encode(input), input.S_BL, options, order_with_ties(order, options.tied),
                  design_uniforms(key, number, 40));
  }
};

TEST(MpnnDesign, is_the_same_for_every_size_of_the_batch) {
  const Designed designed;
  const at::Tensor three = designed.sequences(3);
  EXPECT_FALSE(at::equal(three[0], three[1]));
  for (int64_t n = 0; n < 3; ++n) EXPECT_TRUE(at::equal(three[n], designed.sequences(1, n)[0])) << n;
}

TEST(MpnnDesign, draws_from_the_probabilities_of_the_whole_model) {
  // At a low temperature the drawn amino acid is the most probable one of those that the whole pass finds.
  Designed designed;
  designed.options.temperature = 1e-4;
  const at::Tensor order = decoding_order(order_normals({.seed = kSeed}, 2, 40), at::ones({2, 40}));
  const at::NoGradGuard no_grad;
  const MpnnEncoding encoding = designed.model.encode(designed.input);
  const at::Tensor S = design(designed.model, encoding, designed.input.S_BL, designed.options, order,
                              design_uniforms({.seed = kSeed}, 2, 40));
  EXPECT_TRUE(at::equal(designed.model.decode(encoding, S, order).argmax(-1), S));
}

TEST(MpnnDesign, keeps_what_is_fixed_leaves_out_what_is_omitted_and_follows_a_bias) {
  Designed designed;
  designed.options.designed_BL.narrow(1, 5, 4).zero_();
  designed.options.omitted_BLA = at::zeros({1, 40, kNumAminoAcids}, at::kBool);
  designed.options.omitted_BLA.narrow(2, 10, 11).fill_(true);
  designed.options.bias_BLA = at::zeros({1, 40, kNumAminoAcids});
  designed.options.bias_BLA[0][20][4] = 100.0;
  const at::Tensor S = designed.sequences(4);
  EXPECT_TRUE(at::equal(S.narrow(1, 5, 4), designed.input.S_BL.narrow(1, 5, 4).expand({4, 4})));
  EXPECT_TRUE(S.narrow(1, 9, 31).lt(10).all().item<bool>());
  EXPECT_TRUE(S.select(1, 20).eq(4).all().item<bool>());
}

// Two sequences of each backbone and their log-probabilities. Of backbone i, numbered from `first`, place 3 + i is
// fixed, place 10 + i prefers amino acid 4 and place 14 + i has amino acid 6 left alone.
std::pair<at::Tensor, at::Tensor> designs_of(const MpnnModel& model, const MpnnInput& input, int64_t first) {
  constexpr int64_t kSequences = 2;
  const int64_t b = input.S_BL.size(0);
  const int64_t l = input.S_BL.size(1);
  DesignOptions options{.temperature = 1.0,
                        .designed_BL = input.mask_BL.clone(),
                        .bias_BLA = at::zeros({b, l, kNumAminoAcids}),
                        .omitted_BLA = at::zeros({b, l, kNumAminoAcids}, at::kBool)};
  for (int64_t i = 0; i < b; ++i) {
    options.designed_BL[i][3 + first + i] = 0.0;
    options.bias_BLA[i][10 + first + i][4] = 100.0;
    options.omitted_BLA[i][14 + first + i].fill_(true);
    options.omitted_BLA[i][14 + first + i][6] = false;
  }
  const SampleKey key{.seed = kSeed};
  const at::Tensor order =
      decoding_order(order_normals(key, kSequences, l).repeat({b, 1}), per_sequence(options.designed_BL, kSequences));
  const MpnnEncoding encoding = model.encode(input);
  const at::Tensor S =
      design(model, encoding, input.S_BL, options, order, design_uniforms(key, kSequences, l).repeat({b, 1}));
  return {S, model.decode(encoding, S, order)};
}

TEST(MpnnDesign, of_several_backbones_is_that_of_each_alone) {
  const MpnnModel model = made_model();
  const at::NoGradGuard no_grad;
  // Shorter than the number of neighbours, and longer.
  const std::vector<MpnnInput> proteins = {made_protein(64, 1), made_protein(30, 2), made_protein(50, 3)};
  const auto [together, log_probs] = designs_of(model, batch_of(proteins), 0);
  EXPECT_EQ(together.size(0), 6);
  for (int64_t i = 0; i < 3; ++i) {
    const MpnnInput& protein = proteins[static_cast<size_t>(i)];
    const int64_t length = protein.S_BL.size(1);
    const auto [alone, expected] = designs_of(model, protein, i);
    const at::Tensor S = together.narrow(0, 2 * i, 2).narrow(1, 0, length);
    EXPECT_TRUE(at::equal(S, alone)) << i;
    EXPECT_FALSE(at::equal(S[0], S[1])) << i;
    EXPECT_LT(largest_difference(log_probs.narrow(0, 2 * i, 2).narrow(1, 0, length), expected), 1e-5) << i;
    EXPECT_TRUE(S.select(1, 3 + i).eq(protein.S_BL[0][3 + i]).all().item<bool>()) << i;
    EXPECT_TRUE(S.select(1, 10 + i).eq(4).all().item<bool>()) << i;
    EXPECT_TRUE(S.select(1, 14 + i).eq(6).all().item<bool>()) << i;
  }
}

TEST(MpnnDesign, gives_tied_places_one_amino_acid) {
  Designed designed;
  designed.options.tied = {{3, 30}, {10, 11, 12}};
  const at::Tensor S = designed.sequences(5);
  EXPECT_TRUE(at::equal(S.select(1, 3), S.select(1, 30)));
  EXPECT_TRUE(at::equal(S.select(1, 10), S.select(1, 11)));
  EXPECT_TRUE(at::equal(S.select(1, 10), S.select(1, 12)));
}

TEST(MpnnDesign, an_order_with_ties_has_each_group_together) {
  const at::Tensor order = at::tensor({4, 0, 2, 1, 3}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(at::equal(order_with_ties(order, {{1, 0}}), at::tensor({4, 1, 0, 2, 3}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(order_with_ties(order, {}), order));
}

TEST(MpnnScore, is_the_mean_over_the_weighted_places) {
  const at::Tensor log_probs = at::log_softmax(at::arange(63).view({1, 3, 21}) * 0.1, -1);
  const at::Tensor S = at::tensor({1, 2, 3}, at::kLong).unsqueeze(0);
  const at::Tensor score = mean_negative_log_prob(log_probs, S, at::tensor({1.0, 0.0, 1.0}, at::kFloat).unsqueeze(0));
  EXPECT_NEAR(score[0].item<double>(), -(log_probs[0][0][1] + log_probs[0][2][3]).item<double>() / 2.0, 1e-6);
}

}  // namespace
}  // namespace lockstep
