#include "runner/models/protein/data/fragments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "runner/base/check.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {
namespace {

constexpr double kBinWidth = 2 * std::numbers::pi / static_cast<double>(kChi1Bins);

// In the order of kResidueAlphabet.
const std::array<std::vector<int64_t>, kResidueAlphabet.size()>& table() {
  static const std::array<std::vector<int64_t>, kResidueAlphabet.size()> fragments = {{
      {kMethyl},                                                 // A
      {kThiol},                                                  // C
      {kMethylene, kCarboxyl},                                   // D
      {kMethylene, kMethylene, kCarboxyl},                       // E
      {kMethylene, kPhenyl},                                     // F
      {},                                                        // G
      {kMethylene, kImidazole},                                  // H
      {kMethylene, kBranch, kMethyl, kMethylene, kMethyl},       // I
      {kMethylene, kMethylene, kMethylene, kMethylene, kAmine},  // K
      {kMethylene, kBranch, kMethyl, kMethyl},                   // L
      {kMethylene, kMethylene, kThiol, kMethyl},                 // M
      {kMethylene, kAmide},                                      // N
      {kMethylene, kMethylene, kMethylene},                      // P
      {kMethylene, kMethylene, kAmide},                          // Q
      {kMethylene, kMethylene, kMethylene, kGuanidine},          // R
      {kHydroxyl},                                               // S
      {kBranch, kHydroxyl, kMethyl},                             // T
      {kBranch, kMethyl, kMethyl},                               // V
      {kMethylene, kIndole},                                     // W
      {kMethylene, kPhenyl, kHydroxyl},                          // Y
      {},                                                        // X
  }};
  return fragments;
}

}  // namespace

std::string_view fragment_name(int64_t fragment) {
  constexpr std::array<std::string_view, kFragments> kNames = {
      "PAD",   "MASK",     "BOS",   "EOS",       "METHYL",    "METHYLENE", "HYDROXYL", "PHENYL",
      "AMINE", "CARBOXYL", "AMIDE", "GUANIDINE", "IMIDAZOLE", "INDOLE",    "THIOL",    "BRANCH_CH"};
  LOCKSTEP_CHECK(fragment >= 0 && fragment < kFragments, "no fragment");
  return kNames[static_cast<size_t>(fragment)];
}

std::span<const int64_t> fragments_of(uint8_t residue_type) {
  LOCKSTEP_CHECK(residue_type < kResidueAlphabet.size(), "no residue type");
  return table()[residue_type];
}

int64_t chi1_bin(float radians) {
  if (std::isnan(radians)) return -1;
  // Clamped, because π rounded to float is a little more than π.
  const double angle = std::clamp(double{radians}, -std::numbers::pi, std::numbers::pi);
  return static_cast<int64_t>(std::floor((angle + std::numbers::pi) / kBinWidth)) % kChi1Bins;
}

float chi1_of_bin(int64_t bin) {
  return static_cast<float>((static_cast<double>(bin) + 0.5) * kBinWidth - std::numbers::pi);
}

}  // namespace lockstep
