// Reads the atoms of the first model of a PDB or mmCIF file with gemmi. Only gemmi_atoms.cc includes gemmi.
//
// Role: turns gemmi's exceptions into Errors and its classes into plain values.
// Compiled as C++17, unlike the rest of the project: clang 14 refuses gemmi's vectors of incomplete types in C++20.
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct ParsedAtom {
  std::string name;
  char altloc = '\0';  // '\0': the atom has no alternative locations
  double x = 0;        // x, y and z in Å; NaN when the file has none
  double y = 0;
  double z = 0;
};

// Consecutive atoms of one residue. If other atoms come between those of a residue, it appears twice.
struct ParsedResidue {
  std::string chain;
  int64_t segment = 0;  // as SegmentCounter counts them
  std::string name;
  std::optional<int> number;
  char insertion_code = ' ';
  bool is_hetatm = false;
  std::vector<ParsedAtom> atoms;
};

// Divides the atoms of a file into segments: stretches in which no residue appears twice at different places in the
// file. A residue is known by a key of its chain, number and insertion code. Two molecules whose residues have the same
// chain and numbers are in different segments; whether they are two molecules, the coordinates say.
class SegmentCounter {
 public:
  // Of the next atom. An alternative location of an atom that was there begins no segment.
  int64_t number_of(std::string_view residue, std::string_view atom, bool is_alternative) {
    const bool is_known = residue == residue_ ? std::find(atoms_.begin(), atoms_.end(), atom) != atoms_.end()
                                              : residues_.count(std::string(residue)) > 0;
    if (is_known && !is_alternative) begin_next();
    if (residue != residue_ || residues_.empty()) {
      residue_ = residue;
      residues_.insert(residue_);
      atoms_.clear();
    }
    // Residues have fewer; a hostile file must not take quadratic time.
    constexpr size_t kAtomsKept = 256;
    if (atoms_.size() < kAtomsKept) atoms_.emplace_back(atom);
    return segment_;
  }
  // The file says that a molecule ends here: a TER record, another segment or asymmetric unit.
  void begin_next() {
    if (residues_.empty()) return;
    ++segment_;
    residue_.clear();
    residues_.clear();
    atoms_.clear();
  }

 private:
  int64_t segment_ = 0;
  std::string residue_;
  std::unordered_set<std::string> residues_;  // of this segment
  std::vector<std::string> atoms_;            // of residue_
};

struct ParsedAtoms {
  std::vector<ParsedResidue> residues;
  int64_t further_models = 0;  // models after the first, which are not read
};

// `records`: only lines ATOM and HETATM, whose columns the caller has checked; columns 73-76 hold the segment as
// segment_text writes it. kInvalid with gemmi's message.
Result<std::vector<ParsedResidue>> parse_pdb_atoms(std::string_view records);
// Four characters; segments beyond 36^4 begin again at 0.
std::string segment_text(int64_t segment);

// `text`: a whole file. kInvalid with gemmi's message, or for a missing column that is needed; without _atom_site the
// result is empty. Columns that programs leave out need not be there: the author's numbers and chains are replaced by
// label_seq_id and label_asym_id.
Result<ParsedAtoms> parse_mmcif_atoms(std::string_view text);

}  // namespace lockstep
