// BytePairEncoding: GPT-2's tokenizer (Radford et al., 2019; Sennrich et al., "Neural Machine Translation of Rare Words
// with Subword Units", 2016), and that of Qwen2, which cuts texts into other words.
//
// Role: text → tokens. The text is cut into words, and each word's bytes are joined pair by pair, in the order of the
// list of merges, into tokens of the vocabulary. A text may be any bytes, also invalid UTF-8; there are no unknown
// tokens. Special tokens ("<|endoftext|>") in a text are treated as ordinary characters.
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

#include "runner/base/file_system.h"
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
  // Reads two files of a folder, vocab.json and merges.txt, or encoder.json and vocab.bpe (their original names), or
  // tokenizer.json, which holds both; and tokenizer_config.json, if it exists. That names the token that ends texts,
  // which may be one outside the vocabulary, and the tokenizer class, which selects the word rule. Errors: kNotFound,
  // kInvalid, kCorrupt name the file and the line or token, and say what to do.
  static Result<BytePairEncoding> load(FileSystem& fs, const std::string& folder);
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
  // What tokenizer.json holds (Python's tokenizers and, from version 5 on, transformers write it alone) as the contents
  // of vocab.json, merges.txt and tokenizer_config.json; `config`: those of a tokenizer_config.json beside it, or
  // empty.
  struct Texts {
    std::string vocabulary;
    std::string merges;
    std::string config;
  };
  static Result<Texts> split_tokenizer_json(std::string_view text, const std::string& name, std::string_view config);
  // Tokens 0 … 255 are the bytes, 256 ends texts.
  static BytePairEncoding of_bytes();

  // The first tokens_max tokens of the text. Time grows with bytes · log(bytes).
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text,
                                            size_t tokens_max = std::numeric_limits<size_t>::max()) const;
  // The bytes of tokens; each at least 0 and below size().
  [[nodiscard]] std::string decode(const std::vector<int32_t>& tokens) const;

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(bytes_of_token_.size()); }
  // The token that ends texts. If tokenizer_config.json names one outside the vocabulary, it is not below size().
  [[nodiscard]] int32_t end_of_text() const { return end_of_text_; }
  [[nodiscard]] bool is_of_bytes() const { return merges_.empty(); }
  // SHA-256 over the files' contents, independent of their paths.
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

// The end of the word that begins at `at` < text.size(): the end of the match of the rule's pattern. A byte that is not
// valid UTF-8 counts as a character that is neither letter, number nor white space.
size_t end_of_word(std::string_view text, size_t at, WordRule rule = WordRule::kGpt2);

}  // namespace lockstep
