// Structures as .pt files of tensors: the guide's preprocessed `{pdb_id}.pt`.
//
// One chain in each: backbone_coords [L, 4, 3] (N, CA, C, O; Å), residue_types (L names of three letters or one), and,
// where there is one, torsion_bins [K]: of each residue (K = L), or of those whose side chain has a χ1 (not G, not A).
// χ1 is set to the middle of its bin. The file's other fields (fragment_token_ids, sequence_length, pdb_path) follow
// from these and are not read. Threads: reads the file; otherwise pure.
#pragma once

#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

// How the remark of a structure begins whose "torsion_bins" fit it not, so that it has no torsion angles.
inline constexpr std::string_view kWrongTorsions = "torsion_bins";

// The name of the structure is left empty. Errors: those of the disk and of check_structure; kCorrupt; kInvalid for
// what is missing or of another shape.
Result<Structure> read_structure_tensors(FileSystem& fs, const std::string& path);

// The backbone whose N, CA, C and O are at `xyz` (twelve floats). Atoms with a coordinate that is not finite are
// missing.
Backbone backbone_of(const float* xyz);

}  // namespace lockstep
