#include "runner/kernels/block_passes.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace lockstep {
namespace {

struct Sizes {
  int64_t samples;
  int64_t tokens;
  int64_t heads;
  int64_t head_width;
  int64_t hidden;
};

// Widths with and without a rest behind whole groups of lanes; several pieces of a sample, and a last one that is
// short.
constexpr Sizes kSizes[] = {{2, 5, 2, 16, 24}, {3, 700, 3, 64, 96}, {1, 1, 1, 2, 1}, {2, 1500, 2, 10, 37}};

struct Example {
  at::Tensor x_BND;
  at::Tensor change_BND;
  at::Tensor weight_D;
  at::Tensor gate_BD;
  at::Tensor shift_BD;
  at::Tensor scale_BD;
  at::Tensor gate_and_value_BNF;
  at::Tensor bias_F;
  at::Tensor qkv_BNF;
  at::Tensor q_norm_E;
  at::Tensor k_norm_E;
  HeadRotation rotation;
  at::Tensor grad_BND;
  at::Tensor grad_sum_BND;
  at::Tensor grad_BNF;
  std::vector<at::Tensor> grad_heads;  // of queries and keys by head, of values by token, as attention gives them
};

Example example(const Sizes& sizes) {
  torch::manual_seed(5);
  const auto leaf = [](at::IntArrayRef shape) { return (2.0 * at::randn(shape)).requires_grad_(); };
  const auto [b, n, a, e, f] = sizes;
  const int64_t d = a * e;
  const at::Tensor angles = at::randn({n, e / 2}).repeat_interleave(2, 1);
  return {.x_BND = leaf({b, n, d}),
          .change_BND = leaf({b, n, d}),
          .weight_D = leaf({d}),
          .gate_BD = leaf({b, d}),
          .shift_BD = leaf({b, d}),
          .scale_BD = leaf({b, d}),
          .gate_and_value_BNF = leaf({b, n, 2 * f}),
          .bias_F = leaf({2 * f}),
          .qkv_BNF = leaf({b, n, 3 * d}),
          .q_norm_E = leaf({e}),
          .k_norm_E = leaf({e}),
          .rotation = {.cos_NE = angles.cos(), .sin_NE = angles.sin()},
          .grad_BND = at::randn({b, n, d}),
          .grad_sum_BND = at::randn({b, n, d}),
          .grad_BNF = at::randn({b, n, f}),
          .grad_heads = {at::randn({b, a, n, e}), at::randn({b, a, n, e}), at::randn({b, n, a, e}).transpose(1, 2)}};
}

// The same values in other types: `type` where the products of autocast are, `wide` elsewhere.
Example in_types(const Example& single, at::ScalarType wide, at::ScalarType type, at::Device device = at::kCPU) {
  Example e = single;
  for (at::Tensor* leaf : {&e.x_BND, &e.weight_D, &e.bias_F, &e.q_norm_E, &e.k_norm_E}) {
    *leaf = leaf->detach().to(device, wide).requires_grad_();
  }
  for (at::Tensor* leaf : {&e.change_BND, &e.gate_BD, &e.shift_BD, &e.scale_BD, &e.gate_and_value_BNF, &e.qkv_BNF}) {
    *leaf = leaf->detach().to(device, type).requires_grad_();
  }
  for (at::Tensor* given : {&e.rotation.cos_NE, &e.rotation.sin_NE, &e.grad_sum_BND}) *given = given->to(device, wide);
  for (at::Tensor* given : {&e.grad_BND, &e.grad_BNF, &e.grad_heads[0], &e.grad_heads[1], &e.grad_heads[2]}) {
    *given = given->to(device, type);
  }
  return e;
}

Example in_fp64(const Example& example) { return in_types(example, at::kDouble, at::kDouble); }

void add_results(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& out,
                 const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& grads) {
  for (const at::Tensor& one : out) results.push_back(one.detach());
  for (const at::Tensor& one : torch::autograd::grad(out, inputs, grads)) results.push_back(one);
}

std::vector<at::Tensor> found(const Example& e) {
  std::vector<at::Tensor> all;
  add_results(all, {modulated_rms_norm(e.x_BND, e.weight_D, e.shift_BD, e.scale_BD)},
              {e.x_BND, e.weight_D, e.shift_BD, e.scale_BD}, {e.grad_BND});
  const auto [sum_BND, normed_BND] =
      normed_gated_sum(e.x_BND, e.gate_BD, e.change_BND, e.weight_D, e.shift_BD, e.scale_BD);
  add_results(all, {sum_BND, normed_BND}, {e.x_BND, e.gate_BD, e.change_BND, e.weight_D, e.shift_BD, e.scale_BD},
              {e.grad_sum_BND, e.grad_BND});
  add_results(all, {swiglu(e.gate_and_value_BNF)}, {e.gate_and_value_BNF}, {e.grad_BNF});
  add_results(all, {swiglu(e.gate_and_value_BNF, e.bias_F)}, {e.gate_and_value_BNF, e.bias_F}, {e.grad_BNF});
  const Heads heads = rotated_heads(e.qkv_BNF, e.q_norm_E, e.k_norm_E, e.rotation);
  add_results(all, {heads.q_BANE, heads.k_BANE, heads.v_BANE}, {e.qkv_BNF, e.q_norm_E, e.k_norm_E}, e.grad_heads);
  return all;
}

at::Tensor expected_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-6).sqrt() * weight;
}

