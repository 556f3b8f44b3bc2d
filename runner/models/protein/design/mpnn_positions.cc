#include "runner/models/protein/design/mpnn_positions.h"

#include <charconv>
#include <optional>
#include <set>

#include "runner/models/protein/design/mpnn_task_flags.h"

namespace lockstep {
namespace {

std::string quote(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string chain_list(const StructureView& view) {
  std::string list;
  for (const ChainView& chain : view.chains) {
    if (chain.is_protein) list += (list.empty() ? "" : ", ") + std::string(chain.id);
  }
  return list;
}

Result<size_t> find_chain(const StructureView& view, std::string_view id) {
  for (size_t i = 0; i < view.chains.size(); ++i) {
    if (view.chains[i].id != id) continue;
    if (view.chains[i].is_protein) return i;
    return invalid("chain " + std::string(id) + " of " + std::string(view.name) + " is no protein");
  }
  return invalid(std::string(view.name) + " has no chain " + quote(id) + "; it has " + chain_list(view));
}

struct ResidueNumber {
  int32_t number = 0;
  char insertion_code = ' ';
};

// Removes the number at the beginning of `text` and returns it; nothing if there is none.
std::optional<ResidueNumber> next_number(std::string_view& text) {
  ResidueNumber found;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found.number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  if (!text.empty() && is_letter(text.front())) {
    found.insertion_code = text.front();
    text.remove_prefix(1);
  }
  return found;
}

std::string text_of(const ResidueNumber& number) {
  return std::to_string(number.number) + (number.insertion_code == ' ' ? "" : std::string(1, number.insertion_code));
}

Result<int64_t> find_position(const StructureView& view, const ChainView& chain, const ResidueNumber& wanted) {
  int32_t first = 0;
  int32_t last = 0;
  bool any = false;
  for (uint32_t i = chain.begin; i < chain.end; ++i) {
    if ((view.flags[i] & kInFile) == 0) continue;
    if (view.numbers[i] == wanted.number && view.insertion_codes[i] == wanted.insertion_code) return int64_t{i};
    if (!any) first = view.numbers[i];
    last = view.numbers[i];
    any = true;
  }
  return invalid("chain " + std::string(chain.id) + " of " + std::string(view.name) + " has no residue " +
                 text_of(wanted) + "; its residues are numbered from " + std::to_string(first) + " to " +
                 std::to_string(last) + ", as in the file");
}

// "CHAIN:NUMBERS"
Result<std::vector<int64_t>> positions_of_word(const StructureView& view, std::string_view word) {
  const auto unreadable = [&] {
    return invalid(quote(word) + " cannot be read; expected a chain and numbers of residues, as in A:12-20,25");
  };
  const size_t colon = word.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == word.size()) return unreadable();
  TRY_ASSIGN(const size_t index, find_chain(view, word.substr(0, colon)));
  const ChainView& chain = view.chains[index];
  std::vector<int64_t> positions;
  for (std::string_view range : words_of(word.substr(colon + 1), ",")) {
    const std::optional<ResidueNumber> first = next_number(range);
    if (!first) return unreadable();
    std::optional<ResidueNumber> last = first;
    if (range.starts_with('-')) {
      range.remove_prefix(1);
      last = next_number(range);
    }
    if (!last || !range.empty()) return unreadable();
    TRY_ASSIGN(const int64_t begin, find_position(view, chain, *first));
    TRY_ASSIGN(const int64_t end, find_position(view, chain, *last));
    if (end < begin) return invalid(quote(word) + ": the range ends before it begins");
    for (int64_t i = begin; i <= end; ++i) {
      if ((view.flags[static_cast<size_t>(i)] & kInFile) != 0) positions.push_back(i);
    }
  }
  return positions;
}

}  // namespace

Result<std::vector<size_t>> chains_of(const StructureView& view, std::string_view text) {
  std::set<size_t> chosen;
  for (const std::string_view id : words_of(text, " ,;")) {
    TRY_ASSIGN(const size_t index, find_chain(view, id));
    chosen.insert(index);
  }
  if (text.find_first_not_of(" ,;") == std::string_view::npos) {
    for (size_t i = 0; i < view.chains.size(); ++i) {
      if (view.chains[i].is_protein) chosen.insert(i);
    }
  }
  return std::vector<size_t>(chosen.begin(), chosen.end());
}

Result<std::vector<int64_t>> positions_of(const StructureView& view, std::string_view text) {
  std::vector<int64_t> positions;
  for (const std::string_view word : words_of(text, " ;")) {
    TRY_ASSIGN(const std::vector<int64_t> some, positions_of_word(view, word));
    positions.insert(positions.end(), some.begin(), some.end());
  }
  return positions;
}

Result<std::vector<std::vector<int64_t>>> tied_positions_of(const StructureView& view, std::string_view text) {
  std::vector<std::vector<int64_t>> groups;
  std::set<int64_t> seen;
  for (const std::string_view group : words_of(text, " ;")) {
    std::vector<std::vector<int64_t>> sides;
    for (const std::string_view side : words_of(group, "=")) {
      TRY_ASSIGN(std::vector<int64_t> positions, positions_of_word(view, side));
      sides.push_back(std::move(positions));
    }
    if (sides.size() < 2) {
      return invalid(quote(group) + " ties nothing; expected two sides or more, as in A:5=B:5 or A:1-20=B:1-20");
    }
    for (const auto& side : sides) {
      if (side.size() != sides[0].size()) {
        return invalid(quote(group) + " has " + std::to_string(sides[0].size()) + " residues on one side and " +
                       std::to_string(side.size()) + " on another; expected equally many");
      }
    }
    for (size_t i = 0; i < sides[0].size(); ++i) {
      std::vector<int64_t> together;
      for (const auto& side : sides) {
        const auto place = static_cast<size_t>(side[i]);
        if (!seen.insert(side[i]).second) {
          return invalid("residue " + text_of({view.numbers[place], view.insertion_codes[place]}) + " of chain " +
                         std::string(view.chains[view.chain_of[place]].id) + " is tied twice");
        }
        together.push_back(side[i]);
      }
      groups.push_back(std::move(together));
    }
  }
  return groups;
}

}  // namespace lockstep
