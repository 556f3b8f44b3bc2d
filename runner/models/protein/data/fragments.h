// Side chains as input of the masked side-chain model (mdm): fragments and bins of the first torsion angle.
// Threads: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

// The vocabulary. Values are the model's token ids.
enum Fragment : int64_t {
  kFragmentPad = 0,
  kFragmentMask = 1,
  kFragmentBegin = 2,
  kFragmentEnd = 3,
  kMethyl = 4,
  kMethylene = 5,
  kHydroxyl = 6,
  kPhenyl = 7,
  kAmine = 8,
  kCarboxyl = 9,
  kAmide = 10,
  kGuanidine = 11,
  kImidazole = 12,
  kIndole = 13,
  kThiol = 14,
  kBranch = 15,  // CH with three neighbours
};
inline constexpr int64_t kFragments = 16;

// "METHYL", "BRANCH_CH"; of an id in [0, 16).
std::string_view fragment_name(int64_t fragment);

// The side chain's fragments from CA outwards, of a type in kResidueAlphabet: none for G and X, at most five.
std::span<const int64_t> fragments_of(uint8_t residue_type);

inline constexpr int64_t kChi1Bins = 72;  // of 5 degrees
// floor((χ + π) / (2π / 72)) in [0, 72); π is in bin 0 like -π. -1 for NaN.
int64_t chi1_bin(float radians);
// The middle of a bin in [0, 72).
float chi1_of_bin(int64_t bin);

}  // namespace lockstep