// Each pair of neighbours as a complex number, times its token's.
at::Tensor expected_rotation(const at::Tensor& x_BANE, const HeadRotation& rotation) {
  const auto first_of_pairs = [](const at::Tensor& x) { return x.unflatten(-1, {-1, 2}).select(-1, 0); };
  const at::Tensor turn = at::complex(first_of_pairs(rotation.cos_NE), first_of_pairs(rotation.sin_NE));
  return at::view_as_real(at::view_as_complex(x_BANE.unflatten(-1, {-1, 2}).contiguous()) * turn).flatten(-2);
}

std::vector<at::Tensor> expected(const Example& e) {
  std::vector<at::Tensor> all;
  const auto modulated = [&](const at::Tensor& x_BND) {
    return expected_norm(x_BND, e.weight_D) * (1.0 + e.scale_BD.unsqueeze(1)) + e.shift_BD.unsqueeze(1);
  };
  add_results(all, {modulated(e.x_BND)}, {e.x_BND, e.weight_D, e.shift_BD, e.scale_BD}, {e.grad_BND});
  const at::Tensor sum_BND = e.x_BND + e.gate_BD.unsqueeze(1) * e.change_BND;
  add_results(all, {sum_BND, modulated(sum_BND)},
              {e.x_BND, e.gate_BD, e.change_BND, e.weight_D, e.shift_BD, e.scale_BD}, {e.grad_sum_BND, e.grad_BND});
  const auto expected_swiglu = [](const at::Tensor& x_BNF) {
    const auto halves = x_BNF.chunk(2, -1);
    return at::silu(halves[0]) * halves[1];
  };
  add_results(all, {expected_swiglu(e.gate_and_value_BNF)}, {e.gate_and_value_BNF}, {e.grad_BNF});
  add_results(all, {expected_swiglu(e.gate_and_value_BNF + e.bias_F)}, {e.gate_and_value_BNF, e.bias_F}, {e.grad_BNF});
  const int64_t width = e.q_norm_E.size(0);
  const auto qkv = e.qkv_BNF.unflatten(-1, {3, -1, width}).permute({2, 0, 3, 1, 4}).unbind(0);
  add_results(all,
              {expected_rotation(expected_norm(qkv[0], e.q_norm_E), e.rotation),
               expected_rotation(expected_norm(qkv[1], e.k_norm_E), e.rotation), qkv[2]},
              {e.qkv_BNF, e.q_norm_E, e.k_norm_E}, e.grad_heads);
  return all;
}

