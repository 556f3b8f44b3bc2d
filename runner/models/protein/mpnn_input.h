// Converts structures to ProteinMPNN's input. Threads: pure, except for put_structure, which writes one row of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/mpnn_features.h"

namespace lockstep {

// The indices in `view` of the residues in protein chains; the graph leaves out nucleic acids and other molecules.
std::vector<size_t> protein_places(const StructureView& view);

// A batch that is all padding, on the host. `pinned`: in pinned memory, for the copy to a device.
MpnnInput padding_of(int64_t samples, int64_t length, bool pinned);

// Writes the structure's proteins into row b. places: protein_places(view). Leaves chain_M_BL as it is.
void put_structure(const StructureView& view, const std::vector<size_t>& places, int64_t b, const MpnnInput& input);

}  // namespace lockstep
