// The atoms of a PDB or mmCIF file's first model, by gemmi: the one place that includes it.
//
// Role: gemmi's exceptions become Errors here, its classes plain values.
// In C++17, unlike the rest of the project: clang 14 refuses gemmi's vectors of incomplete types in C++20.
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
  double x = 0;  // Å, as the next two; NaN where the file has none
  double y = 0;
  double z = 0;
};

// Atoms that stand together: a residue that is interrupted comes again.
struct ParsedResidue {
  std::string chain;
  std::string name;
  std::optional<int> number;
  char insertion_code = ' ';
  bool is_hetatm = false;
  std::vector<ParsedAtom> atoms;
};

// `records`: lines ATOM and HETATM alone, whose columns the caller has checked. kInvalid with gemmi's words.
Result<std::vector<ParsedResidue>> parse_pdb_atoms(std::string_view records);
// A whole file. kInvalid with gemmi's words; none of _atom_site gives no residues.
Result<std::vector<ParsedResidue>> parse_mmcif_atoms(std::string_view text);

}  // namespace lockstep
