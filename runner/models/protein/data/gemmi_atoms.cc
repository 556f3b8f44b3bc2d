#include "runner/models/protein/data/gemmi_atoms.h"

#include <cmath>
#include <cstdlib>
#include <exception>
#include <gemmi/cif.hpp>
#include <gemmi/mmcif.hpp>
#include <gemmi/pdb.hpp>
#include <set>
#include <utility>

namespace lockstep {
namespace {

constexpr int kSegmentBase = 36;
constexpr size_t kSegmentCharacters = 4;

std::vector<ParsedResidue> residues_of(const gemmi::Structure& structure) {
  std::vector<ParsedResidue> residues;
  if (structure.models.empty()) return residues;
  for (const gemmi::Chain& chain : structure.models.front().chains) {
    for (const gemmi::Residue& read : chain.residues) {
      ParsedResidue residue;
      residue.chain = chain.name;
      residue.segment = std::strtoll(read.segment.c_str(), nullptr, kSegmentBase);
      residue.name = read.name;
      if (read.seqid.num.has_value()) residue.number = *read.seqid.num;
      residue.insertion_code = read.seqid.icode;
      residue.is_hetatm = read.het_flag == 'H';
      residue.atoms.reserve(read.atoms.size());
      for (const gemmi::Atom& atom : read.atoms) {
        residue.atoms.push_back({atom.name, atom.altloc, atom.pos.x, atom.pos.y, atom.pos.z});
      }
      residues.push_back(std::move(residue));
    }
  }
  return residues;
}

// The loop _atom_site of one of the blocks; null when there is none. Throws when two blocks have one.
const gemmi::cif::Loop* atom_loop(const gemmi::cif::Document& document) {
  const gemmi::cif::Loop* found = nullptr;
  for (const gemmi::cif::Block& block : document.blocks) {
    for (const gemmi::cif::Item& item : block.items) {
      if (item.type != gemmi::cif::ItemType::Loop || item.loop.tags.empty()) continue;
      if (gemmi::to_lower(item.loop.tags.front()).rfind("_atom_site.", 0) != 0) continue;
      if (found != nullptr) gemmi::fail("two blocks have atoms (_atom_site); split the file");
      found = &item.loop;
    }
  }
  return found;
}

// One value of a row. A column that the file does not have is -1, and all its values are unknown.
class AtomRows {
 public:
  explicit AtomRows(const gemmi::cif::Loop& loop) : loop_(loop) {}

  [[nodiscard]] int column(const std::string& name) const { return loop_.find_tag("_atom_site." + name); }
  // The first of two columns that the file has; throws when it has neither.
  [[nodiscard]] int column(const std::string& name, const std::string& other) const {
    const int found = column(name) >= 0 ? column(name) : column(other);
    if (found < 0) gemmi::fail("_atom_site has no column " + name + (other.empty() ? "" : ", nor " + other));
    return found;
  }
  [[nodiscard]] size_t size() const { return loop_.length(); }
  [[nodiscard]] bool has(size_t row, int column) const {
    return column >= 0 && !gemmi::cif::is_null(loop_.val(row, static_cast<size_t>(column)));
  }
  [[nodiscard]] std::string text(size_t row, int column) const {
    return has(row, column) ? gemmi::cif::as_string(loop_.val(row, static_cast<size_t>(column))) : std::string();
  }
  // NaN where the file has none; throws for what is no number.
  [[nodiscard]] double coordinate(size_t row, int column) const {
    const double value = has(row, column) ? gemmi::cif::as_number(loop_.val(row, static_cast<size_t>(column))) : NAN;
    if (has(row, column) && std::isnan(value) && gemmi::to_lower(text(row, column)).find("nan") == std::string::npos) {
      gemmi::fail("row " + std::to_string(row + 1) + " of _atom_site: " +
                  loop_.tags[static_cast<size_t>(column)].substr(std::string("_atom_site.").size()) +
                  " is no number: " + text(row, column));
    }
    return value;
  }

