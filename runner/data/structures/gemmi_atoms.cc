#include "runner/data/structures/gemmi_atoms.h"

#include <exception>
#include <gemmi/cif.hpp>
#include <gemmi/mmcif.hpp>
#include <gemmi/pdb.hpp>
#include <utility>

namespace lockstep {
namespace {

std::vector<ParsedResidue> residues_of(const gemmi::Structure& structure) {
  std::vector<ParsedResidue> residues;
  if (structure.models.empty()) return residues;
  for (const gemmi::Chain& chain : structure.models.front().chains) {
    for (const gemmi::Residue& read : chain.residues) {
      ParsedResidue residue;
      residue.chain = chain.name;
      residue.name = read.name;
      if (read.seqid.num.has_value()) residue.number = *read.seqid.num;
      residue.insertion_code = read.seqid.icode;
      residue.is_hetatm = read.het_flag == 'H';
      residue.atoms.reserve(read.atoms.size());
      for (const gemmi::Atom& atom : read.atoms)
        residue.atoms.push_back({atom.name, atom.pos.x, atom.pos.y, atom.pos.z});
      residues.push_back(std::move(residue));
    }
  }
  return residues;
}

}  // namespace

Result<std::vector<ParsedResidue>> parse_pdb_atoms(std::string_view records) {
  try {
    return residues_of(gemmi::read_pdb_from_memory(records.data(), records.size(), ""));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kInvalid, e.what()};
  }
}

Result<std::vector<ParsedResidue>> parse_mmcif_atoms(std::string_view text) {
  try {
    return residues_of(gemmi::make_structure(gemmi::cif::read_memory(text.data(), text.size(), "mmCIF")));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kInvalid, e.what()};
  }
}

}  // namespace lockstep
