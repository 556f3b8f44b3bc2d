// The nearest residues of each residue: what makes a protein a graph.
//
// Role: k nearest points within each sample of a batch. On the CPU no more than one row of distances for each thread is
// held, elsewhere a few rows of the batch at a time: never all of [B, L, L]. A sample's result does not depend on the
// padding behind it nor on the other samples.
// Threads: as ATen operators; the CPU twin splits the rows over ATen's threads.
// Shapes: B samples, L residues (padded), K = k.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

struct NearestResidues {
  at::Tensor places_BLK;     // int64: places in the sample, the nearest first; 0 where there is none
  at::Tensor distances_BLK;  // fp32; 0 where there is none
  at::Tensor present_BLK;    // bool: false where the sample has fewer than K residues
};

// points_BL3: fp32, finite. known_BL: bool, false where a residue has no coordinates: it is as far from all others as
// the farthest known residue. used_BL: bool, false for padding, which is nobody's neighbour.
// The distance is √(Σ(Δ²) + 1e-6); of equal squares the CPU twin takes those that torch.topk takes. No gradient.
NearestResidues nearest_residues(const at::Tensor& points_BL3, const at::Tensor& known_BL, const at::Tensor& used_BL,
                                 int64_t k);

namespace nearest_residues_detail {

// nearest_residues by ATen's operators, as it is computed on devices other than the CPU; it works on any. Holds the
// distances of at most `distances_max` pairs of residues at a time, but of one row at least.
NearestResidues nearest_by_operators(const at::Tensor& points_BL3, const at::Tensor& known_BL,
                                     const at::Tensor& used_BL, int64_t k, int64_t distances_max);

}  // namespace nearest_residues_detail
}  // namespace lockstep
