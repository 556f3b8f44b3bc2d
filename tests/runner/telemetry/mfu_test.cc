#include "runner/telemetry/mfu.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Mfu, knows_devices_by_the_names_their_driver_gives) {
  EXPECT_EQ(peak_flops_per_second("NVIDIA H100 80GB HBM3", Precision::kBf16), 989.4e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA H100 PCIe", Precision::kBf16), 756e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA H200", Precision::kTf32), 494.7e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA A100-SXM4-80GB", Precision::kFp32), 19.5e12);
  EXPECT_EQ(peak_flops_per_second("Tesla T4", Precision::kFp16), 65e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA GeForce RTX 4090", Precision::kBf16), 165.2e12);
}

TEST(Mfu, does_not_take_one_device_for_another) {
  EXPECT_EQ(peak_flops_per_second("NVIDIA L4", Precision::kBf16), 121e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA L40", Precision::kBf16), 181e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA L40S", Precision::kBf16), 362e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA A10G", Precision::kBf16), std::nullopt);
}

TEST(Mfu, gives_no_peak_for_what_it_does_not_know) {
  EXPECT_EQ(peak_flops_per_second("", Precision::kFp32), std::nullopt);
  EXPECT_EQ(peak_flops_per_second("cpu", Precision::kFp32), std::nullopt);
  EXPECT_EQ(peak_flops_per_second("Tesla T4", Precision::kBf16), std::nullopt);
}

TEST(Mfu, is_achieved_over_the_peak_of_all_ranks) {
  const FlopsFigures figures = flops_figures(2e9, 1000.0, 1e13, 4);
  EXPECT_DOUBLE_EQ(figures.model_flops_per_second, 2e12);
  EXPECT_DOUBLE_EQ(*figures.peak_flops_per_second, 4e13);
  EXPECT_DOUBLE_EQ(*figures.mfu, 0.05);
}

TEST(Mfu, is_absent_without_a_peak) {
  const FlopsFigures figures = flops_figures(2e9, 1000.0, std::nullopt, 4);
  EXPECT_DOUBLE_EQ(figures.model_flops_per_second, 2e12);
  EXPECT_FALSE(figures.peak_flops_per_second.has_value());
  EXPECT_FALSE(figures.mfu.has_value());
}

}  // namespace
}  // namespace lockstep
