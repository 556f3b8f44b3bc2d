// Protein backbones as graphs: for each residue its nearest residues, and the features of each pair.
//
// Threads: as ATen operators.
// Shapes: B samples, L residues (padded), K neighbours, C = 3 coordinates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runner/models/protein/data/structure.h"

namespace lockstep {

// One batch of proteins, each padded at its end to L residues. All tensors are on one device.
struct MpnnInput {
  at::Tensor X_BL4C;             // fp32: N, CA, C and O in Å; not finite where an atom is missing
  at::Tensor S_BL;               // int64: amino acids, as indices in kResidueAlphabet
  at::Tensor mask_BL;            // fp32: 1 where all four atoms have coordinates
  at::Tensor chain_M_BL;         // fp32: 1 where the amino acid is to be predicted
  at::Tensor residue_idx_BL;     // int64: index in the protein, plus kChainGap for each chain before its own
  at::Tensor chain_encoding_BL;  // int64: number of the chain, from 1; 0 is padding
};

inline constexpr int64_t kChainGap = 100;  // added between two chains in residue_idx_BL
inline constexpr auto kNumAminoAcids = static_cast<int64_t>(kResidueAlphabet.size());

// The class of a pair of residues is their offset along the chain, clamped to -32 … 32 and counted from 0; class 65 is
// for residues of two chains.
inline constexpr int64_t kMaxOffset = 32;
inline constexpr int64_t kNumOffsets = 2 * kMaxOffset + 2;

struct MpnnGraph {
  at::Tensor atoms_BL5C;      // fp32: N, CA, C, O and a Cβ in its ideal position; finite
  at::Tensor neighbours_BLK;  // int64: indices in the sample, nearest first, the residue itself included
  at::Tensor distances_BLK;  // fp32: from Cα to Cα in Å; a residue without coordinates is as far as the farthest one
  at::Tensor present_BLK;    // bool: false where a sample has fewer than K residues; the neighbour is 0 there
  at::Tensor offsets_BLK;    // int64: the pairs' classes, below kNumOffsets
};

// K = num_neighbours, even if the batch has fewer residues. noise_BL4C: in Å, added to the coordinates; undefined:
// none. No gradient.
MpnnGraph mpnn_graph(const MpnnInput& input, const at::Tensor& noise_BL4C, int64_t num_neighbours);

// The radial basis functions of all pairs: [B, L, K, kRadialFeatures].
at::Tensor radial_bases(const MpnnGraph& graph);

// The sum of each pair's row in offset_table_OD [kNumOffsets, D] and its radial basis functions times basis_weight_DF
// [D, kRadialFeatures]. Returns edges_BLKD, differentiable with respect to both.
at::Tensor edge_features(const MpnnGraph& graph, const at::Tensor& offset_table_OD, const at::Tensor& basis_weight_DF);

}  // namespace lockstep