 private:
  const gemmi::cif::Loop& loop_;
};

ParsedAtoms atoms_of_first_model(const gemmi::cif::Loop& loop) {
  const AtomRows rows(loop);
  ParsedAtoms parsed;
  if (rows.size() == 0) return parsed;
  const int x = rows.column("Cartn_x", "");
  const int y = rows.column("Cartn_y", "");
  const int z = rows.column("Cartn_z", "");
  const int atom_name = rows.column("auth_atom_id", "label_atom_id");
  const int residue_name = rows.column("auth_comp_id", "label_comp_id");
  const int number = rows.column("auth_seq_id", "label_seq_id");
  const int chain = rows.column("auth_asym_id");
  const int unit = rows.column("label_asym_id");
  const int code = rows.column("pdbx_PDB_ins_code");
  const int altloc = rows.column("label_alt_id");
  const int group = rows.column("group_PDB");
  const int model = rows.column("pdbx_PDB_model_num");
  const std::string first_model = rows.text(0, model);
  std::set<std::string> further_models;
  SegmentCounter segments;
  std::string last_unit;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (const std::string of_row = rows.text(row, model); of_row != first_model) {
      further_models.insert(of_row);
      continue;
    }
    ParsedResidue residue;
    residue.chain = rows.has(row, chain) ? rows.text(row, chain) : rows.text(row, unit);
    residue.name = rows.text(row, residue_name);
    const std::string number_text = rows.text(row, number);
    const std::string code_text = rows.text(row, code);
    if (!number_text.empty()) {
      const gemmi::SeqId id = gemmi::impl::make_seqid(number_text, code_text.empty() ? nullptr : &code_text);
      if (id.num.has_value()) residue.number = *id.num;
      residue.insertion_code = id.icode;
    }
    residue.is_hetatm = gemmi::alpha_up(rows.text(row, group).c_str()[0]) == 'H';
    const std::string alternative = rows.text(row, altloc);
    ParsedAtom atom;
    atom.name = rows.text(row, atom_name);
    atom.altloc = alternative.empty() ? '\0' : alternative[0];
    atom.x = rows.coordinate(row, x);
    atom.y = rows.coordinate(row, y);
    atom.z = rows.coordinate(row, z);
    if (std::string of_row = rows.text(row, unit); of_row != last_unit) {
      segments.begin_next();
      last_unit = std::move(of_row);
    }
    residue.segment = segments.number_of(residue.chain + ' ' + number_text + ' ' + residue.insertion_code, atom.name,
                                         atom.altloc != '\0');
    const ParsedResidue* const last = parsed.residues.empty() ? nullptr : &parsed.residues.back();
    if (last == nullptr || last->segment != residue.segment || last->number != residue.number ||
        last->insertion_code != residue.insertion_code || last->name != residue.name || last->chain != residue.chain) {
      parsed.residues.push_back(std::move(residue));
    }
    parsed.residues.back().atoms.push_back(std::move(atom));
  }
  parsed.further_models = static_cast<int64_t>(further_models.size());
  return parsed;
}

}  // namespace

std::string segment_text(int64_t segment) {
  std::string text(kSegmentCharacters, '0');
  for (size_t i = kSegmentCharacters; i-- > 0; segment /= kSegmentBase) {
    text[i] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[segment % kSegmentBase];
  }
  return text;
}

Result<std::vector<ParsedResidue>> parse_pdb_atoms(std::string_view records) {
  try {
    return residues_of(gemmi::read_pdb_from_memory(records.data(), records.size(), ""));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kInvalid, e.what()};
  }
}

Result<ParsedAtoms> parse_mmcif_atoms(std::string_view text) {
  try {
    const gemmi::cif::Document document = gemmi::cif::read_memory(text.data(), text.size(), "mmCIF");
    const gemmi::cif::Loop* const loop = atom_loop(document);
    return loop == nullptr ? ParsedAtoms() : atoms_of_first_model(*loop);
  } catch (const std::exception& e) {
    return Error{ErrorCode::kInvalid, e.what()};
  }
}

}  // namespace lockstep
