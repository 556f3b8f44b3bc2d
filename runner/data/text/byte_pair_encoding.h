// BytePairEncoding: GPT-2's tokenizer (Radford et al., 2019; Sennrich et al., "Neural Machine Translation of Rare Words
// with Subword Units", 2016), and that of Qwen2, which cuts texts into other words.
//
// Role: a text → tokens. The text is cut into words, and each word's bytes are joined pair by pair, in the order of the
// list of merges, to the tokens of the vocabulary. Texts are bytes: any, also what is no UTF-8; nothing is unknown.
// Special tokens ("<|endoftext|>") in a text are taken as ordinary characters.
// Threads: const calls from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// How texts are cut into words.
enum class WordRule {
  kGpt2,   // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kQwen2,  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|
           // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
};

class BytePairEncoding {
 public:
  // The two files of a folder: vocab.json and merges.txt, or encoder.json and vocab.bpe, as they were called first; and
  // tokenizer_config.json, where there is one: which token ends texts, perhaps one beside the vocabulary, and whether
  // the words are Qwen2's (tokenizer_class).
  // Errors: kNotFound, kInvalid, kCorrupt name the file and the line or token, and say what to do.
  static Result<BytePairEncoding> load(const std::string& folder);
  // The contents of the two files; the names are for errors.
  struct Files {
    std::string_view vocabulary;  // {"token": id}, ids from 0 without a gap; characters as GPT-2 writes bytes
    std::string_view merges;      // one pair a line, the first joined first
    std::string vocabulary_name = "vocab.json";
    std::string merges_name = "merges.txt";
    std::string_view config = {};  // empty: there is none
    std::string config_name = "tokenizer_config.json";
  };
  static Result<BytePairEncoding> parse(const Files& files);
  // Tokens 0 … 255 are the bytes, 256 ends texts.
  static BytePairEncoding of_bytes();

  // Its first tokens_max tokens. Time grows with bytes · log(bytes).
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text,
                                            size_t tokens_max = std::numeric_limits<size_t>::max()) const;
  // The bytes of tokens; each at least 0 and below size().
  [[nodiscard]] std::string decode(const std::vector<int32_t>& tokens) const;

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(bytes_of_token_.size()); }
  // Where tokenizer_config.json says so, not below size().
  [[nodiscard]] int32_t end_of_text() const { return end_of_text_; }
  [[nodiscard]] bool is_of_bytes() const { return merges_.empty(); }
  // SHA-256 of the files; equal for equal ones, wherever they lie.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  struct Merge {
    int32_t rank = 0;  // smaller is earlier
    int32_t token = 0;
  };
  BytePairEncoding() = default;
  [[nodiscard]] const Merge* merge_of(int32_t left, int32_t right) const;
  void encode_word(std::string_view word, std::vector<int32_t>& tokens) const;

  std::vector<std::string> bytes_of_token_;
  std::vector<int32_t> token_of_byte_;          // [256]
  std::unordered_map<uint64_t, Merge> merges_;  // by left << 32 | right
  int32_t end_of_text_ = 0;
  WordRule words_ = WordRule::kGpt2;
  std::string digest_;
};

// The next word of the text that begins at `at` (below its size): the end of the match of the rule's pattern. A byte
// that is no UTF-8 is a character of its own, neither letter, number nor white space.
size_t end_of_word(std::string_view text, size_t at, WordRule rule = WordRule::kGpt2);

}  // namespace lockstep
