// Distances between the backbone atoms of two residues, each spread over sixteen Gaussians.
//
// Role: ProteinMPNN's features of a pair of residues. Computed only for the given pairs, and in chunks, because the
// values of all pairs of a batch (1.6 kB each) would take too much memory.
// Threads: as ATen operators; the CPU implementation splits the pairs over ATen's threads, the CUDA implementation has
// one thread per value. Shapes: N residues, A = 5 atoms (N, CA, C, O, Cβ), E pairs, P = 25 pairs of atoms, R = 16
// Gaussians.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

inline constexpr int64_t kBackboneAtoms = 5;
inline constexpr int64_t kAtomPairs = kBackboneAtoms * kBackboneAtoms;
inline constexpr int64_t kRadialBases = 16;
inline constexpr int64_t kRadialFeatures = kAtomPairs * kRadialBases;

// For each pair of residues exp(-((d - c) / w)²), d the distance of two atoms (pairs of atoms in the order of the
// published model), c from 2 to 22 Å, w = 20 / 16 Å. atoms_NA3: fp32, contiguous. from_E, to_E: int64, rows of
// atoms_NA3. alpha_E: fp32, the Cα-Cα distances (the first pair of atoms) as nearest_residues returned them. They are
// passed because for a residue without coordinates they differ from the distances of atoms_NA3. Returns [E, P * R],
// fp32. No gradient.
at::Tensor radial_basis(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                        const at::Tensor& alpha_E);

// radial_basis(…) times weight_DF transposed: [E, D], F = P * R. Differentiable in weight_DF, once; the backward
// computes the bases again instead of keeping them.
at::Tensor radial_projection(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                             const at::Tensor& alpha_E, const at::Tensor& weight_DF);

namespace radial_basis_detail {

// Pairs of atoms (first residue's, second residue's), as indices into N, CA, C, O, Cβ.
inline constexpr int kPairs[kAtomPairs][2] = {{1, 1}, {0, 0}, {2, 2}, {3, 3}, {4, 4}, {1, 0}, {1, 2}, {1, 3}, {1, 4},
                                              {0, 2}, {0, 3}, {0, 4}, {4, 2}, {4, 3}, {3, 2}, {0, 1}, {2, 1}, {3, 1},
                                              {4, 1}, {2, 0}, {3, 0}, {4, 0}, {2, 4}, {3, 4}, {2, 3}};
inline constexpr float kFirstCentre = 2.0F;
inline constexpr float kLastCentre = 22.0F;
inline constexpr float kSquareEps = 1e-6F;

void fill_on_cpu(const float* atoms, const int64_t* from, const int64_t* to, const float* alpha, int64_t pairs,
                 float* out);
// All contiguous and on one device. Only in builds with CUDA.
void fill_on_cuda(const at::Tensor& atoms_NA3, const at::Tensor& from_E, const at::Tensor& to_E,
                  const at::Tensor& alpha_E, const at::Tensor& out_EF);

}  // namespace radial_basis_detail
}  // namespace lockstep
