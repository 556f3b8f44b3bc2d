#include "runner/models/protein/sequence_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kStretch = 8;
// Of all stretches about one in four is looked at, the same ones in each sequence: this is the time of a start.
constexpr uint64_t kSampled = 4;
constexpr uint64_t kSharedFraction = 10;  // similar: a tenth of the stretches is shared
constexpr std::string_view kTag = "HHHH";

// Which structures are in one group.
class Groups {
 public:
  explicit Groups(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t first_of(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(size_t a, size_t b) {
    const size_t first = std::min(first_of(a), first_of(b));
    parent_[first_of(a)] = first;
    parent_[first_of(b)] = first;
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> numbers(parent_.size());
    int64_t next = 0;
    for (size_t i = 0; i < parent_.size(); ++i) {
      const size_t first = first_of(i);
      numbers[i] = first == i ? next++ : numbers[first];
    }
    return numbers;
  }

 private:
  std::vector<size_t> parent_;
};

struct Stretch {
  uint64_t letters = 0;
  uint32_t sequence = 0;
  friend auto operator<=>(const Stretch&, const Stretch&) = default;
};

// Appends the distinct stretches of a sequence that are looked at, and returns their number.
uint64_t add_stretches(std::string_view sequence, uint32_t number, std::vector<Stretch>& stretches) {
  std::vector<uint64_t> own;
  for (size_t i = 0; i + kStretch <= sequence.size(); ++i) {
    const std::string_view at = sequence.substr(i, kStretch);
    if (at.find('X') != std::string_view::npos || at.find(kTag) != std::string_view::npos) continue;
    uint64_t letters = 0;
    for (const char letter : at) letters = letters * kResidueAlphabet.size() + kResidueAlphabet.find(letter);
    const uint64_t mixed = (letters + 1) * 0x9E3779B97F4A7C15U;
    if ((mixed >> 32U) % kSampled == 0) own.push_back(letters);
  }
  std::sort(own.begin(), own.end());
  own.erase(std::unique(own.begin(), own.end()), own.end());
  for (const uint64_t letters : own) stretches.push_back({.letters = letters, .sequence = number});
  return own.size();
}

}  // namespace

std::vector<int64_t> sequence_groups(const std::vector<std::vector<std::string>>& sequences) {
  Groups groups(sequences.size());
  std::map<std::string_view, size_t> structure_of;  // by distinct sequence: the first structure that has it
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const std::string& sequence : sequences[i]) {
      const auto [found, is_new] = structure_of.emplace(sequence, i);
      if (!is_new) groups.join(found->second, i);
    }
  }
  std::vector<size_t> structures;  // by number of the distinct sequence
  std::vector<uint64_t> num_of;    // its stretches
  std::vector<Stretch> stretches;
  for (const auto& [sequence, structure] : structure_of) {
    num_of.push_back(add_stretches(sequence, static_cast<uint32_t>(structures.size()), stretches));
    structures.push_back(structure);
  }
  std::sort(stretches.begin(), stretches.end());
  // Pairs of sequences for each stretch that they share. Of a stretch in many sequences, each is compared with the
  // first and with its neighbour alone, so that a large family takes linear time.
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (size_t begin = 0; begin < stretches.size();) {
    size_t end = begin + 1;
    for (; end < stretches.size() && stretches[end].letters == stretches[begin].letters; ++end) {
      pairs.emplace_back(stretches[begin].sequence, stretches[end].sequence);
      if (end > begin + 1) pairs.emplace_back(stretches[end - 1].sequence, stretches[end].sequence);
    }
    begin = end;
  }
  std::sort(pairs.begin(), pairs.end());
  for (size_t begin = 0; begin < pairs.size();) {
    size_t end = begin;
    while (end < pairs.size() && pairs[end] == pairs[begin]) ++end;
    const auto [a, b] = pairs[begin];
    if ((end - begin) * kSharedFraction >= std::min(num_of[a], num_of[b])) groups.join(structures[a], structures[b]);
    begin = end;
  }
  return groups.numbers();
}

std::vector<std::string> protein_sequences(const StructureView& view) {
  std::vector<std::string> sequences;
  for (const ChainView& chain : view.chains) {
    if (!chain.is_protein) continue;
    std::string sequence;
    for (uint32_t i = chain.begin; i < chain.end; ++i) {
      if ((view.flags[i] & kInFile) != 0) sequence += kResidueAlphabet[view.types[i]];
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

}  // namespace lockstep
