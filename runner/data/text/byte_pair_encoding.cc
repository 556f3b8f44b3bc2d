#include "runner/data/text/byte_pair_encoding.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <queue>
#include <tuple>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/one_line.h"
#include "runner/data/text/unicode_classes.h"

namespace lockstep {
namespace {

constexpr uint64_t kTokenizerFileBytesMax = uint64_t{64} << 20;  // GPT-2's have 1 MB and 0.5 MB
constexpr int32_t kBytes = 256;
constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kTokenExcerpt = 60;

constexpr std::array<const char*, 2> kVocabularyNames = {"vocab.json", "encoder.json"};
constexpr std::array<const char*, 2> kMergesNames = {"merges.txt", "vocab.bpe"};
constexpr std::string_view kBothFiles =
    "GPT-2's tokenizer is two files: vocab.json and merges.txt, or encoder.json and vocab.bpe";

std::string shown(std::string_view token) {
  return "\"" + one_line(std::string(token.substr(0, kTokenExcerpt))) + "\"";
}

// GPT-2 writes each byte as a character that can be seen: itself where it is one, else one of those from 256 on.
std::array<char32_t, kBytes> make_byte_characters() {
  std::array<char32_t, kBytes> characters{};
  char32_t next = kBytes;
  for (uint32_t byte = 0; byte < kBytes; ++byte) {
    const bool is_seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = is_seen ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}

// The bytes that a token of the vocabulary stands for; nothing where a character is no byte.
std::optional<std::string> bytes_of_written(std::string_view written) {
  static const std::unordered_map<char32_t, char> byte_of = [] {
    std::unordered_map<char32_t, char> bytes;
    const std::array<char32_t, kBytes> characters = make_byte_characters();
    for (size_t byte = 0; byte < characters.size(); ++byte) bytes[characters[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    const Character character = character_at(written, at);
    const auto found = byte_of.find(character.code_point);
    if (found == byte_of.end()) return std::nullopt;
    bytes.push_back(found->second);
    at += character.bytes;
  }
  return bytes;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U | static_cast<uint32_t>(right);
}

using Vocabulary = std::unordered_map<std::string, int32_t>;  // as it is written

Result<Vocabulary> read_vocabulary(std::string_view text, const std::string& name) {
  TRY_ASSIGN(const Json json, parse_json(text, name));
  if (!json.is_object() || json.empty()) {
    return Error{ErrorCode::kInvalid, name + ": expected an object {\"token\": number, …}; " + std::string(kBothFiles)};
  }
  Vocabulary vocabulary;
  std::vector<const std::string*> token_of_id(json.size());
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= json.size()) {
      return Error{ErrorCode::kInvalid, name + ": token " + shown(token) + " has the number " + shown(dump_line(id)) +
                                            "; expected 0 to " + std::to_string(json.size() - 1) +
                                            ", without a gap, as there are " + std::to_string(json.size()) + " tokens"};
    }
    const std::string*& owner = token_of_id[id.get<size_t>()];
    if (owner != nullptr) {
      return Error{ErrorCode::kInvalid, name + ": tokens " + shown(*owner) + " and " + shown(token) +
                                            " have one number, " + dump_line(id) + "; expected one for each"};
    }
    owner = &vocabulary.emplace(token, id.get<int32_t>()).first->first;
  }
  return vocabulary;
}

}  // namespace

size_t end_of_word(std::string_view text, size_t at) {
  using enum CharacterClass;
  if (text[at] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.substr(at).starts_with(ending)) return at + ending.size();
    }
  }
  Character first = character_at(text, at);
  size_t end = at + first.bytes;
  if (text[at] == ' ' && end < text.size() && character_at(text, end).kind != kWhiteSpace) {
    first = character_at(text, end);
    end += first.bytes;
  }
  size_t last = at;  // where the last character of the run begins
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (next.kind != first.kind) break;
    last = end;
    end += next.bytes;
  }
  // White space leaves its last character to the word behind it.
  const bool leaves_one = first.kind == kWhiteSpace && end < text.size() && last > at;
  return leaves_one ? last : end;
}

Result<BytePairEncoding> BytePairEncoding::load(const std::string& folder) {
  PosixFileSystem files;
  const auto read_one = [&](const std::array<const char*, 2>& names) -> Result<std::pair<std::string, std::string>> {
    for (const char* name : names) {
      // A person's file, perhaps a link into a cache of downloads.
      std::error_code is_missing;
      const std::filesystem::path real = std::filesystem::canonical(join_path(folder, name), is_missing);
      if (is_missing) continue;
      TRY_ASSIGN(std::string text, read_file(files, real.string(), kTokenizerFileBytesMax));
      return std::pair{std::move(text), join_path(folder, name)};
    }
    return Error{ErrorCode::kNotFound,
                 folder + " holds neither " + names[0] + " nor " + names[1] + "; " + std::string(kBothFiles)};
  };
  TRY_ASSIGN(const auto vocabulary, read_one(kVocabularyNames));
  TRY_ASSIGN(const auto merges, read_one(kMergesNames));
  return parse({.vocabulary = vocabulary.first,
                .merges = merges.first,
                .vocabulary_name = vocabulary.second,
                .merges_name = merges.second});
}

