// ProteinMPNN's training set (pdb_2021aug02) as a source of structures.
//
//   list.csv            CHAINID,DEPOSITION,RESOLUTION,HASH,CLUSTER,SEQUENCE: the chains to learn from
//   valid_clusters.txt  clusters that are validated on, one a line; test_clusters.txt likewise; the rest is trained on
//   pdb/xx/NAME.pt      an entry: chains, tm (similarities), asmb_ids, asmb_chains, asmb_xform0 …
//   pdb/xx/NAME_A.pt    a chain: seq, xyz [L, 14, 3]
//
// A piece is an entry with a listed chain whose resolution is at most 3.5 Å. Each assembly with such a chain becomes a
// structure (NAME-ID), its chains transformed to their places; chains are named "A", a second copy "A-2". A listed
// chain that is in no assembly becomes a structure of its own. Tags of six histidines are cut off. Chains keep their
// clusters; chains with more than 70 % equal residues form one group. Threads: as StructureSource.
#pragma once

#include <memory>
#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/models/protein/data/structure_source.h"

namespace lockstep {

inline constexpr double kTrainingResolutionMax = 3.5;  // Å

// `folder` holds list.csv and pdb/. The fingerprint covers only the lists, not the half million files of pdb/; reading
// an entry without its files gives kNotFound. Errors: those of the disk; kInvalid for a list.csv without usable lines.
Result<std::unique_ptr<StructureSource>> open_training_set(FileSystem& fs, const std::string& folder);

}  // namespace lockstep
