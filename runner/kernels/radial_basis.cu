// CUDA implementation of the radial bases: each thread computes one value, so neighbouring threads write neighbouring
// addresses.
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "runner/kernels/radial_basis.h"

namespace lockstep::radial_basis_detail {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 65536;  // with more work each thread loops

// A copy of kPairs that is passed to the kernel as an argument.
struct PairTable {
  int atoms[kAtomPairs][2];
};

__global__ void fill(const float* atoms, const int64_t* from, const int64_t* to, const float* alpha, int64_t values,
                     PairTable table, float* out) {
  constexpr float kWidth = (kLastCentre - kFirstCentre) / static_cast<float>(kRadialBases);
  constexpr float kStep = (kLastCentre - kFirstCentre) / static_cast<float>(kRadialBases - 1);
  constexpr int64_t kCoordinates = kBackboneAtoms * 3;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < values; index += stride) {
    const int64_t pair = index / kRadialFeatures;
    const int64_t feature = index % kRadialFeatures;
    const int64_t of_atoms = feature / kRadialBases;
    float distance = alpha[pair];
    if (of_atoms > 0) {
      const float* const a = atoms + from[pair] * kCoordinates + 3 * table.atoms[of_atoms][0];
      const float* const b = atoms + to[pair] * kCoordinates + 3 * table.atoms[of_atoms][1];
      const float dx = a[0] - b[0];
      const float dy = a[1] - b[1];
      const float dz = a[2] - b[2];
      distance = sqrtf(dx * dx + dy * dy + dz * dz + kSquareEps);
    }
    const float centre = kFirstCentre + kStep * static_cast<float>(feature % kRadialBases);
    const float z = (distance - centre) / kWidth;
    out[index] = expf(-z * z);
  }
}

}  // namespace

void fill_on_cuda(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                  const at::Tensor& alpha_E, const at::Tensor& out_EF) {
  const int64_t values = out_EF.numel();
  if (values == 0) return;
  const c10::cuda::CUDAGuard guard(atoms_NA3.device());
  PairTable table{};
  for (int64_t p = 0; p < kAtomPairs; ++p) std::copy_n(kPairs[p], 2, table.atoms[p]);
  const int64_t blocks = std::min(kBlocksMax, (values + kThreads - 1) / kThreads);
  fill<<<static_cast<unsigned>(blocks), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
      atoms_NA3.const_data_ptr<float>(), from_E.const_data_ptr<int64_t>(), to_E.const_data_ptr<int64_t>(),
      alpha_E.const_data_ptr<float>(), values, table, out_EF.mutable_data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace lockstep::radial_basis_detail
