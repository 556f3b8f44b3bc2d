#include "runner/data/structures/structure_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "runner/base/one_line.h"
#include "runner/data/structures/gemmi_atoms.h"
#include "runner/data/take_line.h"

namespace lockstep {
namespace {

constexpr uint64_t kStructureFileBytesMax = uint64_t{1} << 30;  // inflated; the largest entries of the PDB have 500 MB

constexpr std::array<std::string_view, 4> kEndings = {".pdb", ".ent", ".cif", ".mmcif"};
constexpr std::array<std::string_view, 3> kWaters = {"HOH", "WAT", "DOD"};
constexpr std::array<const char*, 4> kBackboneAtoms = {"N", "CA", "C", "O"};
constexpr std::array<const char*, 5> kGammaAtoms = {"CG", "CG1", "OG", "OG1", "SG"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Is the text one number (nan and inf included)?
bool is_coordinate(std::string_view text) {
  text = without_spaces(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The ATOM records of the first model. Checks each of them, because gemmi reads an invalid coordinate as 0.
Result<std::string> atoms_of_first_model(std::string_view text) {
  std::string atoms;
  size_t line_number = 0;
  const auto wrong = [&](const std::string& message, std::string_view line) {
    return invalid("line " + std::to_string(line_number) + ": " + message + ": \"" + printable(line) + "\"");
  };
  while (!text.empty()) {
    ++line_number;
    const std::string_view line = take_line(text);
    if (line.starts_with("data_") && atoms.empty()) return invalid("is mmCIF, but its name ends with .pdb or .ent");
    if (line.starts_with("ENDMDL") && !atoms.empty()) break;
    const bool is_atom = line.starts_with("ATOM");
    if (!is_atom && !(line.starts_with("HETATM") && line.size() >= 20 && line.substr(17, 3) == "MSE")) continue;
    if (line.size() < 54) return wrong("an atom's record ends before column 54, where its coordinates end", line);
    for (const auto& [column, name] : {std::pair<size_t, char>{30, 'x'}, {38, 'y'}, {46, 'z'}}) {
      if (!is_coordinate(line.substr(column, 8))) {
        return wrong(std::string(1, name) + " (columns " + std::to_string(column + 1) + "-" +
                         std::to_string(column + 8) + ") is no number",
                     line);
      }
    }
    const std::string_view number = without_spaces(line.substr(22, 4));
    if (number.empty() || number.find_first_not_of("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") !=
                              std::string_view::npos) {
      return wrong("the residue number (columns 23-26) is no number", line);
    }
    // Columns after 80 are not part of the format. Short lines are padded, because gemmi requires more columns than
    // those of the coordinates.
    atoms.append(line.substr(0, 80));
    if (line.size() < 60) atoms.append(60 - line.size(), ' ');
    atoms.push_back('\n');
  }
  return atoms;
}

using AtomPositions = std::map<std::string, Atom>;

struct ReadResidue {
  std::string name;     // of the first residue with this number
  AtomPositions atoms;  // the first atom of each name
};
using ReadChain = std::map<std::pair<int, char>, ReadResidue>;  // by number and insertion code

bool counts(const ParsedResidue& residue) { return !residue.is_hetatm || residue.name == "MSE"; }

// Some programs write waters as ATOM.
bool is_only_water(const ReadChain& chain) {
  return std::all_of(chain.begin(), chain.end(), [](const auto& residue) {
    return std::find(kWaters.begin(), kWaters.end(), residue.second.name) != kWaters.end();
  });
}

Status add_residue(const ParsedResidue& residue, ReadChain& chain) {
  if (!residue.number) return invalid("an atom of residue " + printable(residue.name) + " has no number");
  ReadResidue& read = chain[{*residue.number, residue.insertion_code}];
  if (read.name.empty()) read.name = residue.name;
  for (const ParsedAtom& atom : residue.atoms) {
    for (const double value : {atom.x, atom.y, atom.z}) {
      if (std::isfinite(value) && std::abs(value) > kCoordinateMax) {
        return invalid("atom " + printable(atom.name) + " of residue " + std::to_string(*residue.number) +
                       " is more than a million Å from the origin");
      }
    }
    Atom position = {static_cast<float>(atom.x), static_cast<float>(atom.y), static_cast<float>(atom.z)};
    if (!std::all_of(position.begin(), position.end(), [](float value) { return std::isfinite(value); })) {
      position = kMissingAtom;
    }
    // When two residues share a number (microheterogeneity), only the first one's side chain is kept.
    const bool is_backbone = std::find(kBackboneAtoms.begin(), kBackboneAtoms.end(), atom.name) != kBackboneAtoms.end();
    if (is_backbone || residue.name == read.name) read.atoms.emplace(atom.name, position);
  }
  return {};
}

Atom atom_of(const AtomPositions& atoms, const char* name) {
  const auto found = atoms.find(name);
  return found == atoms.end() ? kMissingAtom : found->second;
}

float chi1_of(const AtomPositions& atoms) {
  for (const char* gamma : kGammaAtoms) {
    if (!atoms.contains(gamma)) continue;
    return dihedral(atom_of(atoms, "N"), atom_of(atoms, "CA"), atom_of(atoms, "CB"), atom_of(atoms, gamma));
  }
  return kMissing;
}

Position position_of(const std::pair<int, char>& number, const ReadResidue& residue) {
  Position position;
  for (size_t i = 0; i < kBackboneAtoms.size(); ++i) position.backbone[i] = atom_of(residue.atoms, kBackboneAtoms[i]);
  position.number = number.first;
  position.insertion_code = number.second;
  position.chi1 = chi1_of(residue.atoms);
  position.type = residue_type_of(residue.name);
  position.flags = kInFile;
  if (is_standard_residue(residue.name)) position.flags |= kStandardResidue;
  return position;
}

Result<StructureChain> chain_of(const std::string& id, const ReadChain& read, int64_t positions_left) {
  const int64_t first = read.begin()->first.first;
  const int64_t last = read.rbegin()->first.first;
  if (last - first >= positions_left) {
    return invalid("chain " + printable(id) + " has residue numbers from " + std::to_string(first) + " to " +
                   std::to_string(last) + "; gaps are filled up to " + std::to_string(kPositionsMax) +
                   " positions of a structure");
  }
  StructureChain chain;
  chain.id = id;
  chain.is_protein = false;
  int64_t next = first;
  for (const auto& [number, residue] : read) {
    for (; next < number.first; ++next) {
      chain.positions.emplace_back();
      chain.positions.back().number = static_cast<int32_t>(next);
    }
    chain.positions.push_back(position_of(number, residue));
    chain.is_protein = chain.is_protein || is_amino_acid(chain.positions.back().backbone);
    next = int64_t{number.first} + 1;
  }
  return chain;
}

// The id for a chain without one: the first letter that is not taken.
std::string free_letter(const std::set<std::string>& taken) {
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    if (!taken.contains(std::string(1, letter))) return {letter};
  }
  return "_";
}

Result<Structure> structure_of(const std::vector<ParsedResidue>& residues) {
  std::vector<std::pair<std::string, ReadChain>> chains;  // in the order of the file
  std::map<std::string, size_t> by_id;
  for (const ParsedResidue& residue : residues) {
    if (!counts(residue)) continue;
    const auto [found, fresh] = by_id.emplace(residue.chain, chains.size());
    if (fresh) chains.emplace_back(residue.chain, ReadChain());
    TRY(add_residue(residue, chains[found->second].second));
  }
  std::erase_if(chains, [](const auto& chain) { return is_only_water(chain.second); });
  std::set<std::string> ids;
  for (const auto& [id, chain] : chains) ids.insert(id);
  Structure structure;
  int64_t positions_left = kPositionsMax;
  for (const auto& [id, read] : chains) {
    TRY_ASSIGN(StructureChain chain, chain_of(id.empty() ? free_letter(ids) : id, read, positions_left));
    positions_left -= static_cast<int64_t>(chain.positions.size());
    structure.chains.push_back(std::move(chain));
  }
  return structure;
}

}  // namespace

std::string structure_ending_of(std::string_view file_name) {
  const std::string name = lower(file_name.substr(file_name.rfind('/') + 1));
  for (const std::string_view ending : kEndings) {
    for (const std::string& whole : {std::string(ending), std::string(ending) + ".gz"}) {
      if (name.size() > whole.size() && name.ends_with(whole)) return whole;
    }
  }
  return {};
}

std::optional<StructureFormat> structure_format_of(std::string_view file_name) {
  const std::string ending = structure_ending_of(file_name);
  if (ending.empty()) return std::nullopt;
  return ending.starts_with(".pdb") || ending.starts_with(".ent") ? StructureFormat::kPdb : StructureFormat::kMmcif;
}

Result<Structure> parse_structure(std::string_view text, StructureFormat format) {
  Result<std::vector<ParsedResidue>> residues = std::vector<ParsedResidue>();
  if (format == StructureFormat::kPdb) {
    TRY_ASSIGN(const std::string records, atoms_of_first_model(text));
    if (records.empty()) return invalid("has no ATOM record");
    residues = parse_pdb_atoms(records);
  } else {
    residues = parse_mmcif_atoms(text);
  }
  if (!residues.ok()) return invalid(printable(residues.error().message));
  if (residues->empty()) return invalid("has no atoms (_atom_site)");
  TRY_ASSIGN(Structure structure, structure_of(*residues));
  TRY(check_structure(structure));
  group_chains(structure);
  return structure;
}

Result<std::string> inflate_gzip(std::string_view bytes, size_t bytes_max) {
  const auto corrupt = [](std::string message) { return Error{ErrorCode::kCorrupt, std::move(message)}; };
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return Error{ErrorCode::kUnavailable, "zlib: no memory"};
  std::string out;
  std::vector<char> piece(size_t{1} << 18);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib does not write to it
  size_t left = bytes.size();
  int state = Z_OK;
  bool too_large = false;
  while (!too_large) {
    if (stream.avail_in == 0 && left > 0) {
      stream.avail_in = static_cast<uInt>(std::min<size_t>(left, size_t{1} << 30));
      left -= stream.avail_in;
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    state = inflate(&stream, Z_NO_FLUSH);
    if (state != Z_OK && state != Z_STREAM_END) break;
    const size_t made = piece.size() - stream.avail_out;
    too_large = made > bytes_max - out.size();
    if (!too_large) out.append(piece.data(), made);
    if (state != Z_STREAM_END) continue;
    if (stream.avail_in == 0 && left == 0) break;
    // Zeros after the last member are padding of tapes or of tar's blocks.
    const std::string_view rest = bytes.substr(bytes.size() - left - stream.avail_in);
    if (rest.find_first_not_of('\0') == std::string_view::npos) break;
    // Several members one after the other are one file (RFC 1952).
    if (inflateReset(&stream) != Z_OK) break;
  }
  inflateEnd(&stream);
  if (too_large) return invalid("holds more than " + std::to_string(bytes_max >> 20) + " MB once it is inflated");
  if (state == Z_STREAM_END) return out;
  return corrupt(out.empty() && state == Z_DATA_ERROR ? "is no gzip file" : "the gzip data are cut off or damaged");
}

Result<Structure> read_structure_file(FileSystem& fs, const std::string& path) {
  const std::optional<StructureFormat> format = structure_format_of(path);
  if (!format) return invalid("its name ends with none of .pdb, .ent, .cif, .mmcif (or these with .gz)");
  TRY_ASSIGN(std::string text, read_file(fs, path, kStructureFileBytesMax));
  if (structure_ending_of(path).ends_with(".gz")) {
    TRY_ASSIGN(text, inflate_gzip(text, kStructureFileBytesMax));
  }
  if (text.empty()) return invalid("is empty");
  return parse_structure(text, *format);
}

}  // namespace lockstep
