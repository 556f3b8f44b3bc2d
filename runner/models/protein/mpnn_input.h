// Structures as ProteinMPNN takes them. Threads: pure, but for put_structure, which writes one row of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runner/data/structures/structure_cache.h"
#include "runner/models/protein/mpnn_features.h"

namespace lockstep {

// Positions of the proteins' chains: nucleic acids and the like are no part of the graph.
std::vector<size_t> protein_places(const StructureView& view);

// B samples of L residues of padding, on the host. pinned: in memory that a device copies from.
MpnnInput padding_of(int64_t samples, int64_t length, bool pinned);

// Writes the structure's proteins into row b. places: protein_places(view). chain_M_BL stays as it is: 0.
void put_structure(const StructureView& view, const std::vector<size_t>& places, int64_t b, const MpnnInput& input);

}  // namespace lockstep
