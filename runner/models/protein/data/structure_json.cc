#include "runner/models/protein/data/structure_json.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "runner/base/json.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, 4> kAtoms = {"N", "CA", "C", "O"};
constexpr std::string_view kSequenceKey = "seq_chain_";

// What Python writes for numbers that JSON does not have → null; not in texts.
std::string without_nan(std::string_view line) {
  std::string out;
  out.reserve(line.size());
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!in_text) {
      bool replaced = false;
      for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
        if (line.substr(i).starts_with(word)) {
          out += "null";
          i += word.size() - 1;
          replaced = true;
          break;
        }
      }
      if (replaced) continue;
    }
    if (in_text && line[i] == '\\' && i + 1 < line.size())
      out += line[i++];
    else if (line[i] == '"')
      in_text = !in_text;
    out += line[i];
  }
  return out;
}

Result<Atom> atom_of(const OrderedJson& value, const std::string& key, size_t index) {
  const auto wrong = [&] { return invalid("\"" + key + "\"[" + std::to_string(index) + "] is not [x, y, z]"); };
  if (!value.is_array() || value.size() != 3) return wrong();
  Atom atom = {};
  for (size_t i = 0; i < 3; ++i) {
    if (value[i].is_null()) return kMissingAtom;
    if (!value[i].is_number()) return wrong();
    atom[i] = value[i].get<float>();
    if (!std::isfinite(atom[i])) return kMissingAtom;
  }
  return atom;
}

// `suffix`: what follows the atoms' names in the keys.
Result<StructureChain> chain_of(const std::string& id, const OrderedJson& sequence, const OrderedJson& coordinates,
                                const std::string& suffix) {
  if (!sequence.is_string() || !coordinates.is_object()) {
    return invalid("chain " + id + ": the sequence is no text, or the coordinates are no object");
  }
  const std::string letters = sequence.get<std::string>();
  if (letters.empty()) return invalid("chain " + id + " has an empty sequence");
  StructureChain chain;
  chain.id = id;
  chain.positions.resize(letters.size());
  for (size_t atom = 0; atom < kAtoms.size(); ++atom) {
    const std::string key = kAtoms[atom] + suffix;
    if (!coordinates.contains(key)) return invalid("chain " + id + " has no \"" + key + "\"");
    const OrderedJson& values = coordinates[key];
    if (!values.is_array() || values.size() != letters.size()) {
      return invalid("\"" + key + "\" of chain " + id + " is " +
                     (values.is_array() ? "a list of " + std::to_string(values.size()) : std::string("not a list")) +
                     "; expected a list of " + std::to_string(letters.size()) +
                     " positions, one for each letter of the chain's sequence");
    }
    for (size_t i = 0; i < letters.size(); ++i) {
      TRY_ASSIGN(chain.positions[i].backbone[atom], atom_of(values[i], key, i));
    }
  }
  chain.is_protein = false;
  for (size_t i = 0; i < letters.size(); ++i) {
    Position& position = chain.positions[i];
    position.number = static_cast<int32_t>(i) + 1;
    position.type = residue_type_of(letters[i]);
    const Backbone& backbone = position.backbone;
    const bool any_atom = !is_missing(backbone[0]) || !is_missing(backbone[1]) || !is_missing(backbone[2]);
    if (letters[i] != '-' || any_atom) position.flags = kInFile;
    if (position.type != kUnknownResidue) position.flags |= kStandardResidue;
    chain.is_protein = chain.is_protein || is_amino_acid(backbone);
  }
  return chain;
}

Result<Structure> structure_of(const OrderedJson& line) {
  Structure structure;
  if (line.contains("name") && line["name"].is_string()) structure.name = line["name"].get<std::string>();
  if (line.contains("coords") && line.contains("seq")) {
    // "1abc.A"
    const size_t dot = structure.name.rfind('.');
    const std::string id =
        dot == std::string::npos || dot + 1 == structure.name.size() ? "A" : structure.name.substr(dot + 1);
    TRY_ASSIGN(StructureChain chain, chain_of(id, line["seq"], line["coords"], ""));
    structure.chains.push_back(std::move(chain));
    return structure;
  }
  for (const auto& [key, sequence] : line.items()) {
    if (!key.starts_with(kSequenceKey)) continue;
    const std::string id = key.substr(kSequenceKey.size());
    if (!line.contains("coords_chain_" + id)) return invalid("has \"" + key + "\" without \"coords_chain_" + id + "\"");
    TRY_ASSIGN(StructureChain chain, chain_of(id, sequence, line["coords_chain_" + id], "_chain_" + id));
    structure.chains.push_back(std::move(chain));
  }
  if (structure.chains.empty()) {
    return invalid("is no structure: expected \"seq\" and \"coords\", or \"seq_chain_A\" and \"coords_chain_A\"");
  }
  return structure;
}

}  // namespace

Result<Structure> parse_structure_json(std::string_view line) {
  try {
    const OrderedJson parsed = OrderedJson::parse(without_nan(line));
    if (!parsed.is_object()) return invalid("is no JSON object");
    TRY_ASSIGN(Structure structure, structure_of(parsed));
    TRY(check_structure(structure));
    group_chains(structure);
    return structure;
  } catch (const OrderedJson::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("is no JSON: ") + e.what()};
  }
}

}  // namespace lockstep
