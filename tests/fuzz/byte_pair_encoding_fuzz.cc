// Any bytes as a text give tokens that give the text back, and any bytes as the two files of a tokenizer are refused or
// make one that does so. The first byte says which they are; files are parted by the first zero.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/json.h"
#include "runner/data/text/byte_pair_encoding.h"

namespace {

using lockstep::BytePairEncoding;
using lockstep::Json;
using lockstep::Result;

void check_text(const BytePairEncoding& tokenizer, std::string_view text) {
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  for (const int32_t token : tokens) {
    LOCKSTEP_CHECK(token >= 0 && token < tokenizer.size(), "a token of the vocabulary");
  }
  LOCKSTEP_CHECK(tokenizer.decode(tokens) == text, "tokens give the text back");
}

void check_files(std::string_view vocabulary, std::string_view merges) {
  const Result<BytePairEncoding> tokenizer = BytePairEncoding::parse({.vocabulary = vocabulary, .merges = merges});
  if (!tokenizer.ok()) {
    LOCKSTEP_CHECK(!tokenizer.error().message.empty(), "a refusal says why");
    return;
  }
  check_text(*tokenizer, merges);
}

// The bytes as GPT-2 writes those that are letters of ASCII, and some pairs of them; the rest by the bytes themselves.
std::string whole_vocabulary() {
  Json vocabulary = Json::object();
  int next_code = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = is_itself ? byte : next_code++;
    std::string written(1, static_cast<char>(code));
    if (code >= 0x80) written = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    vocabulary[written] = byte;
  }
  for (const char* token : {"ab", "abab", "th", "the", "aa", "<|endoftext|>"}) {
    vocabulary[token] = static_cast<int>(vocabulary.size());
  }
  return lockstep::dump_line(vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const std::string vocabulary = whole_vocabulary();
  static const BytePairEncoding tokenizer =
      BytePairEncoding::parse({.vocabulary = vocabulary, .merges = "a b\nt h\nth e\nab ab\na a\n"}).value();
  const size_t zero = rest.find('\0');
  switch (data[0] % 4) {
    case 0:
      check_text(tokenizer, rest);
      break;
    case 1:
      check_files(vocabulary, rest);
      break;
    case 2:
      if (const auto parts = BytePairEncoding::split_tokenizer_json(rest, "tokenizer.json", ""); parts.ok()) {
        check_files(parts->vocabulary, parts->merges);
      }
      break;
    default:
      check_files(rest.substr(0, zero), zero == std::string_view::npos ? std::string_view() : rest.substr(zero + 1));
  }
  return 0;
}
