#include "runner/kernels/tanh_gelu.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

namespace lockstep {
namespace {

struct Result {
  at::Tensor value;
  at::Tensor grad;
};

Result found(const at::Tensor& x_SF, const at::Tensor& bias_F, const at::Tensor& grad_SF) {
  const at::Tensor x = x_SF.detach().requires_grad_();
  const at::Tensor value = tanh_gelu(x, bias_F);
  return {value.detach(), torch::autograd::grad({value}, {x}, {grad_SF})[0]};
}

Result expected(const at::Tensor& x_SF, const at::Tensor& bias_F, const at::Tensor& grad_SF) {
  const at::Tensor x = x_SF.detach().to(at::kDouble).requires_grad_();
  const at::Tensor value = at::gelu(x + bias_F, "tanh");
  return {value.detach(), torch::autograd::grad({value}, {x}, {grad_SF.to(at::kDouble)})[0]};
}

TEST(TanhGelu, is_that_of_torch) {
  torch::manual_seed(4);
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1, 1}, {7, 37}, {300, 1024}}) {
    const at::Tensor x = 4.0 * torch::randn(sizes);
    const at::Tensor bias = torch::randn(sizes[1]);
    const at::Tensor grad = torch::randn(sizes);
    const Result ours = found(x, bias, grad);
    const Result theirs = expected(x, bias, grad);
    EXPECT_LT((ours.value - theirs.value).abs().max().item<double>(), 4e-6);
    EXPECT_LT((ours.grad - theirs.grad).abs().max().item<double>(), 1e-5);
    const Result in_fp64 = found(x.to(at::kDouble), bias.to(at::kDouble), grad.to(at::kDouble));  // by operators
    EXPECT_TRUE(at::allclose(in_fp64.value, theirs.value));
    EXPECT_TRUE(at::allclose(in_fp64.grad, theirs.grad));
  }
}

TEST(TanhGelu, has_the_same_bits_with_any_number_of_threads) {
  const int before = at::get_num_threads();
  const at::Tensor x = torch::randn({333, 50});
  const at::Tensor bias = torch::randn(50);
  at::set_num_threads(1);
  const Result alone = found(x, bias, x);
  at::set_num_threads(3);
  const Result together = found(x, bias, x);
  at::set_num_threads(before);
  EXPECT_TRUE(alone.value.equal(together.value));
  EXPECT_TRUE(alone.grad.equal(together.grad));
}

TEST(TanhGelu, stays_finite_far_from_0_and_passes_on_what_is_not_a_number) {
  const at::Tensor x = torch::tensor({{1e6F, -1e6F, 50.0F, -50.0F, std::numeric_limits<float>::quiet_NaN()}});
  const Result ours = found(x, torch::zeros(5), torch::ones({1, 5}));
  EXPECT_TRUE(ours.value.slice(1, 0, 4).equal(torch::tensor({{1e6F, 0.0F, 50.0F, 0.0F}})));
  EXPECT_TRUE(ours.grad.slice(1, 0, 4).equal(torch::tensor({{1.0F, 0.0F, 1.0F, 0.0F}})));
  EXPECT_TRUE(ours.value[0][4].isnan().item<bool>());
}

}  // namespace
}  // namespace lockstep