// The largest difference, as a part of the largest value or of 1.
double difference(const at::Tensor& found, const at::Tensor& expected) {
  const double off = (found.to(at::kCPU, at::kDouble) - expected).abs().max().item<double>();
  return off / std::max(1.0, expected.abs().max().item<double>());
}

#ifdef __SANITIZE_ADDRESS__
constexpr double kDifferenceMax = 4e-6;  // compiled without vectors: a sum is one long chain, which rounds more often
#else
constexpr double kDifferenceMax = 2e-6;
#endif

// Gradients of weights are sums over all tokens, so that what is lost is measured by their largest value.
TEST(BlockPasses, agree_with_the_operators_that_they_stand_for) {
  for (const Sizes& sizes : kSizes) {
    const Example single = example(sizes);
    const std::vector<at::Tensor> ours = found(single);
    const std::vector<at::Tensor> theirs = expected(in_fp64(single));
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), theirs[i].sizes()) << "number " << i;
      EXPECT_LT(difference(ours[i], theirs[i]), kDifferenceMax)
          << "number " << i << " of " << sizes.tokens << " tokens";
    }
  }
}

// What other devices and types take.
TEST(BlockPasses, have_a_way_by_operators_that_agrees) {
  const Example single = example(kSizes[0]);
  const std::vector<at::Tensor> by_operators = found(in_fp64(single));
  const std::vector<at::Tensor> theirs = expected(in_fp64(single));
  for (size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_TRUE(at::allclose(by_operators[i].to(at::kDouble), theirs[i], 1e-4, 1e-5)) << "number " << i;
  }
}

// As under autocast: a sum in fp32, and what the products give in bf16.
TEST(BlockPasses, have_a_way_by_operators_for_mixed_types) {
  Example mixed = in_types(example(kSizes[0]), at::kFloat, at::kBFloat16);
  mixed.grad_BND = mixed.grad_BND.to(at::kFloat);  // of the norm, which this way gives in fp32
  const std::vector<at::Tensor> by_operators = found(mixed);
  const std::vector<at::Tensor> theirs = expected(in_fp64(mixed));
  for (size_t i = 0; i < theirs.size(); ++i) EXPECT_LT(difference(by_operators[i], theirs[i]), 0.02) << "number " << i;
  EXPECT_EQ(by_operators[0].scalar_type(), at::kFloat);
}

class BlockPassesOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// With heads of all numbers of lanes, of 20 of 32 lanes, and with runs of tokens that are short.
constexpr Sizes kSizesOnCuda[] = {{2, 5, 2, 16, 24},  {3, 300, 3, 64, 96},    {1, 1, 1, 4, 1},
                                  {2, 50, 2, 80, 37}, {2, 33, 16, 128, 2730}, {5, 40, 1, 32, 6}};

TEST_F(BlockPassesOnCuda, agree_with_the_operators_that_they_stand_for) {
  for (const Sizes& sizes : kSizesOnCuda) {
    const Example single = example(sizes);
    const std::vector<at::Tensor> ours = found(in_types(single, at::kFloat, at::kFloat, at::kCUDA));
    const std::vector<at::Tensor> theirs = expected(in_fp64(single));
    for (size_t i = 0; i < theirs.size(); ++i) {
      EXPECT_LT(difference(ours[i], theirs[i]), 4e-6) << "number " << i << " of " << sizes.tokens << " tokens";
    }
  }
}

TEST_F(BlockPassesOnCuda, agree_in_the_types_of_autocast) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Sizes& sizes : kSizesOnCuda) {
      const Example mixed = in_types(example(sizes), at::kFloat, type);
      const std::vector<at::Tensor> ours = found(in_types(mixed, at::kFloat, type, at::kCUDA));
      const std::vector<at::Tensor> theirs = expected(in_fp64(mixed));
      for (size_t i = 0; i < theirs.size(); ++i) {
        EXPECT_LT(difference(ours[i], theirs[i]), 0.01) << "number " << i << " of " << sizes.tokens << " tokens";
      }
      EXPECT_EQ(ours[0].scalar_type(), type) << "the norm";
    }
  }
}

