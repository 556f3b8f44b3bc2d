// Groups structures whose proteins have similar sequences, so that no protein is trained on and validated on.
//
// Role: a folder of files often holds one protein several times (with another ligand, of another crystal). Two proteins
// are similar when they are equal, or when at least a tenth of the stretches of 8 residues of the shorter one occur in
// the longer one, which holds down to about 75 % of equal residues. Tags of histidines are left out. Groups are
// transitive. This is no search for remote relatives: for that, give a data set with clusters (list.csv).
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/models/protein/data/structure_cache.h"

namespace lockstep {

// `sequences`: of each structure those of its proteins, in kResidueAlphabet. Returns the group of each structure, from
// 0 in the order of the groups' first structures.
std::vector<int64_t> sequence_groups(const std::vector<std::vector<std::string>>& sequences);

// The sequences of the structure's proteins, without gaps.
std::vector<std::string> protein_sequences(const StructureView& view);

}  // namespace lockstep
