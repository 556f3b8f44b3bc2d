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
  at::Tensor shift_BD;
  at::Tensor scale_BD;
  at::Tensor gate_and_value_BNF;
  at::Tensor qkv_BNF;
  at::Tensor q_norm_E;
  at::Tensor k_norm_E;
  HeadRotation rotation;
  at::Tensor grad_BND;
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
          .shift_BD = leaf({b, d}),
          .scale_BD = leaf({b, d}),
          .gate_and_value_BNF = leaf({b, n, 2 * f}),
          .qkv_BNF = leaf({b, n, 3 * d}),
          .q_norm_E = leaf({e}),
          .k_norm_E = leaf({e}),
          .rotation = {.cos_NE = angles.cos(), .sin_NE = angles.sin()},
          .grad_BND = at::randn({b, n, d}),
          .grad_BNF = at::randn({b, n, f}),
          .grad_heads = {at::randn({b, a, n, e}), at::randn({b, a, n, e}), at::randn({b, n, a, e}).transpose(1, 2)}};
}

Example in_fp64(const Example& single) {
  Example e = single;
  for (at::Tensor* leaf : {&e.x_BND, &e.change_BND, &e.weight_D, &e.shift_BD, &e.scale_BD, &e.gate_and_value_BNF,
                           &e.qkv_BNF, &e.q_norm_E, &e.k_norm_E}) {
    *leaf = leaf->detach().to(at::kDouble).requires_grad_();
  }
  for (at::Tensor* given : {&e.rotation.cos_NE, &e.rotation.sin_NE, &e.grad_BND, &e.grad_BNF, &e.grad_heads[0],
                            &e.grad_heads[1], &e.grad_heads[2]}) {
    *given = given->to(at::kDouble);
  }
  return e;
}

void add_results(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& out,
                 const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& grads) {
  for (const at::Tensor& one : out) results.push_back(one.detach());
  for (const at::Tensor& one : torch::autograd::grad(out, inputs, grads)) results.push_back(one);
}

std::vector<at::Tensor> found(const Example& e) {
  std::vector<at::Tensor> all;
  add_results(all, {modulated_rms_norm(e.x_BND, e.weight_D, e.shift_BD, e.scale_BD)},
              {e.x_BND, e.weight_D, e.shift_BD, e.scale_BD}, {e.grad_BND});
  add_results(all, {gated_sum(e.x_BND, e.scale_BD, e.change_BND)}, {e.x_BND, e.scale_BD, e.change_BND}, {e.grad_BND});
  add_results(all, {swiglu(e.gate_and_value_BNF)}, {e.gate_and_value_BNF}, {e.grad_BNF});
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
  add_results(all, {expected_norm(e.x_BND, e.weight_D) * (1.0 + e.scale_BD.unsqueeze(1)) + e.shift_BD.unsqueeze(1)},
              {e.x_BND, e.weight_D, e.shift_BD, e.scale_BD}, {e.grad_BND});
  add_results(all, {e.x_BND + e.scale_BD.unsqueeze(1) * e.change_BND}, {e.x_BND, e.scale_BD, e.change_BND},
              {e.grad_BND});
  const auto halves = e.gate_and_value_BNF.chunk(2, -1);
  add_results(all, {at::silu(halves[0]) * halves[1]}, {e.gate_and_value_BNF}, {e.grad_BNF});
  const int64_t width = e.q_norm_E.size(0);
  const auto qkv = e.qkv_BNF.unflatten(-1, {3, -1, width}).permute({2, 0, 3, 1, 4}).unbind(0);
  add_results(all,
              {expected_rotation(expected_norm(qkv[0], e.q_norm_E), e.rotation),
               expected_rotation(expected_norm(qkv[1], e.k_norm_E), e.rotation), qkv[2]},
              {e.qkv_BNF, e.q_norm_E, e.k_norm_E}, e.grad_heads);
  return all;
}

// Gradients of weights are sums over all tokens, so that what is lost is measured by their largest value.
TEST(BlockPasses, AgreeWithTheOperatorsThatTheyStandFor) {
  for (const Sizes& sizes : kSizes) {
    const Example single = example(sizes);
    const std::vector<at::Tensor> ours = found(single);
    const std::vector<at::Tensor> theirs = expected(in_fp64(single));
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), theirs[i].sizes()) << "number " << i;
      const double off = (ours[i] - theirs[i]).abs().max().item<double>();
      EXPECT_LT(off, 2e-6 * std::max(1.0, theirs[i].abs().max().item<double>()))
          << "number " << i << " of " << sizes.tokens << " tokens";
    }
  }
}

// What other devices and types take.
TEST(BlockPasses, HaveAWayByOperatorsThatAgrees) {
  const Example single = example(kSizes[0]);
  const std::vector<at::Tensor> by_operators = found(in_fp64(single));
  const std::vector<at::Tensor> theirs = expected(in_fp64(single));
  for (size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_TRUE(at::allclose(by_operators[i].to(at::kDouble), theirs[i], 1e-4, 1e-5)) << "number " << i;
  }
}

// As under autocast: a sum in fp32, and what the products give in bf16.
TEST(BlockPasses, HaveAWayByOperatorsForMixedTypes) {
  Example mixed = example(kSizes[0]);
  for (at::Tensor* leaf :
       {&mixed.change_BND, &mixed.shift_BD, &mixed.scale_BD, &mixed.gate_and_value_BNF, &mixed.qkv_BNF}) {
    *leaf = leaf->detach().to(at::kBFloat16).requires_grad_();
  }
  mixed.grad_BNF = mixed.grad_BNF.to(at::kBFloat16);
  for (at::Tensor& grad : mixed.grad_heads) grad = grad.to(at::kBFloat16);
  const std::vector<at::Tensor> by_operators = found(mixed);
  const std::vector<at::Tensor> theirs = expected(in_fp64(mixed));
  for (size_t i = 0; i < theirs.size(); ++i) {
    const double off = (by_operators[i].to(at::kDouble) - theirs[i]).abs().max().item<double>();
    EXPECT_LT(off, 0.02 * std::max(1.0, theirs[i].abs().max().item<double>())) << "number " << i;
  }
  EXPECT_EQ(by_operators[0].scalar_type(), at::kFloat);
}

TEST(BlockPasses, HaveTheSameBitsWithAnyNumberOfThreads) {
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

TEST(BlockPasses, TakeViewsWhoseRowsStandApart) {
  const Example e = example(kSizes[0]);
  const at::Tensor wide = at::cat({e.x_BND, e.change_BND}, -1);
  const at::Tensor right = wide.slice(-1, e.x_BND.size(2));
  const at::Tensor modulation = at::cat({e.shift_BD, e.scale_BD}, 1);
  const auto parts = modulation.chunk(2, 1);
  EXPECT_TRUE(modulated_rms_norm(right, e.weight_D, parts[0], parts[1])
                  .equal(modulated_rms_norm(e.change_BND, e.weight_D, e.shift_BD, e.scale_BD)));
  EXPECT_TRUE(gated_sum(right, parts[1], right).equal(gated_sum(e.change_BND, e.scale_BD, e.change_BND)));
  EXPECT_TRUE(swiglu(right).equal(swiglu(e.change_BND)));
}

TEST(BlockPasses, SwigluPassesOnWhatIsNotANumberAndStaysFiniteForLargeNumbers) {
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
