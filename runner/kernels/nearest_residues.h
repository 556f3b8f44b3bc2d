// The k nearest residues of each residue, which are its neighbours in a protein's graph.
//
// Role: finds them within each sample of a batch. The distances [B, L, L] are never in memory all at once: on the CPU
// each thread holds one row of them, other devices hold a few rows of the batch. A sample's result depends neither on
// its padding nor on the other samples.
// Threads: as ATen operators; the CPU implementation splits the rows over ATen's threads.
// Shapes: B samples, L residues (padded), K = k; all at least 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

struct NearestResidues {
  at::Tensor places_BLK;     // int64: indices in the sample, nearest first; 0 where there is no neighbour
  at::Tensor distances_BLK;  // fp32; 0 where there is no neighbour
  at::Tensor present_BLK;    // bool: false where the sample has fewer than K residues
};

// points_BL3: fp32, finite. known_BL: bool, false where a residue has no coordinates: it is as far from all others as
// the farthest known residue. used_BL: bool, false for padding, which is never a neighbour.
// The distance is √(Σ Δ² + 1e-6). Of equal distances the CPU implementation takes those that torch.topk takes. No
// gradient.
NearestResidues nearest_residues(const at::Tensor& points_BL3, const at::Tensor& known_BL, const at::Tensor& used_BL,
                                 int64_t k);

namespace nearest_residues_detail {

// nearest_residues with ATen operators: works on any device and is used on all but the CPU. Holds the distances of at
// most `distances_max` pairs of residues at a time, but at least those of one row.
NearestResidues nearest_by_operators(const at::Tensor& points_BL3, const at::Tensor& known_BL,
                                     const at::Tensor& used_BL, int64_t k, int64_t distances_max);

}  // namespace nearest_residues_detail
}  // namespace lockstep
