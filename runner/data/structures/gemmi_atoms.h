// Reads the atoms of the first model of a PDB or mmCIF file with gemmi. Only gemmi_atoms.cc includes gemmi.
//
// Role: turns gemmi's exceptions into Errors and its classes into plain values.
// Compiled as C++17, unlike the rest of the project: clang 14 refuses gemmi's vectors of incomplete types in C++20.
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct ParsedAtom {
  std::string name;
  double x = 0;  // x, y and z in Å; NaN when the file has none
  double y = 0;
  double z = 0;
};

// Consecutive atoms of one residue. If other atoms come between those of a residue, it appears twice.
struct ParsedResidue {
  std::string chain;
  std::string name;
  std::optional<int> number;
  char insertion_code = ' ';
  bool is_hetatm = false;
  std::vector<ParsedAtom> atoms;
};

// `records`: only lines ATOM and HETATM, whose columns the caller has checked. kInvalid with gemmi's message.
Result<std::vector<ParsedResidue>> parse_pdb_atoms(std::string_view records);
// `text`: a whole file. kInvalid with gemmi's message; without _atom_site the result is empty.
Result<std::vector<ParsedResidue>> parse_mmcif_atoms(std::string_view text);

}  // namespace lockstep
