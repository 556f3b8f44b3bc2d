#include "runner/data/text/byte_pair_encoding.h"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <tuple>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/one_line.h"
#include "runner/base/parse_number.h"
#include "runner/base/sha256.h"
#include "runner/data/next_line.h"
#include "runner/data/text/unicode_classes.h"
#include "runner/formats/open_text.h"

namespace lockstep {
namespace {

constexpr uint64_t kTokenizerFileBytesMax = uint64_t{64} << 20;  // GPT-2's have 1 MB and 0.5 MB
constexpr int32_t kBytes = 256;
constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kTokenExcerpt = 60;

constexpr std::array<const char*, 2> kVocabularyNames = {"vocab.json", "encoder.json"};
constexpr std::array<const char*, 2> kMergesNames = {"merges.txt", "vocab.bpe"};
constexpr std::array<const char*, 1> kConfigName = {"tokenizer_config.json"};
constexpr std::array<const char*, 1> kWholeName = {"tokenizer.json"};
constexpr std::string_view kBothFiles =
    "GPT-2's tokenizer is two files, vocab.json and merges.txt, or encoder.json and vocab.bpe; or one, tokenizer.json";

std::string shown(std::string_view token) {
  return "\"" + one_line(std::string(token.substr(0, kTokenExcerpt))) + "\"";
}

// GPT-2's files write each byte as a printable character: the Latin-1 character of that number if it is printable, else
// the next character from U+0100 on.
std::array<char32_t, kBytes> make_byte_characters() {
  std::array<char32_t, kBytes> characters{};
  char32_t next = kBytes;
  for (uint32_t byte = 0; byte < kBytes; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = is_printable ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}

// The bytes that a token of the vocabulary represents; nothing if a character does not represent a byte.
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

using Vocabulary = std::unordered_map<std::string, int32_t>;  // a token as the file writes it → its id

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

constexpr const char* kAddedTokens = "added_tokens_decoder";

// The settings in tokenizer_config.json.
struct TokenizerConfig {
  WordRule words = WordRule::kGpt2;
  std::vector<std::pair<int32_t, std::string>> added;  // tokens beside the vocabulary
  std::string end_of_text;                             // empty: the file does not name it
};

Error bad_config(const std::string& name, const std::string& what) {
  return Error{ErrorCode::kInvalid, name + ": " + what + "; take the file that belongs to the other two"};
}

Result<TokenizerConfig> read_config(std::string_view text, const std::string& name) {
  TokenizerConfig config;
  if (text.empty()) return config;
  TRY_ASSIGN(const Json json, parse_json(text, name));
  if (!json.is_object()) return bad_config(name, "expected an object");
  const auto text_of = [](const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    const bool has_content = value.is_object() && value.contains("content") && value["content"].is_string();
    return has_content ? value["content"].get<std::string>() : std::string();
  };
  const auto class_name = json.find("tokenizer_class");
  if (class_name != json.end() && text_of(*class_name).starts_with("Qwen2")) config.words = WordRule::kQwen2;
  if (bool_field(json, {"add_prefix_space"})) {
    return bad_config(name, "add_prefix_space is true, and texts are encoded as they are; expected false");
  }
  const auto end = json.find("eos_token");
  if (end != json.end()) config.end_of_text = text_of(*end);
  const auto added = json.find(kAddedTokens);
  if (added == json.end()) return config;
  if (!added->is_object()) return bad_config(name, "added_tokens_decoder: expected an object");
  constexpr int32_t kTokensMax = 1 << 24;  // more than any vocabulary
  for (const auto& [number, token] : added->items()) {
    const auto id = parse_number<int32_t>(number);
    if (!id || *id < 0 || *id >= kTokensMax) {
      return bad_config(name, "added_tokens_decoder has " + shown(number) + " where the number of a token is expected");
    }
    config.added.emplace_back(*id, text_of(token));
  }
  return config;
}

// The rule by which tokenizer.json cuts texts into words; nullopt: another one.
std::optional<WordRule> rule_of_pre_tokenizer(const Json& json) {
  constexpr std::string_view kQwen2Pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const auto is_byte_level = [](const Json& step, bool cuts) {
    return text_field(step, {"type"}) == "ByteLevel" && !bool_field(step, {"add_prefix_space"}) &&
           (field(step, {"use_regex"}) == nullptr || bool_field(step, {"use_regex"})) == cuts;
  };
  const Json* const first = field(json, {"pre_tokenizer"});
  if (first == nullptr) return std::nullopt;
  if (is_byte_level(*first, true)) return WordRule::kGpt2;
  const Json* const steps = field(*first, {"pretokenizers"});
  const bool is_qwen2 = steps != nullptr && steps->is_array() && steps->size() == 2 &&
                        text_field((*steps)[0], {"pattern", "Regex"}) == kQwen2Pattern &&
                        text_field((*steps)[0], {"behavior"}) == "Isolated" && is_byte_level((*steps)[1], false);
  return is_qwen2 ? std::optional(WordRule::kQwen2) : std::nullopt;
}

// The contraction ("'s", "'ll", …) that begins at `at`; empty if there is none.
std::string_view contraction_at(std::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'') return {};
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    const std::string_view found = text.substr(at, ending.size());
    const bool is_it = std::equal(found.begin(), found.end(), ending.begin(), ending.end(), [&](char a, char b) {
      return a == b || (any_case && a >= 'A' && a <= 'Z' && a - 'A' + 'a' == b);
    });
    if (is_it) return ending;
  }
  return {};
}

// The end of the run of characters of class `kind` that begins at `at`.
size_t end_of_run(std::string_view text, size_t at, CharacterClass kind) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

size_t end_of_newlines(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] == '\r' || text[at] == '\n')) ++at;
  return at;
}

