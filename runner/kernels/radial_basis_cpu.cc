// CPU implementation of the radial bases: the inner loops run over the sixteen Gaussians, so that the compiler turns
// them into vectors; the widest ones that the processor has are chosen at run time.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "runner/base/vector_loops.h"
#include "runner/kernels/radial_basis.h"

namespace lockstep::radial_basis_detail {
namespace {

constexpr int64_t kPairsOfOneTask = 256;
constexpr float kFarthest = 1000.0F;  // Å; distances are clamped to it: all bases are 0 at much shorter ones

LOCKSTEP_VECTOR_CLONES
void fill_range(const float* atoms, const int64_t* from, const int64_t* to, const float* alpha, int64_t begin,
                int64_t end, float* out) {
  constexpr float kWidth = (kLastCentre - kFirstCentre) / static_cast<float>(kRadialBases);
  constexpr float kStep = (kLastCentre - kFirstCentre) / static_cast<float>(kRadialBases - 1);
  constexpr int64_t kCoordinates = kBackboneAtoms * 3;
  std::array<float, kRadialBases> centres;
  for (size_t r = 0; r < centres.size(); ++r) centres[r] = kFirstCentre + kStep * static_cast<float>(r);
  for (int64_t e = begin; e < end; ++e) {
    const float* const first = atoms + from[e] * kCoordinates;
    const float* const second = atoms + to[e] * kCoordinates;
    float* const row = out + e * kRadialFeatures;
    for (int64_t p = 0; p < kAtomPairs; ++p) {
      const float* const a = first + 3 * kPairs[p][0];
      const float* const b = second + 3 * kPairs[p][1];
      const float dx = a[0] - b[0];
      const float dy = a[1] - b[1];
      const float dz = a[2] - b[2];
      const float apart = p == 0 ? alpha[e] : std::sqrt(dx * dx + dy * dy + dz * dz + kSquareEps);
      const float distance = std::min(apart, kFarthest);
      float* const values = row + p * kRadialBases;
      for (int64_t r = 0; r < kRadialBases; ++r) {
        const float z = (distance - centres[static_cast<size_t>(r)]) * (1.0F / kWidth);
        values[r] = exp_of_negative(-z * z);
      }
    }
  }
}

}  // namespace

void fill_on_cpu(const float* atoms, const int64_t* from, const int64_t* to, const float* alpha, int64_t pairs,
                 float* out) {
  at::parallel_for(0, pairs, kPairsOfOneTask,
                   [&](int64_t begin, int64_t end) { fill_range(atoms, from, to, alpha, begin, end, out); });
}

}  // namespace lockstep::radial_basis_detail
