// Backbones of proteins as graphs: for each residue its nearest residues, and what is known of each pair.
//
// Threads: as ATen operators.
// Shapes: B samples, L residues (padded), K neighbours, C = 3 coordinates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runner/data/structures/structure.h"

namespace lockstep {

// One batch of proteins, each padded at its end to L residues. All on one device.
struct MpnnInput {
  at::Tensor X_BL4C;             // fp32: N, CA, C and O in Å; not finite where an atom is missing
  at::Tensor S_BL;               // int64: amino acids, as places in kResidueAlphabet
  at::Tensor mask_BL;            // fp32: 1 where all four atoms are there
  at::Tensor chain_M_BL;         // fp32: 1 where the amino acid is to be predicted
  at::Tensor residue_idx_BL;     // int64: place in the protein, 100 more for each chain before its own
  at::Tensor chain_encoding_BL;  // int64: number of the chain, from 1; 0 is padding
};

inline constexpr int64_t kChainGap = 100;  // between two chains in residue_idx_BL
inline constexpr auto kNumAminoAcids = static_cast<int64_t>(kResidueAlphabet.size());

// Classes of a pair's place in the chain: its distance from -32 to 32, and 65 for two chains.
inline constexpr int64_t kMaxOffset = 32;
inline constexpr int64_t kNumOffsets = 2 * kMaxOffset + 2;

struct MpnnGraph {
  at::Tensor atoms_BL5C;      // fp32: N, CA, C, O and a Cβ at its ideal place; finite
  at::Tensor neighbours_BLK;  // int64: places in the sample, the nearest first, itself included
  at::Tensor distances_BLK;   // fp32: from Cα to Cα; without coordinates as far as the farthest one
  at::Tensor present_BLK;     // bool: false where a sample has fewer than K residues; the neighbour is 0 there
  at::Tensor offsets_BLK;     // int64: classes of the pairs' places in the chain
};

// K = num_neighbours always, however long the batch is. noise_BL4C: in Å; undefined: none. No gradient.
MpnnGraph mpnn_graph(const MpnnInput& input, const at::Tensor& noise_BL4C, int64_t num_neighbours);

// The radial bases of all pairs at once: [B, L, K, kRadialFeatures].
at::Tensor radial_bases(const MpnnGraph& graph);

// offset_table_OD [kNumOffsets, D], basis_weight_DF [D, kRadialFeatures]. Returns edges_BLKD, differentiable in both.
at::Tensor edge_features(const MpnnGraph& graph, const at::Tensor& offset_table_OD, const at::Tensor& basis_weight_DF);

}  // namespace lockstep
