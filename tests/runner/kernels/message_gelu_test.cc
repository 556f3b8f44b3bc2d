#include "runner/kernels/message_gelu.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

struct Example {
  at::Tensor edges_NKD;
  at::Tensor own_ND;
  at::Tensor table_RD;
  at::Tensor rows_NK;
  at::Tensor bias_D;
  at::Tensor weights_NK;
  at::Tensor grad_NKD;
  at::Tensor grad_ND;
};

Example example(int64_t nodes, int64_t neighbours, int64_t width) {
  torch::manual_seed(5);
  const auto leaf = [](at::IntArrayRef sizes) { return (3.0 * at::randn(sizes)).requires_grad_(); };
  const int64_t rows = 2 * nodes;
  return {.edges_NKD = leaf({nodes, neighbours, width}),
          .own_ND = leaf({nodes, width}),
          .table_RD = leaf({rows, width}),
          .rows_NK = at::randint(rows, {nodes, neighbours}, at::kLong),
          .bias_D = leaf({width}),
          .weights_NK = at::randint(2, {nodes, neighbours}, at::kFloat),
          .grad_NKD = at::randn({nodes, neighbours, width}),
          .grad_ND = at::randn({nodes, width})};
}

Example moved(const Example& e, at::Device device, at::ScalarType type) {
  const auto leaf = [&](const at::Tensor& x) { return x.detach().to(device, type).requires_grad_(); };
  return {.edges_NKD = leaf(e.edges_NKD),
          .own_ND = leaf(e.own_ND),
          .table_RD = leaf(e.table_RD),
          .rows_NK = e.rows_NK.to(device),
          .bias_D = leaf(e.bias_D),
          .weights_NK = e.weights_NK.to(device),
          .grad_NKD = e.grad_NKD.to(device, type),
          .grad_ND = e.grad_ND.to(device, type)};
}

std::vector<at::Tensor> results_of(const at::Tensor& out, const at::Tensor& grad,
                                   const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> results = {out.detach()};
  for (const at::Tensor& one : torch::autograd::grad({out}, inputs, {grad})) results.push_back(one);
  return results;
}

// By ATen's operators, in fp64.
std::vector<at::Tensor> expected_results(const Example& example) {
  const Example e = moved(example, at::kCPU, at::kDouble);
  std::vector<at::Tensor> all;
  const auto add = [&](const std::vector<at::Tensor>& some) { all.insert(all.end(), some.begin(), some.end()); };
  add(results_of(at::gelu(e.edges_NKD + e.own_ND.unsqueeze(1) + at::embedding(e.table_RD, e.rows_NK)), e.grad_NKD,
                 {e.edges_NKD, e.own_ND, e.table_RD}));
  add(results_of(at::gelu(e.edges_NKD + e.bias_D), e.grad_NKD, {e.edges_NKD, e.bias_D}));
  add(results_of((e.weights_NK.unsqueeze(2) * at::gelu(e.edges_NKD + e.bias_D)).sum(1), e.grad_ND,
                 {e.edges_NKD, e.bias_D}));
  return all;
}

// `expected`: fp64. Gradients of tables and biases are sums over all nodes, so that what is lost is measured by their
// largest value.
void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double off = (found[i].to(at::kCPU, at::kDouble) - expected[i]).abs().max().item<double>();
    EXPECT_LT(off, tolerance * std::max(1.0, expected[i].abs().max().item<double>())) << "number " << i;
  }
}

std::vector<at::Tensor> all_results(const Example& e) {
  std::vector<at::Tensor> all;
  const auto add = [&](const std::vector<at::Tensor>& some) { all.insert(all.end(), some.begin(), some.end()); };
  add(results_of(gelu_of_sum(e.edges_NKD.clone(), e.own_ND, e.table_RD, e.rows_NK), e.grad_NKD,
                 {e.edges_NKD, e.own_ND, e.table_RD}));
  add(results_of(gelu_with_bias(e.edges_NKD, e.bias_D), e.grad_NKD, {e.edges_NKD, e.bias_D}));
  add(results_of(weighted_gelu_sum(e.edges_NKD, e.bias_D, e.weights_NK), e.grad_ND, {e.edges_NKD, e.bias_D}));
  return all;
}

// Widths with and without a rest behind whole groups of lanes; more than one piece.
constexpr int64_t kShapes[][3] = {{7, 5, 32}, {400, 24, 64}, {3, 1, 1}, {50, 48, 37}};

class MessageGeluOnEachDevice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(MessageGeluOnEachDevice, agrees_with_the_operators_that_it_stands_for) {
  for (const auto& shape : kShapes) {
    const Example e = example(shape[0], shape[1], shape[2]);
    expect_close(all_results(moved(e, GetParam(), at::kFloat)), expected_results(e), 2e-6);
  }
}

// Of autocast, whose tensors are rounded; parameters stay fp32.
TEST_P(MessageGeluOnEachDevice, takes_bf16_beside_parameters_in_fp32) {
  const Example e = example(7, 5, 32);
  Example half = moved(e, GetParam(), at::kBFloat16);
  half.bias_D = e.bias_D.detach().to(GetParam()).requires_grad_();
  const std::vector<at::Tensor> found = all_results(half);
  expect_close(found, expected_results(moved(half, at::kCPU, at::kFloat)), 4e-2);
  EXPECT_EQ(found[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(found.back().scalar_type(), at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(Devices, MessageGeluOnEachDevice, testing::ValuesIn(devices()), device_name);

TEST(MessageGelu, has_the_same_bits_with_any_number_of_threads) {
  const int before = at::get_num_threads();
  for (const auto& shape : kShapes) {
    const Example e = example(shape[0], shape[1], shape[2]);
    at::set_num_threads(1);
    const std::vector<at::Tensor> alone = all_results(e);
    at::set_num_threads(3);
    const std::vector<at::Tensor> together = all_results(e);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(alone[i].equal(together[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(MessageGelu, passes_on_what_is_not_a_number_and_stays_finite_for_large_numbers) {
  const at::Tensor x =
      at::tensor({std::numeric_limits<float>::quiet_NaN(), 1e30F, -1e30F, 40.0F, -40.0F}).view({1, 1, 5});
  const at::Tensor y = gelu_with_bias(x, at::zeros({5})).flatten();
  EXPECT_TRUE(y[0].isnan().item<bool>());
  EXPECT_EQ(y[1].item<float>(), 1e30F);
  EXPECT_EQ(y[2].item<float>(), 0.0F);
  EXPECT_EQ(y[3].item<float>(), 40.0F);
  EXPECT_EQ(y[4].item<float>(), 0.0F);
}

}  // namespace
}  // namespace lockstep
