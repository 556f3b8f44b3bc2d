// One file of atoms (PDB, PDBx/mmCIF, either gzipped) → one Structure. By gemmi.
//
// Role: follows the rules of ProteinMPNN's own parser, so that its published weights get the input they were trained
// on:
//   - only the first model; the first of alternative locations; HETATM records only for MSE, which is read as M;
//   - residues are ordered by (number, insertion code); numbers of a chain that are missing in the file are filled with
//     X and missing atoms;
//   - amino acids other than the twenty and MSE are X.
// It also reads what that parser cannot: chain ids of any length (a chain without an id is "A", or the first free
// letter) and mmCIF. Chains of only waters are dropped, and errors are reported (docs/decisions.md).
// Threads: pure functions; read_structure_file reads the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

enum class StructureFormat { kPdb, kMmcif };

// By the ending: .pdb .ent .cif .mmcif, each with or without .gz, in any case. nullopt for other names.
std::optional<StructureFormat> structure_format_of(std::string_view file_name);
// "a/1abc.cif.gz" → ".cif.gz"; empty for a name that has no known ending.
std::string structure_ending_of(std::string_view file_name);

// Errors: kInvalid, kCorrupt; the message has the line number if known, but not the file name. The name of the
// structure is left empty.
Result<Structure> parse_structure(std::string_view text, StructureFormat format);

// Errors: those of parse_structure and of the disk; kCorrupt for gzip that is cut off.
Result<Structure> read_structure_file(FileSystem& fs, const std::string& path);

// The content of a gzip file. kCorrupt (no gzip, cut off), kInvalid (more than bytes_max).
Result<std::string> inflate_gzip(std::string_view bytes, size_t bytes_max);

}  // namespace lockstep
