#include "runner/models/protein/design/mpnn_helper_files.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>

#include "runner/formats/open_text.h"
#include "runner/models/protein/design/mpnn_positions.h"

namespace lockstep {
namespace {

constexpr int64_t kHelperFileBytesMax = int64_t{1} << 30;
constexpr double kHelperBiasMax = 1e6;

Error wrong(const std::string& where, const std::string& message) {
  return {ErrorCode::kInvalid, where + ": " + message};
}

// Joins the objects of all lines; where keys repeat, the later line wins.
Result<Json> read_object(FileSystem& fs, const std::string& path, const std::string& flag) {
  Result<std::string> bytes = read_file(fs, path, kHelperFileBytesMax);
  if (!bytes.ok()) return wrong(flag, bytes.error().message);
  const Result<OpenedText> opened = decode_text(std::move(*bytes), "the file", kHelperFileBytesMax);
  if (!opened.ok()) return wrong(flag, opened.error().message);
  Json joined = Json::object();
  std::istringstream lines(opened->text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Result<Json> object = parse_json(line, flag);
    if (!object.ok()) return object.error();
    if (!object->is_object()) return wrong(flag, "a line is no JSON object");
    joined.update(*object);
  }
  return joined;
}

// The value for the structure in a file whose keys are structures' names.
Result<const Json*> entry_of(const Json& content, const std::string& flag, const StructureView& view) {
  const auto found = content.find(std::string(view.name));
  if (found != content.end()) return &*found;
  std::string names;
  for (const auto& [name, value] : content.items()) {
    if (names.size() > 80) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  return wrong(flag, "names no structure " + std::string(view.name) + "; it names " + (names.empty() ? "none" : names));
}

Result<const ChainView*> chain_named(const std::string& where, const StructureView& view, const std::string& id) {
  const auto chains = chains_of(view, id);
  if (!chains.ok()) return wrong(where, chains.error().message);
  if (chains->size() != 1) return wrong(where, "\"" + id + "\" is no chain");
  return &view.chains[chains->front()];
}

// Whether the structure has the chain and it is no protein, but for example a nucleic acid: the public helper scripts
// name such chains, too.
bool is_other_chain(const StructureView& view, const std::string& id) {
  return std::any_of(view.chains.begin(), view.chains.end(),
                     [&](const ChainView& chain) { return chain.id == id && !chain.is_protein; });
}

Result<int64_t> position_at(const std::string& where, const StructureView& view, const ChainView& chain,
                            const Json& number) {
  const int64_t length = int64_t{chain.end} - chain.begin;
  if (!number.is_number_integer() || number.get<int64_t>() < 1 || number.get<int64_t>() > length) {
    return wrong(where, "position " + dump_line(number) + " of chain " + std::string(chain.id) + " of " +
                            std::string(view.name) + "; expected a whole number from 1 to " + std::to_string(length) +
                            ", counted along the chain");
  }
  return int64_t{chain.begin} + number.get<int64_t>() - 1;
}

// {"A": VALUE, "B": VALUE}: calls use(chain, VALUE) for each chain that is a protein.
Status for_each_chain(const std::string& where, const StructureView& view, const Json& by_chain,
                      const std::function<Status(const ChainView&, const Json&)>& use) {
  if (!by_chain.is_object()) return wrong(where, "expected an object by chains for " + std::string(view.name));
  for (const auto& [id, value] : by_chain.items()) {
    if (is_other_chain(view, id)) continue;
    TRY_ASSIGN(const ChainView* const chain, chain_named(where, view, id));
    if (!value.is_array()) {
      return wrong(where, "expected a list for chain " + id + " of " + std::string(view.name));
    }
    TRY(use(*chain, value));
  }
  return {};
}

Result<AminoAcidValues> amino_acid_values(const std::string& where, const Json& list) {
  AminoAcidValues values{};
  const bool fits =
      list.is_array() && list.size() == values.size() && std::all_of(list.begin(), list.end(), [](const Json& value) {
        return value.is_number() && std::abs(value.get<double>()) <= kHelperBiasMax;
      });
  if (!fits) {
    return wrong(where, "expected " + std::to_string(values.size()) +
                            " numbers from -1000000 to 1000000 for a position, one for each of " +
                            std::string(kResidueAlphabet));
  }
  for (size_t a = 0; a < values.size(); ++a) values[a] = list[a].get<double>();
  return values;
}

// Reads [["A", "B"], ["C"]]: the designed chains, then the fixed ones. Of the designed ones, the proteins.
Result<std::vector<size_t>> designed_in(const std::string& where, const StructureView& view, const Json& pair) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_array() ||
      !std::all_of(pair[0].begin(), pair[0].end(), is_text) || pair[0].empty()) {
    return wrong(
        where, "expected [designed chains, fixed chains] for " + std::string(view.name) + ", as in [[\"A\"], [\"B\"]]");
  }
  std::string ids;
  for (const Json& id : pair[0]) {
    if (!is_other_chain(view, id.get<std::string>())) ids += id.get<std::string>() + " ";
  }
  if (ids.empty()) {
    return wrong(where, "none of the designed chains of " + std::string(view.name) + ", " + dump_line(pair[0]) +
                            ", is a protein");
  }
  auto chains = chains_of(view, ids);
  if (!chains.ok()) return wrong(where, chains.error().message);
  return std::move(*chains);
}

// Reads [{"A": [1], "B": [1]}, …], or with weights {"A": [[1, 2], [1.0, -0.5]]}.
Status add_ties(const std::string& where, const StructureView& view, const Json& groups, HelperChoices& choices) {
  if (!groups.is_array()) return wrong(where, "expected a list of ties for " + std::string(view.name));
  std::set<int64_t> seen;
  for (const Json& group : groups) {
    std::vector<int64_t> together;
    TRY(for_each_chain(where, view, group, [&](const ChainView& chain, const Json& list) -> Status {
      const bool has_weights = !list.empty() && list[0].is_array();
      if (has_weights && (list.size() != 2 || !list[1].is_array() || list[1].size() != list[0].size())) {
        return wrong(where, "expected as many weights as positions for chain " + std::string(chain.id));
      }
      const Json& numbers = has_weights ? list[0] : list;
      for (size_t i = 0; i < numbers.size(); ++i) {
        TRY_ASSIGN(const int64_t place, position_at(where, view, chain, numbers[i]));
        if (!seen.insert(place).second) {
          return wrong(where, "position " + dump_line(numbers[i]) + " of chain " + std::string(chain.id) + " of " +
                                  std::string(view.name) + " is tied twice");
        }
        together.push_back(place);
        if (!has_weights) continue;
        if (!list[1][i].is_number()) return wrong(where, "a weight is no number: " + dump_line(list[1][i]));
        choices.tied_weights.emplace_back(place, list[1][i].get<double>());
      }
      return {};
    }));
    if (!together.empty()) choices.tied.push_back(std::move(together));
  }
  return {};
}

// Reads [[[1, 2, 3], "GPL"], …]: positions, and the amino acids that are omitted there.
Status add_omissions(const std::string& where, const StructureView& view, const ChainView& chain, const Json& list,
                     HelperChoices& choices) {
  for (const Json& item : list) {
    const bool fits = item.is_array() && item.size() == 2 && item[0].is_array() && item[1].is_string();
    const std::string letters = fits ? item[1].get<std::string>() : "";
    if (!fits || letters.find_first_not_of(kResidueAlphabet) != std::string::npos) {
      return wrong(where, "expected [positions, amino acids] for chain " + std::string(chain.id) +
                              ", as in [[1, 2], \"GPL\"]; found " + dump_line(item));
    }
    for (const Json& number : item[0]) {
      TRY_ASSIGN(const int64_t place, position_at(where, view, chain, number));
      choices.omitted.emplace_back(place, letters);
    }
  }
  return {};
}

}  // namespace

