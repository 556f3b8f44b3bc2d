#include "runner/kernels/nearest_residues.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

using nearest_residues_detail::nearest_by_operators;

struct Residues {
  at::Tensor points_BL3;
  at::Tensor known_BL;
  at::Tensor used_BL;
};

// Two samples of 60 and 41 residues, some without coordinates.
Residues example(at::Device device) {
  torch::manual_seed(11);
  Residues made{.points_BL3 = at::randn({2, 60, 3}) * 9.0,
                .known_BL = at::rand({2, 60}) > 0.1,
                .used_BL = at::ones({2, 60}, at::kBool)};
  made.used_BL[1].narrow(0, 41, 19).fill_(false);
  return {.points_BL3 = made.points_BL3.to(device),
          .known_BL = made.known_BL.to(device),
          .used_BL = made.used_BL.to(device)};
}

// Residues without coordinates are equally far, and which of them is taken is not said: only distances are compared.
void expect_same(const NearestResidues& found, const NearestResidues& expected) {
  EXPECT_TRUE(at::equal(found.present_BLK.to(at::kCPU), expected.present_BLK));
  const at::Tensor off = (found.distances_BLK.to(at::kCPU) - expected.distances_BLK).abs();
  EXPECT_LT(off.masked_fill(expected.present_BLK.logical_not(), 0.0).max().item<double>(), 1e-4);
}

class NearestResiduesOnEachDevice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(NearestResiduesOnEachDevice, are_those_of_the_cpu_twin) {
  const Residues cpu = example(at::kCPU);
  const Residues here = example(GetParam());
  for (const int64_t k : {1, 30, 48, 64}) {  // 64: more than there are
    const NearestResidues expected = nearest_residues(cpu.points_BL3, cpu.known_BL, cpu.used_BL, k);
    expect_same(nearest_residues(here.points_BL3, here.known_BL, here.used_BL, k), expected);
    for (const int64_t distances_max : {1, 700, 1 << 25}) {  // one row at a time, five, all
      expect_same(nearest_by_operators(here.points_BL3, here.known_BL, here.used_BL, k, distances_max), expected);
    }
  }
}

TEST_P(NearestResiduesOnEachDevice, are_the_nearest_with_themselves_first) {
  const at::Tensor points = at::arange(100, at::kFloat).square().view({1, 100, 1}).expand({1, 100, 3}).contiguous();
  const at::Tensor all = at::ones({1, 100}, at::TensorOptions(at::kBool).device(GetParam()));
  const NearestResidues found = nearest_residues(points.to(GetParam()), all, all, 3);
  EXPECT_TRUE(found.present_BLK.all().item<bool>());
  EXPECT_TRUE(at::equal(found.places_BLK[0][50].to(at::kCPU), at::tensor({50, 49, 51}, at::kLong)));
  EXPECT_TRUE(at::equal(found.places_BLK[0][0].to(at::kCPU), at::tensor({0, 1, 2}, at::kLong)));
}

INSTANTIATE_TEST_SUITE_P(Devices, NearestResiduesOnEachDevice, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
