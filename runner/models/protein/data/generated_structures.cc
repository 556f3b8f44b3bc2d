#include "runner/models/protein/data/generated_structures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "runner/base/philox.h"
#include "runner/data/generated_name.h"
#include "runner/models/protein/data/vector3.h"

namespace lockstep {
namespace {

constexpr int64_t kLengthMin = 2;
constexpr int64_t kLengthMax = 10'000;
constexpr double kFromAll = 0.1;             // share of residues whose type does not depend on the geometry
constexpr double kNeighbourDistance = 10.0;  // Å

// The atom after a, b, c: at `length` from c, with the angle b-c-d and the dihedral a-b-c-d (Parsons et al. 2005).
Vector3 next_atom(const Vector3& a, const Vector3& b, const Vector3& c, double length, double angle, double torsion) {
  const Vector3 along = unit(c - b);
  const Vector3 normal = unit(cross(b - a, along));
  const Vector3 side = cross(normal, along);
  return c + (-length * std::cos(angle)) * along + (length * std::sin(angle) * std::cos(torsion)) * side +
         (length * std::sin(angle) * std::sin(torsion)) * normal;
}

// The random draws of one structure, in order.
class StructureDraws {
 public:
  StructureDraws(uint64_t seed, int64_t index)
      : stream_{seed, static_cast<uint32_t>(RandomPurpose::kSynthetic), 1, static_cast<uint32_t>(index)} {}
  // In [0, 1).
  double uniform() { return static_cast<double>(stream_.word(next_++)) * 0x1p-32; }
  // About normal: mean 0, standard deviation 1, within ±3.
  double bell() { return (uniform() + uniform() + uniform() - 1.5) * 2; }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

struct State {
  double phi;  // degrees
  double psi;
  double spread;
  double stay;  // probability that the next residue has the same state
  std::string_view buried;
  std::string_view surface;
};
constexpr std::array<State, 3> kStates = {{{-63, -42, 5, 0.90, "LAM", "EKQR"},     // helix
                                           {-120, 130, 12, 0.80, "VIF", "TYWC"},   // strand
                                           {-75, 100, 35, 0.67, "GPA", "DNSH"}}};  // loop

// N, CA, C, O of every residue, from the torsion angles and Engh and Huber's bond lengths and angles.
std::vector<Backbone> build(const std::vector<std::array<double, 2>>& torsions) {
  constexpr double kRadians = std::numbers::pi / 180;
  std::vector<Backbone> backbones;
  Vector3 n = {0, 0, 0};
  Vector3 ca = {1.458, 0, 0};
  Vector3 c = ca + 1.525 * Vector3{-std::cos(111.0 * kRadians), std::sin(111.0 * kRadians), 0};
  const auto atom = [](const Vector3& v) {
    return Atom{static_cast<float>(v[0]), static_cast<float>(v[1]), static_cast<float>(v[2])};
  };
  for (size_t i = 0; i < torsions.size(); ++i) {
    const double psi = torsions[i][1] * kRadians;
    const Vector3 o = next_atom(n, ca, c, 1.231, 120.1 * kRadians, psi + std::numbers::pi);
    backbones.push_back({atom(n), atom(ca), atom(c), atom(o)});
    if (i + 1 == torsions.size()) break;
    const Vector3 next_n = next_atom(n, ca, c, 1.329, 116.6 * kRadians, psi);
    const Vector3 next_ca = next_atom(ca, c, next_n, 1.458, 121.7 * kRadians, std::numbers::pi);
    const Vector3 next_c = next_atom(c, next_n, next_ca, 1.525, 111.0 * kRadians, torsions[i + 1][0] * kRadians);
    n = next_n;
    ca = next_ca;
    c = next_c;
  }
  return backbones;
}

// For each residue the number of CA within kNeighbourDistance of its own.
std::vector<int> neighbours(const std::vector<Backbone>& backbones) {
  std::vector<int> counts(backbones.size(), 0);
  for (size_t i = 0; i < backbones.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      float distance = 0;
      for (size_t k = 0; k < 3; ++k) {
        const float difference = backbones[i][1][k] - backbones[j][1][k];
        distance += difference * difference;
      }
      if (distance >= kNeighbourDistance * kNeighbourDistance) continue;
      ++counts[i];
      ++counts[j];
    }
  }
  return counts;
}

// By state, the number of neighbours in a chain that does not fold. A residue with more counts as buried.
constexpr std::array<int, 3> kNeighboursOfState = {11, 5, 6};

uint8_t draw_type(size_t state, int neighbour_count, StructureDraws& draws) {
  const double from_all = draws.uniform();
  const double choice = draws.uniform();
  if (from_all < kFromAll) return static_cast<uint8_t>(choice * kUnknownResidue);
  const std::string_view letters =
      neighbour_count > kNeighboursOfState[state] ? kStates[state].buried : kStates[state].surface;
  // Each letter is half as likely as the one before it; the last two are equally likely.
  const auto halvings = static_cast<size_t>(-std::log2(1 - choice));
  return residue_type_of(letters[std::min(halvings, letters.size() - 1)]);
}

float draw_chi1(uint8_t type, StructureDraws& draws) {
  const double spread = draws.bell();
  if (kResidueAlphabet[type] == 'G' || kResidueAlphabet[type] == 'A') return kMissing;
  const double degrees = -60 + 120 * (type % 3) + 10 * spread;
  return static_cast<float>(std::remainder(degrees * std::numbers::pi / 180, 2 * std::numbers::pi));
}

StructureChain draw_chain(int64_t length, StructureDraws& draws) {
  std::vector<size_t> states;
  std::vector<std::array<double, 2>> torsions;
  size_t state = static_cast<size_t>(draws.uniform() * 3);
  for (int64_t i = 0; i < length; ++i) {
    const double leave = draws.uniform();
    if (leave >= kStates[state].stay) state = (state + (leave >= (1 + kStates[state].stay) / 2 ? 1 : 2)) % 3;
    states.push_back(state);
    const double phi = kStates[state].phi + kStates[state].spread * draws.bell();
    torsions.push_back({phi, kStates[state].psi + kStates[state].spread * draws.bell()});
  }
  const std::vector<Backbone> backbones = build(torsions);
  const std::vector<int> counts = neighbours(backbones);
  StructureChain chain;
  chain.id = "A";
  for (size_t i = 0; i < backbones.size(); ++i) {
    Position position;
    position.backbone = backbones[i];
    position.number = static_cast<int32_t>(i) + 1;
    position.type = draw_type(states[i], counts[i], draws);
    position.chi1 = draw_chi1(position.type, draws);
    position.flags = kInFile | kStandardResidue;
    chain.positions.push_back(position);
  }
  return chain;
}

}  // namespace

Result<std::optional<GeneratedStructuresSpec>> parse_generated_structures(std::string_view text) {
  GeneratedStructuresSpec spec;
  TRY_ASSIGN(const auto values, parse_generated(text, {{{"COUNT", 1, kGeneratedMax, spec.count, 200},
                                                        {"LENGTH", kLengthMin, kLengthMax, spec.length, 150}}}));
  if (!values) return std::optional<GeneratedStructuresSpec>();
  spec.count = (*values)[0];
  spec.length = (*values)[1];
  return std::optional(spec);
}

Structure generated_structure(const GeneratedStructuresSpec& spec, int64_t index) {
  StructureDraws draws(spec.seed, index);
  const double factor = 0.5 + draws.uniform();
  const int64_t length = std::max(kLengthMin, static_cast<int64_t>(static_cast<double>(spec.length) * factor));
  Structure structure;
  structure.name = "generated-" + std::to_string(index + 1);
  structure.chains.push_back(draw_chain(length, draws));
  if (index % 4 == 3) {
    // A copy of the chain, rotated by 180° about an axis outside the chain.
    StructureChain copy = structure.chains.front();
    copy.id = "B";
    float highest = -std::numeric_limits<float>::infinity();
    for (const Position& position : copy.positions) highest = std::max(highest, position.backbone[1][0]);
    for (Position& position : copy.positions) {
      for (Atom& atom : position.backbone) atom = {2 * (highest + 4) - atom[0], -atom[1], atom[2]};
    }
    structure.chains.push_back(std::move(copy));
  }
  group_chains(structure);
  return structure;
}

}  // namespace lockstep
