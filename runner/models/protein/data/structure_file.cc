#include "runner/models/protein/data/structure_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/one_line.h"
#include "runner/base/plural.h"
#include "runner/data/next_line.h"
#include "runner/formats/open_text.h"
#include "runner/models/protein/data/gemmi_atoms.h"

namespace lockstep {
namespace {

constexpr uint64_t kStructureFileBytesMax = uint64_t{1} << 30;  // inflated; the largest entries of the PDB have 500 MB

constexpr std::array<std::string_view, 4> kEndings = {".pdb", ".ent", ".cif", ".mmcif"};
constexpr std::array<std::string_view, 3> kWaters = {"HOH", "WAT", "DOD"};
constexpr std::array<const char*, 4> kBackboneAtoms = {"N", "CA", "C", "O"};
// Atoms by which two residues of one number are told apart.
constexpr std::array<std::string_view, 5> kPlacedAtoms = {"N", "CA", "C", "O", "P"};
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

bool is_residue_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") ==
                              std::string_view::npos;
}

// What a PDB file holds of its first model.
struct PdbRecords {
  std::string lines;      // for gemmi
  int64_t num_atoms = 0;  // ATOM, and HETATM of MSE
  int64_t further_models = 0;
};

// Is the record one of N, CA or C of an amino acid that is written as HETATM? Such residues are not read, but counted.
bool is_backbone_of_hetatm(std::string_view line) {
  if (!line.starts_with("HETATM") || line.size() < 54) return false;
  const std::string_view name = line.substr(12, 4);
  const std::string_view number = without_spaces(line.substr(22, 4));
  return (name == " N  " || name == " CA " || name == " C  ") && is_residue_number(number) &&
         is_coordinate(line.substr(30, 8)) && is_coordinate(line.substr(38, 8)) && is_coordinate(line.substr(46, 8));
}

// The ATOM records of the first model. Checks each of them, because gemmi reads an invalid coordinate as 0.
Result<PdbRecords> atoms_of_first_model(std::string_view text) {
  PdbRecords records;
  size_t line_number = 0;
  SegmentCounter segments;
  std::string_view last_segment;
  bool has_ended = false;
  const auto wrong = [&](const std::string& message, std::string_view line) {
    return invalid("line " + std::to_string(line_number) + ": " + message + ": \"" + printable(line) + "\"");
  };
  while (!text.empty()) {
    ++line_number;
    const std::string_view line = next_line(text);
    if (line.starts_with("data_") && records.lines.empty()) {
      return invalid("is mmCIF, but its name ends with .pdb or .ent");
    }
    if (line.starts_with("ENDMDL") && !has_ended) {
      has_ended = records.num_atoms > 0;
      if (!has_ended) records.lines.clear();  // a model of HETATM alone: the next one is the first
    }
    if (has_ended) {
      if (line.starts_with("MODEL ")) ++records.further_models;
      continue;
    }
    if (line.starts_with("TER")) segments.begin_next();
    const bool is_read =
        line.starts_with("ATOM") || (line.starts_with("HETATM") && line.size() >= 20 && line.substr(17, 3) == "MSE");
    if (!is_read && !is_backbone_of_hetatm(line)) continue;
    if (line.size() < 54) return wrong("an atom's record ends before column 54, where its coordinates end", line);
    for (const auto& [column, name] : {std::pair<size_t, char>{30, 'x'}, {38, 'y'}, {46, 'z'}}) {
      if (!is_coordinate(line.substr(column, 8))) {
        return wrong(std::string(1, name) + " (columns " + std::to_string(column + 1) + "-" +
                         std::to_string(column + 8) + ") is no number",
                     line);
      }
    }
    if (!is_residue_number(without_spaces(line.substr(22, 4)))) {
      return wrong("the residue number (columns 23-26) is no number", line);
    }
    records.num_atoms += is_read ? 1 : 0;
    // What follows column 76 is not needed: element and charge, or in files of before 1996 the number of the line.
    constexpr size_t kSegmentColumn = 72;
    const std::string_view segment =
        line.size() > kSegmentColumn ? without_spaces(line.substr(kSegmentColumn, 4)) : std::string_view();
    if (segment != last_segment) segments.begin_next();
    last_segment = segment;
    records.lines.append(line.substr(0, kSegmentColumn));
    if (line.size() < kSegmentColumn) records.lines.append(kSegmentColumn - line.size(), ' ');
    records.lines += segment_text(segments.number_of(line.substr(20, 7), line.substr(12, 4), line[16] != ' '));
    records.lines.push_back('\n');
  }
  return records;
}

struct ReadAtom {
  Atom position = kMissingAtom;
  bool is_alternative = false;
};
using AtomPositions = std::map<std::string, ReadAtom>;

struct ReadResidue {
  std::string name;     // of the first residue with this number
  AtomPositions atoms;  // the first atom of each name
};

// A residue of the same number at another place, because of which a chain was divided.
struct SameNumber {
  int number = 0;
  double distance = 0;  // Å
};

// The residues of one molecule.
struct ReadChain {
  using OfNumber = std::vector<std::pair<char, ReadResidue>>;  // by insertion code, in the order of the file
  std::string id;
  std::map<int, OfNumber> residues;
  std::optional<SameNumber> divided_at;             // the molecule has the id and a number of one that came before
  std::optional<int> last;                          // the number before, HETATM left out
  std::optional<std::pair<int, int>> out_of_order;  // the first two numbers that stand in another order in the file

