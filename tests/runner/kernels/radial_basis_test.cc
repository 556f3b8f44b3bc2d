#include "runner/kernels/radial_basis.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "tests/runner/support/devices.h"

namespace lockstep {
namespace {

// Straight from the definition, in fp64.
at::Tensor expected_bases(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                          const at::Tensor& alpha_E) {
  const auto column = [](int side) {
    std::vector<int64_t> atoms;
    for (const auto& pair : radial_basis_detail::kPairs) atoms.push_back(pair[side]);
    return at::tensor(atoms);
  };
  const at::Tensor atoms = atoms_NA3.to(at::kDouble);
  const at::Tensor from_EP3 = atoms.index_select(0, from_E).index_select(1, column(0));
  const at::Tensor to_EP3 = atoms.index_select(0, to_E).index_select(1, column(1));
  at::Tensor distance_EP1 = ((from_EP3 - to_EP3).square().sum(-1, /*keepdim=*/true) + 1e-6).sqrt();
  distance_EP1.select(1, 0).copy_(alpha_E.unsqueeze(1));
  const at::Tensor centres_R = at::linspace(2.0, 22.0, kRadialBases, at::kDouble);
  return ((distance_EP1 - centres_R) / 1.25).square().neg().exp().flatten(1);
}

class RadialBasisOnEachDevice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(RadialBasisOnEachDevice, is_that_of_its_definition) {
  torch::manual_seed(3);
  constexpr int64_t kResidues = 200;
  for (const int64_t pairs : {0, 1, 37, 5000}) {
    const at::Tensor atoms = at::randn({kResidues, kBackboneAtoms, 3}) * 9.0;
    const at::Tensor from = at::randint(kResidues, {pairs}, at::kLong);
    const at::Tensor to = at::randint(kResidues, {pairs}, at::kLong);
    const at::Tensor alpha = at::rand({pairs}) * 40.0;
    const auto there = [](const at::Tensor& x) { return x.to(GetParam()); };
    const at::Tensor found = radial_basis(there(atoms), there(from), there(to), there(alpha));
    ASSERT_EQ(found.sizes(), at::IntArrayRef({pairs, kRadialFeatures}));
    if (pairs == 0) continue;
    const at::Tensor expected = expected_bases(atoms, from, to, alpha);
    EXPECT_LT((found.to(at::kCPU) - expected).abs().max().item<double>(), 1e-5) << pairs;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RadialBasisOnEachDevice, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace lockstep
