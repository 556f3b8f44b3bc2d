// Structure: the backbones and sequences of one protein or complex, as the readers of files return them.
//
// Role: the plain value between a reader (PDB, mmCIF, tensors, JSON lines, generated) and the cache
// (structure_cache.h). Everything that trains or designs works on a StructureView instead.
// Threads: values; the functions are pure. Units: Å, radians.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// The order is that of ProteinMPNN's weights. X: unknown, or a position that is not in the file.
inline constexpr std::string_view kResidueAlphabet = "ACDEFGHIKLMNPQRSTVWYX";
inline constexpr uint8_t kUnknownResidue = 20;

// "ALA" → 0. MSE is M, as all structure programs read it; every other name is X.
uint8_t residue_type_of(std::string_view three_letters);
// 'A' → 0, case counts; '-' and everything else is X.
uint8_t residue_type_of(char letter);
// One of the twenty names that stand in the genetic code: not MSE.
bool is_standard_residue(std::string_view three_letters);

inline constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

using Atom = std::array<float, 3>;
// N, CA, C, O. An atom that is missing has three NaN.
using Backbone = std::array<Atom, 4>;
inline constexpr Atom kMissingAtom = {kMissing, kMissing, kMissing};
inline constexpr Backbone kMissingBackbone = {kMissingAtom, kMissingAtom, kMissingAtom, kMissingAtom};

inline bool is_missing(const Atom& atom) { return atom[0] != atom[0] || atom[1] != atom[1] || atom[2] != atom[2]; }
// All of N, CA, C and O are there.
bool is_complete(const Backbone& backbone);
// N, CA and C: what makes a residue an amino acid, and a chain that has one a protein.
bool is_amino_acid(const Backbone& backbone);

// What is known of a position besides its type. Values stand in cache files.
enum PositionFlag : uint8_t {
  kInFile = 1,           // the file has this residue; without it the position only fills a gap between two numbers
  kStandardResidue = 2,  // its name is one of the twenty
};

struct Position {
  Backbone backbone = kMissingBackbone;
  int32_t number = 0;              // the author's
  float chi1 = kMissing;           // in [-π, π]
  uint8_t type = kUnknownResidue;  // in kResidueAlphabet
  uint8_t flags = 0;
  char insertion_code = ' ';
};

// Whether a data set's own lists say which part of the data a chain belongs to. Values stand in cache files.
enum class ChainSplit : uint8_t { kTrain = 0, kValidation = 1, kTest = 2 };

struct StructureChain {
  std::string id;
  std::vector<Position> positions;  // at least one
  bool is_protein = true;           // at least one amino acid with N, CA and C; else a nucleic acid and the like
  // Chains of one structure with the same group have (nearly) the same sequence: what hides one has to hide the others.
  uint32_t group = 0;
  int64_t cluster = -1;  // of the data set's own clustering by sequence, -1 without one
  ChainSplit split = ChainSplit::kTrain;
};

struct Structure {
  std::string name;
  std::vector<StructureChain> chains;  // in the order of the file
};

// The dihedral angle of four atoms in radians, in [-π, π]; NaN when one is missing or three lie on a line.
float dihedral(const Atom& a, const Atom& b, const Atom& c, const Atom& d);

// Fills StructureChain::group: two chains are of one group when of the residue numbers that both have, at least 70 %
// (and at least half of the shorter chain) have the same type. Transitive. Chains that are no proteins stay alone.
void group_chains(Structure& structure);

// Positions of a structure, its gaps counted: a bound on what a hostile file can make us allocate.
inline constexpr int64_t kPositionsMax = 1'000'000;
inline constexpr size_t kChainsMax = 10'000;
// Å; ten times the largest coordinate that a PDB file can hold. Squares of distances stay far from infinity.
inline constexpr float kCoordinateMax = 1e6F;

// Errors: kInvalid when nothing can be learnt from it (no chain, no protein, no complete backbone), or it is larger
// than the limits above. Of one that passes each atom is missing, or finite and within kCoordinateMax.
Status check_structure(const Structure& structure);

}  // namespace lockstep