Result<HelperFiles> HelperFiles::read(FileSystem& fs, const MpnnTaskOptions& options) {
  HelperFiles files;
  const auto load = [&](const char* flag, const std::string& path, File& file) -> Status {
    if (path.empty()) return {};
    file.flag = std::string("--") + flag + " " + path;
    TRY_ASSIGN(file.content, read_object(fs, path, file.flag));
    return {};
  };
  TRY(load("chain_id_jsonl", options.chain_id_jsonl, files.chains_));
  TRY(load("fixed_positions_jsonl", options.fixed_positions_jsonl, files.fixed_));
  TRY(load("tied_positions_jsonl", options.tied_positions_jsonl, files.tied_));
  TRY(load("omit_AA_jsonl", options.omit_aa_jsonl, files.omitted_));
  TRY(load("bias_by_res_jsonl", options.bias_by_res_jsonl, files.bias_by_residue_));
  File bias;
  TRY(load("bias_AA_jsonl", options.bias_aa_jsonl, bias));
  for (const auto& [letter, value] : bias.content.items()) {
    const size_t place = letter.size() == 1 ? kResidueAlphabet.find(letter) : std::string_view::npos;
    if (place == std::string_view::npos || !value.is_number() || !(std::abs(value.get<double>()) <= kHelperBiasMax)) {
      return wrong(bias.flag, "expected amino acids in one letter and numbers, as in {\"A\": -1.1}; found \"" + letter +
                                  "\": " + dump_line(value));
    }
    files.bias_[place] = value.get<double>();
  }
  return files;
}

