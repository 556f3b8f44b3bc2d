#include "runner/kernels/column_sums.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace lockstep {
namespace {

void expect_sums(at::Device device) {
  torch::manual_seed(3);
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1, 4}, {300, 12}, {257, 2304}, {7, 5}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x_RC = torch::randn(sizes).to(device, type);
      const at::Tensor found_C = column_sums(x_RC);
      const at::Tensor expected_C = x_RC.to(at::kDouble).sum(0);
      EXPECT_EQ(found_C.scalar_type(), at::kFloat);
      EXPECT_LT((found_C - expected_C).abs().max().item<double>(), 1e-4) << sizes[0] << " x " << sizes[1];
      const at::Tensor columns_apart = torch::cat({x_RC, x_RC}, 1).slice(1, 1, 1 + x_RC.size(1));
      EXPECT_TRUE(column_sums(columns_apart).equal(column_sums(columns_apart.contiguous())));
    }
  }
  EXPECT_TRUE(column_sums(torch::zeros({0, 8}, device)).equal(torch::zeros({8}, device)));
}

TEST(ColumnSums, are_those_of_fp64) { expect_sums(at::kCPU); }

TEST(ColumnSumsOnCuda, are_those_of_fp64) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU on this machine";
  expect_sums(at::kCUDA);
}

}  // namespace
}  // namespace lockstep