TEST_F(BlockPassesOnCuda, give_the_same_bits_again) {
  const Example e = in_types(example(kSizesOnCuda[1]), at::kFloat, at::kBFloat16, at::kCUDA);
  const std::vector<at::Tensor> once = found(e);
  const std::vector<at::Tensor> again = found(e);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(once[i].equal(again[i])) << i;
}

// As a model has them: modulations are columns of one product, and tokens may be a part of more.
TEST_F(BlockPassesOnCuda, take_views) {
  const Example e = in_types(example({2, 6, 2, 16, 24}), at::kFloat, at::kBFloat16, at::kCUDA);
  const at::Tensor x_BND = at::cat({e.x_BND, e.x_BND}, 1).slice(1, 3, 9);
  const auto parts = at::cat({e.gate_BD, e.shift_BD, e.scale_BD}, 1).chunk(3, 1);
  const at::Tensor odd = at::cat({e.shift_BD.flatten(), e.shift_BD.flatten()}).slice(0, 1, 65).view({2, 32});
  const auto same = [](const NormedSum& a, const NormedSum& b) {
    return a.sum_BND.equal(b.sum_BND) && a.normed_BND.equal(b.normed_BND);
  };
  EXPECT_TRUE(same(normed_gated_sum(x_BND, parts[0], e.change_BND, e.weight_D, parts[1], parts[2]),
                   normed_gated_sum(x_BND.contiguous(), e.gate_BD, e.change_BND, e.weight_D, e.shift_BD, e.scale_BD)));
  EXPECT_TRUE(modulated_rms_norm(x_BND, e.weight_D, odd, parts[2])
                  .equal(modulated_rms_norm(x_BND, e.weight_D, odd.clone(), e.scale_BD)));
}

TEST(BlockPasses, have_the_same_bits_with_any_number_of_threads) {
  const int before = at::get_num_threads();
  for (const Sizes& sizes : kSizes) {
    const Example e = example(sizes);
    at::set_num_threads(1);
    const std::vector<at::Tensor> alone = found(e);
    at::set_num_threads(3);
    const std::vector<at::Tensor> together = found(e);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(alone[i].equal(together[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(BlockPasses, take_views_whose_rows_stand_apart) {
  const Example e = example(kSizes[0]);
  const at::Tensor wide = at::cat({e.x_BND, e.change_BND}, -1);
  const at::Tensor right = wide.slice(-1, e.x_BND.size(2));
  const at::Tensor modulation = at::cat({e.shift_BD, e.scale_BD}, 1);
  const auto parts = modulation.chunk(2, 1);
  EXPECT_TRUE(modulated_rms_norm(right, e.weight_D, parts[0], parts[1])
                  .equal(modulated_rms_norm(e.change_BND, e.weight_D, e.shift_BD, e.scale_BD)));
  EXPECT_TRUE(
      normed_gated_sum(right, parts[1], right, e.weight_D, parts[0], parts[1])
          .normed_BND.equal(
              normed_gated_sum(e.change_BND, e.scale_BD, e.change_BND, e.weight_D, e.shift_BD, e.scale_BD).normed_BND));
  EXPECT_TRUE(swiglu(right).equal(swiglu(e.change_BND)));
}

TEST(BlockPasses, swiglu_passes_on_what_is_not_a_number_and_stays_finite_for_large_numbers) {
  const at::Tensor gates = at::tensor({std::numeric_limits<float>::quiet_NaN(), 1e30F, -1e30F, 40.0F, -40.0F});
  const at::Tensor y = swiglu(at::cat({gates, at::ones({5})}).view({1, 1, 10})).flatten();
  EXPECT_TRUE(y[0].isnan().item<bool>());
  EXPECT_EQ(y[1].item<float>(), 1e30F);
  EXPECT_EQ(y[2].item<float>(), 0.0F);
  EXPECT_EQ(y[3].item<float>(), 40.0F);
  EXPECT_NEAR(y[4].item<float>(), 0.0F, 1e-15F);
}

}  // namespace
}  // namespace lockstep
