#include "runner/kernels/pair_scores.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

using pair_scores_detail::passes;
using pair_scores_detail::scores_by_operators;
using pair_scores_detail::scores_by_pass;

struct Pairs {
  at::Tensor users_UH;
  at::Tensor items_IH;
  ScoreLayers layers;
};

Pairs example(int64_t users, int64_t items, int64_t hidden, int64_t second, at::Device device = at::kCPU) {
  torch::manual_seed(3);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(device); };
  return {.users_UH = random({users, hidden}),
          .items_IH = random({items, hidden}),
          .layers = {.second_SH = random({second, hidden}) * 0.1,
                     .second_bias_S = random({second}),
                     .last_1S = random({1, second}),
                     .last_bias_1 = random({1})}};
}

// As the definition has it, with the hidden values of all pairs in memory.
at::Tensor expected(const Pairs& pairs) {
  const at::Tensor first_UIH = at::relu(pairs.users_UH.unsqueeze(1) + pairs.items_IH.unsqueeze(0));
  const at::Tensor second_UIS = at::relu(at::linear(first_UIH, pairs.layers.second_SH, pairs.layers.second_bias_S));
  return at::linear(second_UIS, pairs.layers.last_1S, pairs.layers.last_bias_1).squeeze(-1).to(at::kCPU);
}

class PairScoresOnEachDevice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(PairScoresOnEachDevice, are_those_of_the_definition) {
  const int64_t sizes[][4] = {{1, 1, 128, 64}, {33, 700, 128, 64}, {17, 12, 16, 32}, {3, 25, 48, 96}, {5, 30, 7, 5}};
  for (const auto& [users, items, hidden, second] : sizes) {
    const Pairs pairs = example(users, items, hidden, second, GetParam());
    const at::Tensor wanted_UI = expected(pairs);
    EXPECT_LT(
        (pair_scores(pairs.users_UH, pairs.items_IH, pairs.layers).to(at::kCPU) - wanted_UI).abs().max().item<double>(),
        1e-4)
        << users;
    EXPECT_LT((scores_by_operators(pairs.users_UH, pairs.items_IH, pairs.layers).to(at::kCPU) - wanted_UI)
                  .abs()
                  .max()
                  .item<double>(),
              1e-4)
        << users;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PairScoresOnEachDevice, testing::ValuesIn(devices()), device_name);

// Index into passes().
class EachPass : public testing::TestWithParam<size_t> {
 protected:
  static at::Tensor scores(const Pairs& pairs) {
    return scores_by_pass(passes()[GetParam()], pairs.users_UH, pairs.items_IH, pairs.layers);
  }
};

TEST_P(EachPass, gives_the_scores_of_the_definition) {
  const int64_t sizes[][4] = {{1, 1, 128, 64}, {33, 700, 128, 64}, {17, 12, 16, 32}, {3, 25, 48, 96}};
  for (const auto& [users, items, hidden, second] : sizes) {
    const Pairs pairs = example(users, items, hidden, second);
    EXPECT_LT((scores(pairs) - expected(pairs)).abs().max().item<double>(), 1e-4) << users;
  }
}

TEST_P(EachPass, does_not_depend_on_the_other_pairs_or_the_threads) {
  const Pairs pairs = example(9, 100, 128, 64);
  const at::Tensor all_UI = scores(pairs);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(scores(pairs), all_UI));
  at::set_num_threads(threads);
  const at::Tensor some_UI = scores({.users_UH = pairs.users_UH.narrow(0, 4, 2),
                                     .items_IH = pairs.items_IH.narrow(0, 31, 40),
                                     .layers = pairs.layers});
  EXPECT_TRUE(at::equal(some_UI, all_UI.narrow(0, 4, 2).narrow(1, 31, 40)));
}

TEST_P(EachPass, does_not_hide_a_value_that_is_not_a_number) {
  Pairs pairs = example(2, 20, 128, 64);
  pairs.items_IH[7][3] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor is_nan_I = scores(pairs).isnan().all(0);
  EXPECT_EQ(is_nan_I.sum().item<int64_t>(), 1);
  EXPECT_TRUE(is_nan_I[7].item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Passes, EachPass, testing::Range(size_t{0}, passes().size()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EachPass);  // a processor may have none

TEST(PairScores, give_double_precision_to_the_operators) {
  Pairs pairs = example(2, 20, 128, 64);
  for (at::Tensor* tensor : {&pairs.users_UH, &pairs.items_IH, &pairs.layers.second_SH, &pairs.layers.second_bias_S,
                             &pairs.layers.last_1S, &pairs.layers.last_bias_1}) {
    *tensor = tensor->to(at::kDouble);
  }
  EXPECT_LT((pair_scores(pairs.users_UH, pairs.items_IH, pairs.layers) - expected(pairs)).abs().max().item<double>(),
            1e-5);
}

}  // namespace
}  // namespace lockstep