size_t end_of_qwen2_word(std::string_view text, size_t at) {
  using enum CharacterClass;
  const std::string_view contraction = contraction_at(text, at, /*any_case=*/true);
  if (!contraction.empty()) return at + contraction.size();
  const Character first = character_at(text, at);
  const size_t second = at + first.bytes;
  if (first.kind == kLetter) return end_of_run(text, at, kLetter);
  if (first.kind == kNumber) return second;
  const bool is_newline = text[at] == '\r' || text[at] == '\n';
  const CharacterClass next = second < text.size() ? character_at(text, second).kind : kWhiteSpace;
  if (!is_newline && next == kLetter) return end_of_run(text, second, kLetter);
  if (first.kind == kOther || (text[at] == ' ' && next == kOther)) {
    return end_of_newlines(text, end_of_run(text, first.kind == kOther ? at : second, kOther));
  }
  // White space up to its last line break; without a line break, its last character goes to the following word.
  const size_t end = end_of_run(text, at, kWhiteSpace);
  const size_t newline = text.substr(at, end - at).find_last_of("\r\n");
  if (newline != std::string_view::npos) return at + newline + 1;
  size_t last = at;
  for (size_t i = at; i < end; i += character_at(text, i).bytes) last = i;
  return end < text.size() && last > at ? last : end;
}

}  // namespace

size_t end_of_word(std::string_view text, size_t at, WordRule rule) {
  using enum CharacterClass;
  if (rule == WordRule::kQwen2) return end_of_qwen2_word(text, at);
  const std::string_view contraction = contraction_at(text, at, /*any_case=*/false);
  if (!contraction.empty()) return at + contraction.size();
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
  // The last character of white space goes to the following word.
  const bool leaves_one = first.kind == kWhiteSpace && end < text.size() && last > at;
  return leaves_one ? last : end;
}

Result<BytePairEncoding> BytePairEncoding::load(FileSystem& fs, const std::string& folder) {
  using NamedText = std::pair<std::string, std::string>;  // content, path
  // The first of the files that exists; empty: none does.
  const auto read_one = [&](const auto& names) -> Result<NamedText> {
    for (const char* name : names) {
      std::string path = join_path(folder, name);
      Result<OpenedText> opened = open_text(fs, path, kTokenizerFileBytesMax);
      if (!opened.ok() && opened.error().code == ErrorCode::kNotFound) continue;
      if (!opened.ok()) return opened.error();
      return NamedText{std::move(opened->text), std::move(path)};
    }
    return NamedText{};
  };
  TRY_ASSIGN(NamedText vocabulary, read_one(kVocabularyNames));
  TRY_ASSIGN(NamedText merges, read_one(kMergesNames));
  TRY_ASSIGN(NamedText config, read_one(kConfigName));
  const bool has_vocabulary = !vocabulary.second.empty();
  if (!has_vocabulary && merges.second.empty()) {
    TRY_ASSIGN(const NamedText whole, read_one(kWholeName));
    if (!whole.second.empty()) {
      TRY_ASSIGN(Texts texts, split_tokenizer_json(whole.first, whole.second, config.first));
      vocabulary = {std::move(texts.vocabulary), whole.second + ": model.vocab"};
      merges = {std::move(texts.merges), whole.second + ": model.merges"};
      config = {std::move(texts.config), config.second.empty() ? whole.second : config.second};
    }
  }
  if (vocabulary.second.empty() || merges.second.empty()) {
    const auto& names = has_vocabulary ? kMergesNames : kVocabularyNames;
    return Error{ErrorCode::kNotFound, folder + " holds neither " + names.front() + " nor " + names.back() +
                                           (has_vocabulary ? "" : " nor tokenizer.json") + "; " +
                                           std::string(kBothFiles)};
  }
  return parse({.vocabulary = vocabulary.first,
                .merges = merges.first,
                .vocabulary_name = vocabulary.second,
                .merges_name = merges.second,
                .config = config.first,
                .config_name = config.second});
}