Result<HelperChoices> HelperFiles::choices(const StructureView& view) const {
  HelperChoices choices;
  if (!chains_.flag.empty()) {
    TRY_ASSIGN(const Json* const entry, entry_of(chains_.content, chains_.flag, view));
    TRY_ASSIGN(choices.designed_chains, designed_in(chains_.flag, view, *entry));
  }
  if (!fixed_.flag.empty()) {
    TRY_ASSIGN(const Json* const entry, entry_of(fixed_.content, fixed_.flag, view));
    TRY(for_each_chain(fixed_.flag, view, *entry, [&](const ChainView& chain, const Json& list) -> Status {
      for (const Json& number : list) {
        TRY_ASSIGN(const int64_t place, position_at(fixed_.flag, view, chain, number));
        choices.fixed.push_back(place);
      }
      return {};
    }));
  }
  if (!tied_.flag.empty()) {
    TRY_ASSIGN(const Json* const entry, entry_of(tied_.content, tied_.flag, view));
    TRY(add_ties(tied_.flag, view, *entry, choices));
  }
  if (!omitted_.flag.empty()) {
    TRY_ASSIGN(const Json* const entry, entry_of(omitted_.content, omitted_.flag, view));
    TRY(for_each_chain(omitted_.flag, view, *entry, [&](const ChainView& chain, const Json& list) {
      return add_omissions(omitted_.flag, view, chain, list, choices);
    }));
  }
  if (!bias_by_residue_.flag.empty()) {
    const std::string& flag = bias_by_residue_.flag;
    TRY_ASSIGN(const Json* const entry, entry_of(bias_by_residue_.content, flag, view));
    TRY(for_each_chain(flag, view, *entry, [&](const ChainView& chain, const Json& list) -> Status {
      if (list.size() != chain.end - chain.begin) {
        return wrong(flag, "chain " + std::string(chain.id) + " of " + std::string(view.name) + " has " +
                               std::to_string(chain.end - chain.begin) + " positions, and the file " +
                               std::to_string(list.size()));
      }
      for (size_t i = 0; i < list.size(); ++i) {
        TRY_ASSIGN(const AminoAcidValues values, amino_acid_values(flag, list[i]));
        choices.bias.emplace_back(static_cast<int64_t>(chain.begin + i), values);
      }
      return {};
    }));
  }
  return choices;
}

Result<std::vector<FastaRecord>> parse_fasta(const std::string& text, const std::string& what) {
  std::vector<FastaRecord> records;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::remove_if(line.begin(), line.end(), [](char c) { return c == '\r' || c == '\0'; }), line.end());
    if (line.starts_with('>')) {
      records.push_back({.header = line.substr(1), .sequence = {}});
      continue;
    }
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
    if (line.empty()) continue;
    if (records.empty()) return wrong(what, "expected a FASTA file, whose first line begins with >");
    records.back().sequence += line;
  }
  if (records.empty()) return wrong(what, "holds no sequence; expected a FASTA file");
  return records;
}

}  // namespace lockstep
