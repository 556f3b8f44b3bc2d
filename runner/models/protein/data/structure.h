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

// "ALA" → 0. MSE is M, as all structure programs read it; protonation states (HID, CYX, ASH …) are what they are states
// of; every other name is X.
uint8_t residue_type_of(std::string_view three_letters);
// 'A' → 0, case counts; '-' and everything else is X.
uint8_t residue_type_of(char letter);
// Is it one of the twenty amino acids of the genetic code, in any protonation state? (MSE is not.)
bool is_standard_residue(std::string_view three_letters);

inline constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

using Atom = std::array<float, 3>;
// N, CA, C, O. An atom that is missing has three NaN.
using Backbone = std::array<Atom, 4>;
inline constexpr Atom kMissingAtom = {kMissing, kMissing, kMissing};
inline constexpr Backbone kMissingBackbone = {kMissingAtom, kMissingAtom, kMissingAtom, kMissingAtom};

inline bool is_missing(const Atom& atom) { return atom[0] != atom[0] || atom[1] != atom[1] || atom[2] != atom[2]; }
// True when N, CA, C and O all have coordinates.
bool is_complete(const Backbone& backbone);
// True when N, CA and C have coordinates. A chain with at least one such residue is a protein.
bool is_amino_acid(const Backbone& backbone);

// Properties of a position. The values are stored in cache files.
enum PositionFlag : uint8_t {
  kInFile = 1,           // the file has this residue; without it the position only fills a gap between two numbers
  kStandardResidue = 2,  // its name is one of the twenty
};

struct Position {
  Backbone backbone = kMissingBackbone;
  int32_t number = 0;              // the residue number in the file (the author's numbering)
  float chi1 = kMissing;           // in [-π, π]
  uint8_t type = kUnknownResidue;  // in kResidueAlphabet
  uint8_t flags = 0;
  char insertion_code = ' ';
};

// The split to which the data set's own lists assign a chain; kTrain without lists. The values are stored in cache
// files.
enum class ChainSplit : uint8_t { kTrain = 0, kValidation = 1, kTest = 2 };

struct StructureChain {
  std::string id;
  std::vector<Position> positions;  // at least one
  bool is_protein = true;           // at least one amino acid with N, CA and C; else a nucleic acid and the like
  // Chains of one structure with the same group have (nearly) the same sequence. When one of them is to be predicted,
  // the others must be hidden, too.
  uint32_t group = 0;
  int64_t cluster = -1;  // of the data set's own clustering by sequence, -1 without one
  ChainSplit split = ChainSplit::kTrain;
};

struct Structure {
  std::string name;
  std::vector<StructureChain> chains;  // in the order of the file
  // What the user should know of how it was read: chains that were divided, residues that were left out. At most a few.
  std::vector<std::string> remarks = {};
};

// The dihedral angle of four atoms in radians, in [-π, π]; NaN when one is missing or three lie on a line.
float dihedral(const Atom& a, const Atom& b, const Atom& c, const Atom& d);

// Share of equal residues from which ProteinMPNN's training takes two chains for copies of one.
inline constexpr double kSameSequence = 0.7;

// Sets StructureChain::group: two chains are in one group when at least 70 % of the residue numbers that both have (and
// at least half of the shorter chain) have the same type. Transitive. Chains that are not proteins form groups of their
// own.
void group_chains(Structure& structure);

// Most positions of a structure, including gaps; bounds the memory that a hostile file can make the reader allocate.
inline constexpr int64_t kPositionsMax = 1'000'000;
inline constexpr size_t kChainsMax = 10'000;
// Å; ten times the largest coordinate of a PDB file, and small enough that squared distances do not overflow fp32.
inline constexpr float kCoordinateMax = 1e6F;

// Errors: kInvalid when nothing can be learnt from the structure (no chain, no protein, no complete backbone), or it
// exceeds the limits above. In a structure that passes each atom is missing, or finite and within kCoordinateMax.
Status check_structure(const Structure& structure);

}  // namespace lockstep
