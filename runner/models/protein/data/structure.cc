#include "runner/models/protein/data/structure.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "runner/models/protein/data/vector3.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 20> kStandardNames = {"ALA", "CYS", "ASP", "GLU", "PHE", "GLY", "HIS",
                                                             "ILE", "LYS", "LEU", "MET", "ASN", "PRO", "GLN",
                                                             "ARG", "SER", "THR", "VAL", "TRP", "TYR"};

// Names of protonation states by AMBER, CHARMM, GROMACS and Schrödinger's programs.
constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kProtonationStates = {
    {{"HID", "HIS"},  {"HIE", "HIS"},  {"HIP", "HIS"},  {"HSD", "HIS"}, {"HSE", "HIS"},  {"HSP", "HIS"},
     {"HISD", "HIS"}, {"HISE", "HIS"}, {"HISH", "HIS"}, {"CYX", "CYS"}, {"CYM", "CYS"},  {"CYS2", "CYS"},
     {"ASH", "ASP"},  {"ASPH", "ASP"}, {"ASPP", "ASP"}, {"GLH", "GLU"}, {"GLUH", "GLU"}, {"GLUP", "GLU"},
     {"LYN", "LYS"},  {"LSN", "LYS"},  {"ARN", "ARG"},  {"TYM", "TYR"}}};

std::string_view without_protonation(std::string_view name) {
  const auto found = std::find_if(kProtonationStates.begin(), kProtonationStates.end(),
                                  [&](const auto& state) { return state.first == name; });
  return found == kProtonationStates.end() ? name : found->second;
}

Vector3 minus(const Atom& a, const Atom& b) {
  return {double{a[0]} - double{b[0]}, double{a[1]} - double{b[1]}, double{a[2]} - double{b[2]}};
}

// The types by number, without unknown ones.
std::map<std::pair<int32_t, char>, uint8_t> known_types(const StructureChain& chain) {
  std::map<std::pair<int32_t, char>, uint8_t> types;
  for (const Position& position : chain.positions) {
    if (position.type != kUnknownResidue)
      types.emplace(std::pair(position.number, position.insertion_code), position.type);
  }
  return types;
}

bool same_sequence(const std::map<std::pair<int32_t, char>, uint8_t>& a,
                   const std::map<std::pair<int32_t, char>, uint8_t>& b) {
  size_t both = 0;
  size_t equal = 0;
  auto at_b = b.begin();
  for (const auto& [number, type] : a) {
    while (at_b != b.end() && at_b->first < number) ++at_b;
    if (at_b == b.end()) break;
    if (at_b->first != number) continue;
    ++both;
    if (at_b->second == type) ++equal;
  }
  return 2 * both >= std::min(a.size(), b.size()) && both > 0 &&
         static_cast<double>(equal) >= kSameSequence * static_cast<double>(both);
}

}  // namespace

uint8_t residue_type_of(std::string_view three_letters) {
  if (three_letters == "MSE") three_letters = "MET";
  const auto found = std::find(kStandardNames.begin(), kStandardNames.end(), without_protonation(three_letters));
  return static_cast<uint8_t>(found - kStandardNames.begin());  // X follows the last name
}

uint8_t residue_type_of(char letter) {
  const size_t found = kResidueAlphabet.find(letter);
  return found == std::string_view::npos ? kUnknownResidue : static_cast<uint8_t>(found);
}

bool is_standard_residue(std::string_view three_letters) {
  return std::find(kStandardNames.begin(), kStandardNames.end(), without_protonation(three_letters)) !=
         kStandardNames.end();
}

bool is_amino_acid(const Backbone& backbone) {
  return !is_missing(backbone[0]) && !is_missing(backbone[1]) && !is_missing(backbone[2]);
}

bool is_complete(const Backbone& backbone) { return std::none_of(backbone.begin(), backbone.end(), is_missing); }

float dihedral(const Atom& a, const Atom& b, const Atom& c, const Atom& d) {
  const Vector3 axis = minus(c, b);
  const Vector3 left = cross(minus(b, a), axis);
  const Vector3 right = cross(axis, minus(d, c));
  const double length = std::sqrt(dot(axis, axis));
  if (!(length > 0) || !(dot(left, left) > 0) || !(dot(right, right) > 0)) return kMissing;
  return static_cast<float>(std::atan2(dot(cross(left, right), axis) / length, dot(left, right)));
}

void group_chains(Structure& structure) {
  std::vector<std::map<std::pair<int32_t, char>, uint8_t>> types;
  for (const StructureChain& chain : structure.chains) types.push_back(known_types(chain));
  for (size_t i = 0; i < structure.chains.size(); ++i) {
    StructureChain& chain = structure.chains[i];
    chain.group = static_cast<uint32_t>(i);
    if (!chain.is_protein) continue;
    for (size_t j = 0; j < i; ++j) {
      const uint32_t other = structure.chains[j].group;
      if (!structure.chains[j].is_protein || other == chain.group || !same_sequence(types[i], types[j])) continue;
      // When this chain belongs to two groups, they become one, with the smaller number.
      const uint32_t joined = std::min(other, chain.group);
      const uint32_t replaced = std::max(other, chain.group);
      for (size_t k = 0; k <= i; ++k) {
        if (structure.chains[k].group == replaced) structure.chains[k].group = joined;
      }
    }
  }
}

Status check_structure(const Structure& structure) {
  if (structure.chains.empty()) return invalid("holds no chain of amino acids or nucleotides");
  if (structure.chains.size() > kChainsMax) {
    return invalid("has " + std::to_string(structure.chains.size()) + " chains; at most " + std::to_string(kChainsMax) +
                   " are read");
  }
  const auto is_far = [](const Atom& atom) {
    return !is_missing(atom) &&
           std::any_of(atom.begin(), atom.end(), [](float value) { return std::abs(value) > kCoordinateMax; });
  };
  int64_t positions = 0;
  bool any_protein = false;
  bool any_complete = false;
  for (const StructureChain& chain : structure.chains) {
    positions += static_cast<int64_t>(chain.positions.size());
    for (const Position& position : chain.positions) {
      if (std::any_of(position.backbone.begin(), position.backbone.end(), is_far)) {
        return invalid("chain " + chain.id + ", residue " + std::to_string(position.number) +
                       ": an atom is more than 1,000,000 Å from the origin");
      }
    }
    any_protein = any_protein || chain.is_protein;
    any_complete = any_complete || std::any_of(chain.positions.begin(), chain.positions.end(),
                                               [](const Position& position) { return is_complete(position.backbone); });
  }
  if (positions > kPositionsMax) {
    return invalid("has " + std::to_string(positions) + " positions; at most " + std::to_string(kPositionsMax) +
                   " are read");
  }
  if (!any_protein) {
    return invalid("has no protein: no amino acid of its chains (" + std::to_string(structure.chains.size()) +
                   ") has N, CA and C; are they nucleic acids, or CA atoms alone?");
  }
  if (!any_complete) return invalid("has no residue with all of N, CA, C and O (only CA atoms?)");
  return {};
}

}  // namespace lockstep