Result<BytePairEncoding> BytePairEncoding::parse(const Files& files) {
  TRY_ASSIGN(const Vocabulary vocabulary, read_vocabulary(files.vocabulary, files.vocabulary_name));
  BytePairEncoding made;
  made.bytes_of_token_.resize(vocabulary.size());
  made.token_of_byte_.assign(kBytes, -1);
  for (const auto& [written, id] : vocabulary) {
    const std::optional<std::string> bytes = bytes_of_written(written);
    if (!bytes || bytes->empty()) {
      return Error{ErrorCode::kInvalid,
                   files.vocabulary_name + ": token " + shown(written) +
                       " is not written as GPT-2 writes bytes; is this another model's tokenizer?"};
    }
    if (bytes->size() == 1) made.token_of_byte_[static_cast<uint8_t>(bytes->front())] = id;
    made.bytes_of_token_[static_cast<size_t>(id)] = *bytes;
  }
  for (size_t byte = 0; byte < made.token_of_byte_.size(); ++byte) {
    if (made.token_of_byte_[byte] >= 0) continue;
    return Error{ErrorCode::kInvalid, files.vocabulary_name + ": byte " + std::to_string(byte) +
                                          " has no token; expected one for each of the 256 bytes"};
  }
  const auto end = vocabulary.find(std::string(kEndOfText));
  if (end == vocabulary.end()) {
    return Error{ErrorCode::kInvalid, files.vocabulary_name + " has no token " + shown(kEndOfText) +
                                          ", which ends texts; is this another model's tokenizer?"};
  }
  made.end_of_text_ = end->second;

  size_t begin = 0;
  for (int32_t line = 1; begin < files.merges.size(); ++line) {
    const size_t newline = std::min(files.merges.find('\n', begin), files.merges.size());
    std::string_view text = files.merges.substr(begin, newline - begin);
    begin = newline + 1;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty() || (line == 1 && text.starts_with("#version"))) continue;
    const auto refuse = [&](const std::string& why) {
      return Error{ErrorCode::kInvalid, files.merges_name + ":" + std::to_string(line) + ": " + why};
    };
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string_view::npos) {
      return refuse("expected two tokens with a space between them, found " + shown(text));
    }
    const std::string left(text.substr(0, space));
    const std::string right(text.substr(space + 1));
    std::array<int32_t, 3> tokens{};
    for (size_t i = 0; const std::string& written : {left, right, left + right}) {
      const auto found = vocabulary.find(written);
      if (found == vocabulary.end()) {
        return refuse(shown(written) + " is no token of " + files.vocabulary_name +
                      "; the two files belong to different tokenizers");
      }
      tokens[i++] = found->second;
    }
    const auto rank = static_cast<int32_t>(made.merges_.size());
    if (!made.merges_.emplace(pair_key(tokens[0], tokens[1]), Merge{.rank = rank, .token = tokens[2]}).second) {
      return refuse("the pair " + shown(text) + " stands there a second time");
    }
  }
  if (made.merges_.empty()) {
    return Error{ErrorCode::kInvalid, files.merges_name + " holds no pair; " + std::string(kBothFiles)};
  }
  return made;
}

BytePairEncoding BytePairEncoding::of_bytes() {
  BytePairEncoding made;
  for (int32_t byte = 0; byte < kBytes; ++byte) {
    made.bytes_of_token_.emplace_back(1, static_cast<char>(byte));
    made.token_of_byte_.push_back(byte);
  }
  made.end_of_text_ = kBytes;
  made.bytes_of_token_.emplace_back(kEndOfText);
  return made;
}

std::vector<int32_t> BytePairEncoding::encode(std::string_view text, size_t tokens_max) const {
  std::vector<int32_t> tokens;
  for (size_t at = 0; at < text.size() && tokens.size() < tokens_max;) {
    const size_t end = end_of_word(text, at);
    encode_word(text.substr(at, end - at), tokens);
    at = end;
  }
  if (tokens.size() > tokens_max) tokens.resize(tokens_max);
  return tokens;
}

std::string BytePairEncoding::decode(const std::vector<int32_t>& tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) bytes += bytes_of_token_.at(static_cast<size_t>(token));
  return bytes;
}

const BytePairEncoding::Merge* BytePairEncoding::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Joins the pair of the smallest rank, the leftmost of several, until none is left.
void BytePairEncoding::encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
  struct Part {
    int32_t token;  // -1: joined to the part before it
    size_t before;
    size_t behind;
  };
  std::vector<Part> parts;
  parts.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    parts.push_back({.token = token_of_byte_[static_cast<uint8_t>(word[i])], .before = i - 1, .behind = i + 1});
  }
  struct Pair {
    int32_t rank;
    size_t left;
    int32_t left_token;  // as they were when the pair was found
    int32_t right_token;
    int32_t joined;
    bool operator>(const Pair& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  const auto look_at = [&](size_t left) {
    const size_t right = parts[left].behind;
    if (right >= parts.size()) return;
    const Merge* const merge = merge_of(parts[left].token, parts[right].token);
    if (merge == nullptr) return;
    pairs.push({.rank = merge->rank,
                .left = left,
                .left_token = parts[left].token,
                .right_token = parts[right].token,
                .joined = merge->token});
  };
  for (size_t i = 0; i < parts.size(); ++i) look_at(i);
  while (!pairs.empty()) {
    const Pair pair = pairs.top();
    pairs.pop();
    Part& left = parts[pair.left];
    if (left.token != pair.left_token || left.behind >= parts.size()) continue;
    Part& right = parts[left.behind];
    if (right.token != pair.right_token) continue;
    left.token = pair.joined;
    left.behind = right.behind;
    right.token = -1;
    if (left.behind < parts.size()) parts[left.behind].before = pair.left;
    look_at(pair.left);
    if (pair.left > 0) look_at(left.before);
  }
  for (size_t i = 0; i < parts.size(); i = parts[i].behind) tokens.push_back(parts[i].token);
}

}  // namespace lockstep
