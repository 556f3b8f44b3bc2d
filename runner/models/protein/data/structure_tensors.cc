#include "runner/models/protein/data/structure_tensors.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "runner/models/protein/data/fragments.h"
#include "runner/models/protein/data/torch_values.h"

namespace lockstep {
namespace {

bool has_chi1(uint8_t type) {
  return type != kUnknownResidue && kResidueAlphabet[type] != 'G' && kResidueAlphabet[type] != 'A';
}

// Sets χ1 from `bins`, which has one value for each residue or one for each residue that has a χ1. With any other
// number of values no χ1 is set, and the remark says so; else it is empty.
std::string set_chi1(const std::vector<float>& bins, std::vector<Position>& positions) {
  const auto with_chi1 = std::count_if(positions.begin(), positions.end(),
                                       [](const Position& position) { return has_chi1(position.type); });
  const bool of_each = bins.size() == positions.size();
  if (!of_each && bins.size() != static_cast<size_t>(with_chi1)) {
    return std::string(kWrongTorsions) + " has " + std::to_string(bins.size()) + " values; expected " +
           std::to_string(positions.size()) + ", one for each residue, or " + std::to_string(with_chi1) +
           ", one for each that has a side chain with a torsion angle: its torsion angles are not used";
  }
  size_t next = 0;
  for (Position& position : positions) {
    if (!of_each && !has_chi1(position.type)) continue;
    const float bin = bins[next++];
    if (has_chi1(position.type) && bin >= 0 && bin < static_cast<float>(kChi1Bins)) {
      position.chi1 = chi1_of_bin(static_cast<int64_t>(bin));
    }
  }
  return {};
}

}  // namespace

Backbone backbone_of(const float* xyz) {
  Backbone backbone = kMissingBackbone;
  for (size_t atom = 0; atom < backbone.size(); ++atom) {
    const float* at = xyz + 3 * atom;
    if (std::isfinite(at[0]) && std::isfinite(at[1]) && std::isfinite(at[2])) backbone[atom] = {at[0], at[1], at[2]};
  }
  return backbone;
}

Result<Structure> read_structure_tensors(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const TorchFile file, read_torch_dict(fs, path));
  const PickleDict& dict = dict_of(file);
  TRY_ASSIGN(const TensorView coordinates, tensor_at(dict, "backbone_coords"));
  TRY_ASSIGN(const std::vector<std::string> types, texts_at(dict, "residue_types"));
  const std::vector<int64_t> expected = {static_cast<int64_t>(types.size()), 4, 3};
  if (types.empty() || coordinates.shape != expected) {
    return invalid("backbone_coords has shape " + shape_text(coordinates.shape) + " and residue_types " +
                   std::to_string(types.size()) + " names; expected [L, 4, 3] and L, at least 1");
  }
  TRY_ASSIGN(const std::vector<float> xyz, floats_of(coordinates));
  Structure structure;
  structure.chains.emplace_back();
  StructureChain& chain = structure.chains.front();
  chain.id = "A";
  for (size_t i = 0; i < types.size(); ++i) {
    Position position;
    position.backbone = backbone_of(xyz.data() + 12 * i);
    position.number = static_cast<int32_t>(i) + 1;
    position.type = types[i].size() == 1 ? residue_type_of(types[i][0]) : residue_type_of(types[i]);
    position.flags = kInFile;
    if (position.type != kUnknownResidue && types[i] != "MSE") position.flags |= kStandardResidue;
    chain.positions.push_back(position);
  }
  if (find_value(dict, "torsion_bins") != nullptr) {
    TRY_ASSIGN(const TensorView bins, tensor_at(dict, "torsion_bins"));
    TRY_ASSIGN(const std::vector<float> values, floats_of(bins));
    if (std::string remark = set_chi1(values, chain.positions); !remark.empty()) structure.remarks.push_back(remark);
  }
  TRY(check_structure(structure));
  return structure;
}

}  // namespace lockstep
