// One file of atoms (PDB, PDBx/mmCIF, either gzipped) → one Structure. By gemmi.
//
// Role: the rules of ProteinMPNN's own parser, so that its published weights see what they were made for:
//   - the first model; of alternative locations the first in the file; HETATM records count only for MSE, which is M;
//   - a residue is (number, insertion code), in this order; what lies between two numbers of a chain without being in
//     the file is filled with X and missing atoms;
//   - amino acids besides the twenty and MSE are X.
// Where that parser reads nothing or nonsense, this one does better: chain ids of any length (a chain without an id is
// "A", or the first free letter), mmCIF, no chains of
// waters only, and clear errors (docs/decisions.md).
// Threads: pure functions; read_structure_file reads the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/structures/structure.h"

namespace lockstep {

enum class StructureFormat { kPdb, kMmcif };

// By the ending: .pdb .ent .cif .mmcif, each with or without .gz, in any case. Nothing for other names.
std::optional<StructureFormat> structure_format_of(std::string_view file_name);
// "a/1abc.cif.gz" → ".cif.gz"; empty for a name that has no known ending.
std::string structure_ending_of(std::string_view file_name);

// Errors: kInvalid, kCorrupt; the messages hold the line where there is one, and no file name. The name of the
// structure is left empty.
Result<Structure> parse_structure(std::string_view text, StructureFormat format);

// Errors: those of parse_structure and of the disk; kCorrupt for gzip that is cut off.
Result<Structure> read_structure_file(FileSystem& fs, const std::string& path);

// The content of a gzip file. kCorrupt (no gzip, cut off), kInvalid (more than bytes_max).
Result<std::string> inflate_gzip(std::string_view bytes, size_t bytes_max);

}  // namespace lockstep