Result<BytePairEncoding::Texts> BytePairEncoding::split_tokenizer_json(std::string_view text, const std::string& name,
                                                                       std::string_view config) {
  TRY_ASSIGN(const Json json, parse_json(text, name));
  const Json* const vocabulary = field(json, {"model", "vocab"});
  const Json* const merges = field(json, {"model", "merges"});
  if (vocabulary == nullptr || merges == nullptr || !merges->is_array() ||
      text_field(json, {"model", "type"}) != "BPE") {
    return Error{ErrorCode::kInvalid, name +
                                          ": expected a model of the type BPE with vocab and merges; is this another "
                                          "model's tokenizer?"};
  }
  const std::optional<WordRule> words = rule_of_pre_tokenizer(json);
  if (!words) {
    return Error{ErrorCode::kInvalid,
                 name +
                     ": pre_tokenizer is neither GPT-2's (ByteLevel, add_prefix_space false) nor Qwen2's; is this "
                     "another model's tokenizer?"};
  }
  Texts texts{.vocabulary = dump_line(*vocabulary), .merges = {}, .config = {}};
  for (const Json& pair : *merges) {
    if (pair.is_string()) {  // as tokenizers before 0.20 wrote it
      texts.merges += pair.get<std::string>() + "\n";
    } else if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      texts.merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
    } else {
      return Error{ErrorCode::kInvalid, name + ": model.merges holds " + shown(dump_line(pair)) +
                                            "; expected pairs of tokens, [\"a\", \"b\"] or \"a b\""};
    }
  }
  Json settings = Json::object();
  if (!config.empty()) {
    TRY_ASSIGN(settings, parse_json(config, "tokenizer_config.json"));
    if (!settings.is_object()) return bad_config("tokenizer_config.json", "expected an object");
  }
  settings["tokenizer_class"] = *words == WordRule::kQwen2 ? "Qwen2Tokenizer" : "GPT2Tokenizer";
  const Json* const added = field(json, {"added_tokens"});
  if (added != nullptr && added->is_array() && !settings.contains(kAddedTokens)) {
    for (const Json& token : *added) {
      const Json* const id = field(token, {"id"});
      if (id != nullptr) settings[kAddedTokens][dump_line(*id)] = token;
    }
  }
  texts.config = dump_line(settings);
  return texts;
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
  TRY_ASSIGN(const TokenizerConfig config, read_config(files.config, files.config_name));
  made.words_ = config.words;
  const std::string end_of_text = config.end_of_text.empty() ? std::string(kEndOfText) : config.end_of_text;
  made.end_of_text_ = -1;
  for (const auto& [id, written] : config.added) {
    if (written == end_of_text) made.end_of_text_ = id;
  }
  if (const auto end = vocabulary.find(end_of_text); made.end_of_text_ < 0 && end != vocabulary.end()) {
    made.end_of_text_ = end->second;
  }
  if (made.end_of_text_ < 0) {
    return Error{ErrorCode::kInvalid, files.vocabulary_name + " has no token " + shown(end_of_text) +
                                          ", which ends texts; is this another model's tokenizer?"};
  }
  made.digest_ = sha256_hex(sha256_hex(files.vocabulary) + sha256_hex(files.merges) + sha256_hex(files.config));

  std::string_view rest = files.merges;
  for (int32_t line = 1; !rest.empty(); ++line) {
    const std::string_view text = next_line(rest);
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
      return refuse("the pair " + shown(text) + " occurs twice");
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
  made.digest_ = sha256_hex("bytes");
  return made;
}

std::vector<int32_t> BytePairEncoding::encode(std::string_view text, size_t tokens_max) const {
  std::vector<int32_t> tokens;
  for (size_t at = 0; at < text.size() && tokens.size() < tokens_max;) {
    const size_t end = end_of_word(text, at, words_);
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

// Joins the pair of the smallest rank (the leftmost of several such pairs) until no pair can be joined.
void BytePairEncoding::encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
  struct Part {
    int32_t token;  // -1: joined to the part before it
    size_t before;  // index of the part before it, and of the part after it
    size_t after;
  };
  std::vector<Part> parts;
  parts.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    parts.push_back({.token = token_of_byte_[static_cast<uint8_t>(word[i])], .before = i - 1, .after = i + 1});
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
  const auto add_pair_at = [&](size_t left) {
    const size_t right = parts[left].after;
    if (right >= parts.size()) return;
    const Merge* const merge = merge_of(parts[left].token, parts[right].token);
    if (merge == nullptr) return;
    pairs.push({.rank = merge->rank,
                .left = left,
                .left_token = parts[left].token,
                .right_token = parts[right].token,
                .joined = merge->token});
  };
  for (size_t i = 0; i < parts.size(); ++i) add_pair_at(i);
  while (!pairs.empty()) {
    const Pair pair = pairs.top();
    pairs.pop();
    // Skip the pair if one of its parts has been joined to another one since the pair was found.
    Part& left = parts[pair.left];
    if (left.token != pair.left_token || left.after >= parts.size()) continue;
    Part& right = parts[left.after];
    if (right.token != pair.right_token) continue;
    left.token = pair.joined;
    left.after = right.after;
    right.token = -1;
    if (left.after < parts.size()) parts[left.after].before = pair.left;
    add_pair_at(pair.left);
    if (pair.left > 0) add_pair_at(left.before);
  }
  for (size_t i = 0; i < parts.size(); i = parts[i].after) tokens.push_back(parts[i].token);
}

}  // namespace lockstep
