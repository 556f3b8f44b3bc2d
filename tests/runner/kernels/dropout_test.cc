#include "runner/kernels/dropout.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runner/base/philox.h"
#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

constexpr double kRate = 0.3;

// One word at a time, straight from the definition.
at::Tensor reference_mask(int64_t samples, int64_t n, double p, const DropoutKey& key) {
  at::Tensor mask = at::zeros({samples, n});
  const auto drop_below = static_cast<uint32_t>(std::llround(p * 4294967296.0));
  for (int64_t b = 0; b < samples; ++b) {
    const PhiloxStream stream{key.seed, static_cast<uint32_t>(RandomPurpose::kDropout) + key.layer,
                              static_cast<uint32_t>(key.step), static_cast<uint32_t>(key.first_slot + b)};
    for (int64_t e = 0; e < n; ++e) {
      mask[b][e] = stream.word(static_cast<uint64_t>(e)) >= drop_below ? 1.0F : 0.0F;
    }
  }
  return mask;
}

TEST(Dropout, mask_is_the_one_of_the_philox_stream_for_every_length_of_tail) {
  const DropoutKey key{.seed = 0x123456789abcdef0ULL, .step = 7, .first_slot = 3, .layer = 2};
  for (const int64_t n : {1, 3, 4, 63, 64, 65, 127, 200}) {
    const at::Tensor mask = reference_mask(3, n, kRate, key);
    const at::Tensor expected = mask * static_cast<float>(1.0 / (1.0 - kRate));
    EXPECT_TRUE(at::equal(philox_dropout(at::ones({3, n}), kRate, key), expected)) << "n = " << n;
  }
}

TEST(Dropout, mask_does_not_depend_on_how_the_batch_is_split) {
  const at::Tensor x = at::randn({7, 5, 11});
  const DropoutKey key{.seed = 42, .step = 1, .first_slot = 100, .layer = 0};
  const at::Tensor whole = philox_dropout(x, kRate, key);
  for (const int64_t cut : {1, 3, 6}) {
    DropoutKey tail = key;
    tail.first_slot += cut;
    const at::Tensor parts =
        at::cat({philox_dropout(x.slice(0, 0, cut), kRate, key), philox_dropout(x.slice(0, cut), kRate, tail)});
    EXPECT_TRUE(at::equal(whole, parts)) << "cut at " << cut;
  }
}

TEST(Dropout, mask_does_not_depend_on_the_number_of_threads) {
  const at::Tensor x = at::randn({16, 1000});
  const DropoutKey key{.seed = 1, .step = 2, .first_slot = 0, .layer = 3};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = philox_dropout(x, kRate, key);
  at::set_num_threads(2);
  const at::Tensor two = philox_dropout(x, kRate, key);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, two));
}

TEST(Dropout, seed_step_slot_and_layer_each_change_the_mask) {
  const at::Tensor x = at::ones({2, 256});
  const DropoutKey key{.seed = 1, .step = 1, .first_slot = 1, .layer = 1};
  const at::Tensor base = philox_dropout(x, 0.5, key);
  EXPECT_FALSE(at::equal(base, philox_dropout(x, 0.5, {.seed = 2, .step = 1, .first_slot = 1, .layer = 1})));
  EXPECT_FALSE(at::equal(base, philox_dropout(x, 0.5, {.seed = 1, .step = 2, .first_slot = 1, .layer = 1})));
  EXPECT_FALSE(at::equal(base, philox_dropout(x, 0.5, {.seed = 1, .step = 1, .first_slot = 9, .layer = 1})));
  EXPECT_FALSE(at::equal(base, philox_dropout(x, 0.5, {.seed = 1, .step = 1, .first_slot = 1, .layer = 2})));
}

TEST(Dropout, keeps_the_asked_share_and_the_mean) {
  const at::Tensor y = philox_dropout(at::ones({64, 4096}), kRate, {.seed = 5, .step = 0, .first_slot = 0, .layer = 0});
  const double kept = y.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 1.0 - kRate, 0.005);  // 5.6 standard deviations
  EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
}