  [[nodiscard]] const ReadResidue* find(int number, char code) const {
    const auto of_number = residues.find(number);
    if (of_number == residues.end()) return nullptr;
    for (const auto& [of_code, residue] : of_number->second) {
      if (of_code == code) return &residue;
    }
    return nullptr;
  }
  ReadResidue& at(int number, char code) {
    OfNumber& of_number = residues[number];
    for (auto& [of_code, residue] : of_number) {
      if (of_code == code) return residue;
    }
    return of_number.emplace_back(code, ReadResidue()).second;
  }
};

bool counts(const ParsedResidue& residue) { return !residue.is_hetatm || residue.name == "MSE"; }

bool has_backbone(const ParsedResidue& residue) {
  const auto has = [&](std::string_view name) {
    return std::any_of(residue.atoms.begin(), residue.atoms.end(),
                       [&](const ParsedAtom& atom) { return atom.name == name; });
  };
  return has("N") && has("CA") && has("C");
}

// Some programs write waters as ATOM.
bool is_only_water(const ReadChain& chain) {
  return std::all_of(chain.residues.begin(), chain.residues.end(), [](const auto& of_number) {
    return std::all_of(of_number.second.begin(), of_number.second.end(), [](const auto& residue) {
      return std::find(kWaters.begin(), kWaters.end(), residue.second.name) != kWaters.end();
    });
  });
}

// Whether an atom of the residue is farther from the chain's atom of the same name and number than two models of one
// atom would be. Alternative locations are one residue whatever their distance.
std::optional<SameNumber> same_number(const ParsedResidue& residue, const ReadChain& chain) {
  constexpr double kSamePlaceMax = 2.0;  // Å
  const ReadResidue* const known = residue.number ? chain.find(*residue.number, residue.insertion_code) : nullptr;
  if (known == nullptr) return std::nullopt;
  for (const ParsedAtom& atom : residue.atoms) {
    const bool is_compared = std::find(kPlacedAtoms.begin(), kPlacedAtoms.end(), atom.name) != kPlacedAtoms.end();
    const auto there = known->atoms.find(atom.name);
    if (!is_compared || atom.altloc != '\0' || there == known->atoms.end() || there->second.is_alternative) continue;
    const Atom& at = there->second.position;
    const double distance = std::hypot(atom.x - double{at[0]}, atom.y - double{at[1]}, atom.z - double{at[2]});
    if (distance > kSamePlaceMax) return SameNumber{.number = *residue.number, .distance = distance};  // NaN is not
  }
  return std::nullopt;
}

Status add_residue(const ParsedResidue& residue, ReadChain& chain) {
  if (!residue.number) return invalid("an atom of residue " + printable(residue.name) + " has no number");
  const int number = *residue.number;
  if (!residue.is_hetatm && chain.find(number, residue.insertion_code) == nullptr) {
    if (chain.last && number < *chain.last && !chain.out_of_order) chain.out_of_order = std::pair(*chain.last, number);
    chain.last = number;
  }
  ReadResidue& read = chain.at(number, residue.insertion_code);
  if (read.name.empty()) read.name = residue.name;
  for (const ParsedAtom& atom : residue.atoms) {
    for (const double value : {atom.x, atom.y, atom.z}) {
      if (std::isfinite(value) && std::abs(value) > kCoordinateMax) {
        return invalid("atom " + printable(atom.name) + " of residue " + std::to_string(number) +
                       " is more than a million Å from the origin");
      }
    }
    Atom position = {static_cast<float>(atom.x), static_cast<float>(atom.y), static_cast<float>(atom.z)};
    if (!std::all_of(position.begin(), position.end(), [](float value) { return std::isfinite(value); })) {
      position = kMissingAtom;
    }
    // When two residues share a number (microheterogeneity), only the first one's side chain is kept.
    const bool is_backbone = std::find(kBackboneAtoms.begin(), kBackboneAtoms.end(), atom.name) != kBackboneAtoms.end();
    if (is_backbone || residue.name == read.name) {
      read.atoms.emplace(atom.name, ReadAtom{.position = position, .is_alternative = atom.altloc != '\0'});
    }
  }
  return {};
}

Atom atom_of(const AtomPositions& atoms, const char* name) {
  const auto found = atoms.find(name);
  return found == atoms.end() ? kMissingAtom : found->second.position;
}

float chi1_of(const AtomPositions& atoms) {
  for (const char* gamma : kGammaAtoms) {
    if (!atoms.contains(gamma)) continue;
    return dihedral(atom_of(atoms, "N"), atom_of(atoms, "CA"), atom_of(atoms, "CB"), atom_of(atoms, gamma));
  }
  return kMissing;
}

Position position_of(int number, char code, const ReadResidue& residue) {
  Position position;
  for (size_t i = 0; i < kBackboneAtoms.size(); ++i) position.backbone[i] = atom_of(residue.atoms, kBackboneAtoms[i]);
  // Programs of molecular dynamics have other names for the oxygens at the end of a chain.
  for (const char* const end : {"OT1", "OC1", "O1"}) {
    if (is_missing(position.backbone[3]) && is_amino_acid(position.backbone)) {
      position.backbone[3] = atom_of(residue.atoms, end);
    }
  }
  position.number = number;
  position.insertion_code = code;
  position.chi1 = chi1_of(residue.atoms);
  position.type = residue_type_of(residue.name);
  position.flags = kInFile;
  if (is_standard_residue(residue.name)) position.flags |= kStandardResidue;
  return position;
}

// Residues of one number stay in the order of the file: IMGT numbers a loop 111, 111A, 112B, 112A, 112. In a chain
// whose numbers are not in order either, they are sorted by their codes.
Result<StructureChain> chain_of(const std::string& id, ReadChain& read, int64_t positions_left) {
  const int64_t first = read.residues.begin()->first;
  const int64_t last = read.residues.rbegin()->first;
  if (last - first >= positions_left) {
    return invalid("chain " + printable(id) + " has residue numbers from " + std::to_string(first) + " to " +
                   std::to_string(last) + "; gaps are filled up to " + std::to_string(kPositionsMax) +
                   " positions of a structure");
  }
  StructureChain chain;
  chain.id = id;
  chain.is_protein = false;
  int64_t next = first;
  for (auto& [number, residues] : read.residues) {
    for (; next < number; ++next) {
      chain.positions.emplace_back();
      chain.positions.back().number = static_cast<int32_t>(next);
    }
    if (read.out_of_order) {
      std::stable_sort(residues.begin(), residues.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    for (const auto& [code, residue] : residues) {
      chain.positions.push_back(position_of(number, code, residue));
      chain.is_protein = chain.is_protein || is_amino_acid(chain.positions.back().backbone);
    }
    next = int64_t{number} + 1;
  }
  return chain;
}

// The id for a chain without one: the first letter, digit or number that is not taken.
std::string free_id(const std::set<std::string>& taken) {
  for (const char id : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")) {
    if (!taken.contains(std::string(1, id))) return {id};
  }
  int number = 10;
  while (taken.contains(std::to_string(number))) ++number;
  return std::to_string(number);
}

// The molecules of a file, in its order. Segments with one chain id are one molecule, unless a residue of one has the
// number of another's and is at another place: programs join molecules without giving them chains of their own.
class Molecules {
 public:
  // `residues`: those of one segment and chain id that count; at least one.
  Status add(const std::vector<const ParsedResidue*>& residues) {
    const std::string& id = residues.front()->chain;
    std::vector<size_t>& with_id = by_id_[id];
    std::optional<size_t> found;
    std::optional<SameNumber> same;
    // The newest ones alone, so that the time does not grow with the square of a hostile file.
    constexpr size_t kLookedAt = 64;
    const size_t oldest = with_id.size() - std::min(with_id.size(), kLookedAt);
    for (size_t i = with_id.size(); i-- > oldest && !found;) {
      same = conflict(residues, chains_[with_id[i]]);
      if (!same) found = with_id[i];
    }
    if (!found) {
      found = chains_.size();
      if (*found == kChainsMax) return invalid("has more than " + std::to_string(kChainsMax) + " chains");
      with_id.push_back(*found);
      chains_.emplace_back();
      chains_.back().id = id;
      chains_.back().divided_at = same;
    }
    for (const ParsedResidue* const residue : residues) TRY(add_residue(*residue, chains_[*found]));
    return {};
  }
  std::vector<ReadChain> take() && { return std::move(chains_); }

 private:
  static std::optional<SameNumber> conflict(const std::vector<const ParsedResidue*>& residues, const ReadChain& chain) {
    for (const ParsedResidue* const residue : residues) {
      if (auto same = same_number(*residue, chain)) return same;
    }
    return std::nullopt;
  }

  std::vector<ReadChain> chains_;
  std::map<std::string, std::vector<size_t>> by_id_;
};

Result<std::vector<ReadChain>> molecules_of(const std::vector<ParsedResidue>& residues) {
  Molecules molecules;
  std::vector<const ParsedResidue*> segment;
  for (const ParsedResidue& residue : residues) {
    if (!counts(residue)) continue;
    if (!segment.empty() && (segment.front()->segment != residue.segment || segment.front()->chain != residue.chain)) {
      TRY(molecules.add(segment));
      segment.clear();
    }
    segment.push_back(&residue);
  }
  if (!segment.empty()) TRY(molecules.add(segment));
  std::vector<ReadChain> chains = std::move(molecules).take();
  std::erase_if(chains, is_only_water);
  return chains;
}

// "2 amino acids are written as HETATM and left out, as by the public code (SEP 1, TPO 1)"
std::string hetatm_remark(const std::vector<ParsedResidue>& residues) {
  std::map<std::string, int64_t> counted;
  int64_t sum = 0;
  for (const ParsedResidue& residue : residues) {
    if (counts(residue) || !has_backbone(residue)) continue;
    ++counted[residue.name];
    ++sum;
  }
  if (sum == 0) return {};
  constexpr size_t kNamesShown = 5;
  std::string names;
  size_t shown = 0;
  for (const auto& [name, count] : counted) {
    if (shown++ == kNamesShown) {
      names += " …";
      break;
    }
    names += (names.empty() ? "" : ", ") + printable(name) + " " + std::to_string(count);
  }
  return plural(sum, "amino acid") + " written as HETATM " + (sum == 1 ? "is" : "are") + " left out (" + names + ")";
}

std::string with_one_digit(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

// What is told of a chain that was not read as it stands in the file; `id`: in the structure.
void add_remarks(const ReadChain& read, const std::string& id, std::vector<std::string>& remarks) {
  const std::string in_file = read.id.empty() ? "without an id" : printable(read.id);
  if (read.divided_at) {
    remarks.push_back("residue " + std::to_string(read.divided_at->number) + " of the chain " + in_file +
                      " is there again, " + with_one_digit(read.divided_at->distance) +
                      " Å away: it and what follows is read as chain " + id);
  }
  if (read.out_of_order) {
    remarks.push_back("chain " + printable(id) + " goes from residue " + std::to_string(read.out_of_order->first) +
                      " to " + std::to_string(read.out_of_order->second) +
                      "; its residues are read in the order of their numbers");
  }
}

Result<Structure> structure_of(const ParsedAtoms& atoms) {
  TRY_ASSIGN(std::vector<ReadChain> chains, molecules_of(atoms.residues));
  std::set<std::string> ids;
  for (const ReadChain& chain : chains) ids.insert(chain.id);
  Structure structure;
  int64_t positions_left = kPositionsMax;
  for (ReadChain& read : chains) {
    const std::string id = read.id.empty() || read.divided_at ? free_id(ids) : read.id;
    ids.insert(id);
    TRY_ASSIGN(StructureChain chain, chain_of(id, read, positions_left));
    positions_left -= static_cast<int64_t>(chain.positions.size());
    structure.chains.push_back(std::move(chain));
    add_remarks(read, id, structure.remarks);
  }
  if (std::string remark = hetatm_remark(atoms.residues); !remark.empty()) structure.remarks.push_back(remark);
  if (atoms.further_models > 0) {
    structure.remarks.push_back("only the first of " + std::to_string(atoms.further_models + 1) + " models is read");
  }
  // A file of thousands of copies has thousands of remarks.
  constexpr size_t kRemarksMax = 4;
  if (structure.remarks.size() > kRemarksMax) {
    const size_t more = structure.remarks.size() - kRemarksMax + 1;
    structure.remarks.resize(kRemarksMax - 1);
    structure.remarks.push_back("and " + std::to_string(more) + " more remarks");
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
  ParsedAtoms atoms;
  if (format == StructureFormat::kPdb) {
    TRY_ASSIGN(const PdbRecords records, atoms_of_first_model(text));
    if (records.num_atoms == 0) return invalid("has no ATOM record");
    Result<std::vector<ParsedResidue>> residues = parse_pdb_atoms(records.lines);
    if (!residues.ok()) return invalid(printable(residues.error().message));
    atoms = {.residues = std::move(*residues), .further_models = records.further_models};
  } else {
    Result<ParsedAtoms> parsed = parse_mmcif_atoms(text);
    if (!parsed.ok()) return invalid(printable(parsed.error().message));
    atoms = std::move(*parsed);
    if (atoms.residues.empty()) return invalid("has no atoms (_atom_site)");
  }
  TRY_ASSIGN(Structure structure, structure_of(atoms));
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
  TRY_ASSIGN(OpenedText opened, decode_text(std::move(text), "the file", kStructureFileBytesMax));
  if (opened.text.empty()) return invalid("is empty");
  TRY_ASSIGN(Structure structure, parse_structure(opened.text, *format));
  if (std::string note = encoding_note(opened); !note.empty()) structure.remarks.push_back(std::move(note));
  return structure;
}

}  // namespace lockstep
