#include "runner/models/gpt2rec/text_table.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>

#include "runner/models/gpt2rec/text_encoder.h"

namespace lockstep {
namespace {

constexpr int64_t kTokensPerGroup = 4096;  // including padding
constexpr int64_t kGuideChunk = 32;        // number of texts that the guide pads together, to the longest of them

}  // namespace

TextTable::TextTable(const TextEncoder& encoder, const std::vector<std::string>& users,
                     const std::vector<std::string>& films)
    : padding_token_(encoder.padding_token()) {
  of_user_ = add_all(encoder, users);
  of_film_ = add_all(encoder, films);
  cut_texts_ = std::count_if(texts_.begin(), texts_.end(), [&](const Text& text) {
    return static_cast<int64_t>(text.tokens.size()) == encoder.options().max_length;
  });
}

// Equal texts get the same number. With --pool padded, however, a text's vector also depends on its padded length, so
// that the same text with different padded lengths gets different numbers.
std::vector<int64_t> TextTable::add_all(const TextEncoder& encoder, const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int64_t>> tokens;
  for (const std::string& text : texts) {
    if (!tokens.contains(text)) tokens.emplace(text, encoder.tokenize(text));
  }
  const auto length_of = [&](const std::string& text) { return static_cast<int64_t>(tokens.at(text).size()); };
  const bool is_padded = encoder.options().pool == TextPool::kPadded;
  std::map<std::pair<std::string, int64_t>, int64_t> known;  // text, padded length → number
  std::vector<int64_t> numbers;
  int64_t padded_to = 0;
  const auto count = static_cast<int64_t>(texts.size());
  for (int64_t i = 0; i < count; ++i) {
    if (is_padded && i % kGuideChunk == 0) {
      padded_to = 0;
      for (int64_t k = i; k < std::min(count, i + kGuideChunk); ++k) {
        padded_to = std::max(padded_to, length_of(texts[static_cast<size_t>(k)]));
      }
    }
    const std::string& text = texts[static_cast<size_t>(i)];
    const auto [entry, is_new] = known.try_emplace({text, padded_to}, size());
    if (is_new) texts_.push_back({.tokens = tokens.at(text), .padded_to = padded_to});
    numbers.push_back(entry->second);
  }
  return numbers;
}

int64_t TextTable::tokens() const {
  return std::accumulate(texts_.begin(), texts_.end(), int64_t{0},
                         [](int64_t sum, const Text& text) { return sum + static_cast<int64_t>(text.tokens.size()); });
}

std::vector<std::vector<int64_t>> TextTable::groups(const std::vector<int64_t>& numbers) const {
  std::vector<int64_t> sorted = numbers;
  const auto places = [&](int64_t text) { return std::max(length(text), texts_[static_cast<size_t>(text)].padded_to); };
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return places(a) < places(b); });
  std::vector<std::vector<int64_t>> groups;
  for (const int64_t text : sorted) {
    const bool begins = [&] {
      if (groups.empty()) return true;
      const std::vector<int64_t>& last = groups.back();
      const bool is_other_padding = texts_[static_cast<size_t>(text)].padded_to > 0 && places(text) != places(last[0]);
      return is_other_padding || static_cast<int64_t>(last.size() + 1) * places(text) > kTokensPerGroup;
    }();
    if (begins) groups.emplace_back();
    groups.back().push_back(text);
  }
  return groups;
}

NamedTensors TextTable::tensors(const std::vector<int64_t>& group, const std::string& suffix, bool pinned) const {
  const auto n = static_cast<int64_t>(group.size());
  int64_t places = 0;
  for (const int64_t text : group) {
    places = std::max({places, length(text), texts_[static_cast<size_t>(text)].padded_to});
  }
  const auto options = at::TensorOptions(at::kLong).pinned_memory(pinned);
  const at::Tensor tokens_NT = at::full({n, places}, padding_token_, options);
  const at::Tensor lengths_N = at::empty({n}, options);
  const at::Tensor texts_N = at::empty({n}, options);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t text = group[static_cast<size_t>(i)];
    const std::vector<int64_t>& tokens = texts_[static_cast<size_t>(text)].tokens;
    std::copy(tokens.begin(), tokens.end(), tokens_NT.mutable_data_ptr<int64_t>() + i * places);
    lengths_N.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(tokens.size());
    texts_N.mutable_data_ptr<int64_t>()[i] = text;
  }
  return {{"tokens_NT" + suffix, tokens_NT}, {"lengths_N" + suffix, lengths_N}, {"texts_N" + suffix, texts_N}};
}

}  // namespace lockstep