TEST(Dropout, gradient_passes_through_the_same_mask) {
  const at::Tensor x = at::randn({4, 33}).requires_grad_();
  const at::Tensor y = philox_dropout(x, kRate, {.seed = 5, .step = 0, .first_slot = 0, .layer = 0});
  const at::Tensor upstream = at::randn({4, 33});
  y.backward(upstream);
  const at::Tensor kept = y.detach().ne(0).to(at::kFloat);
  EXPECT_TRUE(at::allclose(x.grad(), upstream * kept / (1.0 - kRate)));
}

TEST(Dropout, works_in_every_floating_dtype_with_one_mask) {
  const at::Tensor x = at::ones({3, 130});
  const DropoutKey key{.seed = 8, .step = 3, .first_slot = 0, .layer = 0};
  const at::Tensor kept = philox_dropout(x, 0.5, key);
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor y = philox_dropout(x.to(dtype), 0.5, key);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(y.to(at::kFloat), kept));  // 0 and 2 are exact in all of them
  }
}

TEST(Dropout, reads_a_strided_input_in_logical_order) {
  const at::Tensor x = at::randn({2, 9, 4});
  const DropoutKey key{.seed = 8, .step = 3, .first_slot = 0, .layer = 0};
  const at::Tensor turned = x.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_TRUE(at::equal(philox_dropout(x, 0.5, key), philox_dropout(turned, 0.5, key)));
}

TEST(Dropout, rate_zero_and_an_empty_batch_return_the_input) {
  const at::Tensor x = at::randn({2, 3});
  EXPECT_TRUE(philox_dropout(x, 0.0, {}).is_same(x));
  const at::Tensor none = at::empty({0, 3});
  EXPECT_TRUE(philox_dropout(none, 0.5, {}).is_same(none));
}

TEST(Dropout, refuses_a_rate_outside_of_its_range) {
  EXPECT_THROW(philox_dropout(at::ones({1, 1}), 1.0, {}), c10::Error);
  EXPECT_THROW(philox_dropout(at::ones({1, 1}), -0.1, {}), c10::Error);
}

TEST(DropoutOfRows, mask_is_that_of_the_sample_whose_parts_the_rows_are) {
  const DropoutKey key{.seed = 0x123456789abcdef0ULL, .step = 7, .first_slot = 0, .layer = 2};
  const at::Tensor whole = philox_dropout(at::ones({5, 6, 132}), kRate, key);
  const DropoutRows rows{.samples_R = at::tensor({4, 0, 4, 2}, at::kLong),
                         .parts_R = at::tensor({5, 3, 0, 1}, at::kLong)};
  const at::Tensor found = philox_dropout(at::ones({4, 132}), kRate, key, rows);
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(at::equal(found[r], whole[rows.samples_R[r].item<int64_t>()][rows.parts_R[r].item<int64_t>()]));
  }
}

TEST(DropoutOfRows, of_any_width_a_row_has_the_same_mask_among_others) {
  const DropoutKey key{.seed = 3, .step = 1, .first_slot = 0, .layer = 0};
  for (const int64_t n : {1, 3, 63, 66}) {
    const DropoutRows both{.samples_R = at::tensor({9, 70000}, at::kLong), .parts_R = at::tensor({2, 100}, at::kLong)};
    const DropoutRows second{.samples_R = both.samples_R.slice(0, 1), .parts_R = both.parts_R.slice(0, 1)};
    const at::Tensor of_both = philox_dropout(at::ones({2, n}), 0.5, key, both);
    EXPECT_TRUE(at::equal(of_both.slice(0, 1), philox_dropout(at::ones({1, n}), 0.5, key, second))) << "n = " << n;
  }
}

TEST(DropoutOfRows, gradient_passes_through_the_same_mask) {
  const at::Tensor x = at::randn({2, 33}).requires_grad_();
  const DropoutRows rows{.samples_R = at::tensor({8, 3}, at::kLong), .parts_R = at::tensor({0, 7}, at::kLong)};
  const at::Tensor y = philox_dropout(x, kRate, {.seed = 5, .step = 0, .first_slot = 0, .layer = 0}, rows);
  const at::Tensor upstream = at::randn({2, 33});
  y.backward(upstream);
  EXPECT_TRUE(at::allclose(x.grad(), upstream * y.detach().ne(0).to(at::kFloat) / (1.0 - kRate)));
}

TEST(DropoutOfRows, refuses_what_is_not_one_number_for_each_row) {
  const at::Tensor two = at::zeros({2}, at::kLong);
  const at::Tensor x = at::ones({2, 4});
  EXPECT_THROW(philox_dropout(x, 0.5, {}, {.samples_R = two, .parts_R = at::zeros({3}, at::kLong)}), c10::Error);
  EXPECT_THROW(philox_dropout(x, 0.5, {}, {.samples_R = at::zeros({2}), .parts_R = two}), c10::Error);
  EXPECT_THROW(philox_dropout(x, 0.5, {}, {.samples_R = at::zeros({1}, at::kLong).expand({2}), .parts_R = two}),
               c10::Error);
  EXPECT_THROW(philox_dropout(at::ones({2, 4, 1}), 0.5, {}, {.samples_R = two, .parts_R = two}), c10::Error);
}

class DropoutOnEachDevice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(DropoutOnEachDevice, output_and_gradient_are_those_of_the_cpu_in_every_dtype) {
  const DropoutKey key{.seed = 0x123456789abcdef0ULL, .step = 9, .first_slot = 70, .layer = 4};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {1, 3, 127, 1000}) {
      const at::Tensor x = at::ones({5, n}, dtype).requires_grad_();
      const at::Tensor there = x.detach().to(GetParam()).requires_grad_();
      const at::Tensor expected = philox_dropout(x, kRate, key);
      const at::Tensor found = philox_dropout(there, kRate, key);
      EXPECT_TRUE(at::equal(found.to(at::kCPU), expected)) << dtype << ", n = " << n;
      expected.backward(at::ones_like(expected));
      found.backward(at::ones_like(found));
      EXPECT_TRUE(at::equal(there.grad().to(at::kCPU), x.grad())) << dtype << ", n = " << n;
    }
  }
}

TEST_P(DropoutOnEachDevice, masks_of_rows_are_those_of_the_cpu) {
  const DropoutKey key{.seed = 0x123456789abcdef0ULL, .step = 9, .first_slot = 0, .layer = 4};
  const DropoutRows rows{.samples_R = at::tensor({70, 2, 70}, at::kLong),
                         .parts_R = at::tensor({0, 127, 5}, at::kLong)};
  for (const int64_t n : {1, 127, 256}) {
    const at::Tensor found =
        philox_dropout(at::ones({3, n}).to(GetParam()), kRate, key,
                       {.samples_R = rows.samples_R.to(GetParam()), .parts_R = rows.parts_R.to(GetParam())});
    EXPECT_TRUE(at::equal(found.to(at::kCPU), philox_dropout(at::ones({3, n}), kRate, key, rows))) << "n = " << n;
  }
}

TEST_P(DropoutOnEachDevice, of_relu_is_dropout_and_relu_with_their_gradient) {
  const DropoutKey key{.seed = 5, .step = 2, .first_slot = 3, .layer = 1};
  at::Tensor values = at::randn({5, 3, 70}).to(GetParam());
  values[0][0][0] = 0.0;
  for (const double rate : {0.0, kRate}) {
    const at::Tensor x = values.clone().requires_grad_();
    const at::Tensor same = values.clone().requires_grad_();
    const at::Tensor y = philox_dropout_of_relu(x, rate, key);
    const at::Tensor expected = philox_dropout(at::relu(same), rate, key);
    EXPECT_TRUE(at::equal(y, expected));
    const at::Tensor upstream = at::randn_like(values);
    y.backward(upstream);
    expected.backward(upstream);
    EXPECT_TRUE(at::equal(x.grad(), same.grad()));
  }
}

TEST_P(DropoutOnEachDevice, of_relu_passes_on_what_is_not_a_number) {
  const at::Tensor x = at::full({1, 64}, std::numeric_limits<float>::quiet_NaN()).to(GetParam());
  const at::Tensor y = philox_dropout_of_relu(x, kRate, {.seed = 5, .step = 0, .first_slot = 0, .layer = 0});
  EXPECT_TRUE(y.isnan().any().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Devices, DropoutOnEachDevice, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
