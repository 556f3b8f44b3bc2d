#include "runner/data/text/byte_pair_encoding.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/data/text/unicode_classes.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

// A byte as GPT-2's files write it.
std::string written(uint8_t byte) {
  const auto is_itself = [](uint32_t b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
  uint32_t code = byte;
  if (!is_itself(byte)) {
    code = 256;
    for (uint32_t b = 0; b < byte; ++b) code += is_itself(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
}

std::string written(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += written(static_cast<uint8_t>(byte));
  return text;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;  // of bytes

// Tokens 0 … 255 are the bytes, then what the pairs make, in their order; the last ends texts.
std::map<std::string, int> vocabulary_of(const Pairs& pairs) {
  std::map<std::string, int> vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[written(static_cast<uint8_t>(byte))] = byte;
  for (const auto& [left, right] : pairs)
    vocabulary.emplace(written(left + right), static_cast<int>(vocabulary.size()));
  vocabulary.emplace("<|endoftext|>", static_cast<int>(vocabulary.size()));
  return vocabulary;
}

std::string vocabulary_text(const std::map<std::string, int>& vocabulary) { return dump_line(Json(vocabulary)); }

std::string merges_text(const Pairs& pairs) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : pairs) text += written(left) + " " + written(right) + "\n";
  return text;
}

Result<BytePairEncoding> parsed(const std::string& vocabulary, const std::string& merges) {
  return BytePairEncoding::parse({.vocabulary = vocabulary, .merges = merges});
}

BytePairEncoding made(const Pairs& pairs) {
  return parsed(vocabulary_text(vocabulary_of(pairs)), merges_text(pairs)).value();
}

std::vector<std::string> words(const std::string& text, WordRule rule = WordRule::kGpt2) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_word(text, at, rule);
    found.push_back(text.substr(at, end - at));
    at = end;
  }
  return found;
}

using Words = std::vector<std::string>;

TEST(Words, of_qwen2_have_single_digits_any_sign_before_letters_and_line_ends_of_their_own) {
  const auto qwen2 = [](const std::string& text) { return words(text, WordRule::kQwen2); };
  EXPECT_EQ(qwen2("Toy Story 20!"), (Words{"Toy", " Story", " ", "2", "0", "!"}));
  EXPECT_EQ(qwen2("It'S (so)"), (Words{"It", "'S", " (", "so", ")"}));
  EXPECT_EQ(qwen2("(so \tso"), (Words{"(so", " ", "\tso"}));
  EXPECT_EQ(qwen2("a.\n\n b"), (Words{"a", ".\n\n", " b"}));
  EXPECT_EQ(qwen2("a  \n  \n  b"), (Words{"a", "  \n  \n", " ", " b"}));
  EXPECT_EQ(qwen2("a  "), (Words{"a", "  "}));
}

TEST(BytePairEncoding, takes_the_token_that_ends_texts_from_the_configuration) {
  const Pairs pairs = {{"a", "b"}};
  const std::string vocabulary = vocabulary_text(vocabulary_of(pairs));
  const std::string merges = merges_text(pairs);
  const auto with = [&](const std::string& config) {
    return BytePairEncoding::parse({.vocabulary = vocabulary, .merges = merges, .config = config});
  };
  EXPECT_EQ(with("").value().end_of_text(), 257);
  EXPECT_EQ(with(R"({"eos_token": {"content": "ab"}})").value().end_of_text(), 256);
  EXPECT_EQ(with(R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {"300": {"content": "<|im_end|>"}}})")
                .value()
                .end_of_text(),
            300);
  EXPECT_NE(with("").value().digest(), with(R"({"eos_token": "ab"})").value().digest());
  for (const char* bad : {R"({"eos_token": "gone"})", "[]", "{", R"({"added_tokens_decoder": {"-1": {}}})",
                          R"({"added_tokens_decoder": {"99999999999": {}}})", R"({"add_prefix_space": true})"}) {
    EXPECT_FALSE(with(bad).ok()) << bad;
  }
}

TEST(Words, are_letters_numbers_or_signs_each_with_one_space_before_it) {
  EXPECT_EQ(words("Toy Story 2 (1999)!"), (Words{"Toy", " Story", " 2", " (", "1999", ")!"}));
  EXPECT_EQ(words("abc123"), (Words{"abc", "123"}));
}

TEST(Words, endings_after_an_apostrophe_stand_alone) {
  EXPECT_EQ(words("it's they'll I'VE 'tis !'s"),
            (Words{"it", "'s", " they", "'ll", " I", "'", "VE", " '", "tis", " !'", "s"}));
}

TEST(Words, white_space_leaves_its_last_character_to_the_next_word) {
  EXPECT_EQ(words("a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(words("a \n b"), (Words{"a", " \n", " b"}));
  EXPECT_EQ(words("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(words("a  "), (Words{"a", "  "}));
  EXPECT_EQ(words(" "), (Words{" "}));
}

TEST(Words, letters_numbers_and_white_space_are_those_of_unicode) {
  EXPECT_EQ(words("Léon 千と ½Ⅷ"), (Words{"Léon", " 千と", " ½Ⅷ"}));
  EXPECT_EQ(words("a\u00a0b\u3000"), (Words{"a", "\u00a0", "b", "\u3000"}));
  EXPECT_EQ(words("e\u0301!"), (Words{"e", "\u0301!"})) << "a mark is no letter";
  EXPECT_EQ(words("👩‍👧"), (Words{"👩‍👧"}));
}

TEST(Words, bytes_that_are_no_utf8_are_signs) {
  EXPECT_EQ(words("L\xe9on"), (Words{"L", "\xe9", "on"})) << "Latin-1";
  EXPECT_EQ(words("\xc0\xaf\xed\xa0\x80\xf5\xff"), (Words{"\xc0\xaf\xed\xa0\x80\xf5\xff"}));
  EXPECT_EQ(words("a\xe2\x82"), (Words{"a", "\xe2\x82"})) << "cut off";
}

TEST(BytePairEncoding, joins_the_pair_of_the_smallest_rank_first_and_the_leftmost_of_several) {
  const BytePairEncoding tokenizer = made({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"a", "a"}});
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<int32_t>{258}));
  EXPECT_EQ(tokenizer.encode("abab"), (std::vector<int32_t>{257, 257}));
  EXPECT_EQ(tokenizer.encode("aaa"), (std::vector<int32_t>{259, 'a'}));
  EXPECT_EQ(tokenizer.encode("a bc"), (std::vector<int32_t>{'a', ' ', 256})) << "no pair spans two words";
}

TEST(BytePairEncoding, tokens_give_any_bytes_back) {
  const BytePairEncoding tokenizer = made({{" ", "t"}, {" t", "h"}, {"\xc3", "\xa9"}});
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  for (const std::string& text : {std::string(" the é th"), all, std::string()}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_EQ(BytePairEncoding::of_bytes().decode(BytePairEncoding::of_bytes().encode(text)), text);
  }
}

TEST(BytePairEncoding, the_end_of_texts_written_in_a_text_is_text) {
  const BytePairEncoding tokenizer = made({{"a", "b"}});
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.size() - 1);
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 13U);
}

TEST(BytePairEncoding, without_files_the_tokens_are_the_bytes) {
  const BytePairEncoding tokenizer = BytePairEncoding::of_bytes();
  EXPECT_EQ(tokenizer.encode("é a"), (std::vector<int32_t>{0xC3, 0xA9, ' ', 'a'}));
  EXPECT_EQ(tokenizer.size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  EXPECT_TRUE(tokenizer.is_of_bytes());
}

TEST(BytePairEncoding, takes_the_first_tokens_of_a_long_text) {
  const BytePairEncoding tokenizer = made({{"a", "b"}});
  EXPECT_EQ(tokenizer.encode("ab ab ab", 3), (std::vector<int32_t>{256, ' ', 256}));
}

TEST(BytePairEncoding, a_word_of_a_million_letters_is_no_square_of_work) {
  Pairs pairs;
  for (std::string half = "a"; half.size() < 1024; half += half) pairs.emplace_back(half, half);
  const BytePairEncoding tokenizer = made(pairs);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')), std::vector<int32_t>(1024, 256 + 9));
}

TEST(BytePairEncoding, reads_both_pairs_of_names_and_lines_that_end_as_on_windows) {
  const Pairs pairs = {{"a", "b"}};
  for (const auto& [vocabulary, merges] : {std::pair{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}) {
    const TemporaryFolder folder;
    folder.write(vocabulary, vocabulary_text(vocabulary_of(pairs)));
    folder.write(merges, "#version: 0.2\r\na b\r\n");
    const Result<BytePairEncoding> loaded = BytePairEncoding::load(disk(), folder.path());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->encode("ab"), (std::vector<int32_t>{256}));
  }
}

TEST(BytePairEncoding, reads_files_with_a_byte_order_mark_and_names_a_pointer_in_their_place) {
  const Pairs pairs = {{"a", "b"}};
  const std::string mark = "\xEF\xBB\xBF";
  const TemporaryFolder folder;
  folder.write("vocab.json", mark + vocabulary_text(vocabulary_of(pairs)));
  folder.write("merges.txt", mark + "#version: 0.2\na b\n");
  const Result<BytePairEncoding> loaded = BytePairEncoding::load(disk(), folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->encode("ab"), (std::vector<int32_t>{256}));
  folder.write("merges.txt", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_NE(BytePairEncoding::load(disk(), folder.path()).error().message.find("is a Git LFS pointer"),
            std::string::npos);
}

constexpr const char* kGpt2Words = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
constexpr const char* kQwen2Words =
    R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
    R"([^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
    R"( "behavior": "Isolated"}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

std::string single_file(const Pairs& pairs, const std::string& merges, const std::string& words) {
  return R"({"model": {"type": "BPE", "vocab": )" + vocabulary_text(vocabulary_of(pairs)) + R"(, "merges": )" + merges +
         R"(}, "added_tokens": [{"id": 300, "content": "<|im_end|>"}], "pre_tokenizer": )" + words + "}";
}

TEST(BytePairEncoding, reads_one_file_that_holds_both_with_pairs_as_lists_or_texts) {
  const Pairs pairs = {{"a", "b"}};
  for (const char* merges : {R"([["a", "b"]])", R"(["a b"])"}) {
    const TemporaryFolder folder;
    folder.write("tokenizer.json", single_file(pairs, merges, kGpt2Words));
    const Result<BytePairEncoding> loaded = BytePairEncoding::load(disk(), folder.path());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->encode("abba 12"), made(pairs).encode("abba 12"));
    EXPECT_EQ(loaded->end_of_text(), made(pairs).end_of_text());
  }
}

TEST(BytePairEncoding, takes_the_words_and_the_token_that_ends_texts_from_one_file) {
  const Pairs pairs = {{"1", "2"}};
  const TemporaryFolder folder;
  folder.write("tokenizer.json", single_file(pairs, R"([["1", "2"]])", kQwen2Words));
  folder.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  const Result<BytePairEncoding> loaded = BytePairEncoding::load(disk(), folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->end_of_text(), 300);
  EXPECT_EQ(loaded->encode("12"), (std::vector<int32_t>{'1', '2'})) << "each digit is a word";
  EXPECT_EQ(made(pairs).encode("12"), (std::vector<int32_t>{256}));
}

TEST(BytePairEncoding, the_single_file_of_another_kind_of_tokenizer_is_refused) {
  const auto refusal = [](const std::string& text) {
    const TemporaryFolder folder;
    folder.write("tokenizer.json", text);
    const Result<BytePairEncoding> loaded = BytePairEncoding::load(disk(), folder.path());
    return loaded.ok() ? "" : loaded.error().message;
  };
  for (const char* text : {R"({"model": {"type": "WordPiece", "vocab": {}, "merges": []}})", R"({"model": {}})", "[]",
                           R"({"model": {"type": "BPE", "vocab": {}}})"}) {
    EXPECT_NE(refusal(text).find("tokenizer.json: expected a model of the type BPE"), std::string::npos) << text;
  }
  const Pairs pairs = {{"a", "b"}};
  EXPECT_NE(refusal(single_file(pairs, R"([["a"]])", kGpt2Words)).find("model.merges holds"), std::string::npos);
  EXPECT_NE(refusal(single_file(pairs, "[]", kGpt2Words)).find("tokenizer.json: model.merges"), std::string::npos);
  for (const char* words : {"null", R"({"type": "ByteLevel", "add_prefix_space": true})", R"({"type": "Whitespace"})",
                            R"({"type": "Sequence", "pretokenizers": []})"}) {
    EXPECT_NE(refusal(single_file(pairs, R"([["a", "b"]])", words)).find("pre_tokenizer is neither GPT-2's"),
              std::string::npos)
        << words;
  }
}

TEST(BytePairEncoding, says_which_file_is_missing) {
  const TemporaryFolder folder;
  const Result<BytePairEncoding> none = BytePairEncoding::load(disk(), folder.path());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find("neither vocab.json nor encoder.json nor tokenizer.json"), std::string::npos);
  folder.write("encoder.json", vocabulary_text(vocabulary_of({})));
  const Result<BytePairEncoding> half = BytePairEncoding::load(disk(), folder.path());
  ASSERT_FALSE(half.ok());
  EXPECT_NE(half.error().message.find("neither merges.txt nor vocab.bpe"), std::string::npos);
}

struct Refused {
  const char* name;
  std::string vocabulary;
  std::string merges;
  std::string message;  // a part of it
};

std::vector<Refused> refused() {
  const Pairs pairs = {{"a", "b"}};
  const auto good = vocabulary_of(pairs);
  const auto changed = [&](const std::string& token, int id) {
    auto vocabulary = good;
    vocabulary[token] = id;
    return vocabulary_text(vocabulary);
  };
  const auto without = [&](const std::string& token) {
    auto vocabulary = good;
    const int id = vocabulary.at(token);
    vocabulary.erase(token);
    for (auto& [name, value] : vocabulary) value -= value > id ? 1 : 0;
    return vocabulary_text(vocabulary);
  };
  const std::string merges = merges_text(pairs);
  return {{"broken_json", "{\n\"a\": 0,\n!", merges,
           "vocab.json is not valid JSON: [json.exception.parse_error.101] parse error at line 3"},
          {"no_object", "[1]", merges, "vocab.json: expected an object"},
          {"a_gap", changed("ab", 999), merges, "token \"ab\" has the number \"999\"; expected 0 to 257"},
          {"no_number", R"({"a": "0"})", merges, "token \"a\" has the number"},
          {"two_of_one_number", changed("ab", 5), merges, "have one number, 5"},
          {"no_bytes", changed("\u4e00", 258), merges, "is not written as GPT-2 writes bytes"},
          {"a_byte_without_token", without("!"), merges, "byte 33 has no token"},
          {"no_end_of_text", without("<|endoftext|>"), merges, "has no token \"<|endoftext|>\""},
          {"half_a_pair", vocabulary_text(good), "#version: 0.2\na\n", "merges.txt:2: expected two tokens"},
          {"three_tokens", vocabulary_text(good), "a b c\n", "merges.txt:1: expected two tokens"},
          {"another_vocabulary", vocabulary_text(good), "a b\na c\n", "merges.txt:2: \"ac\" is no token of vocab.json"},
          {"a_pair_twice", vocabulary_text(good), "a b\n\na b\n", "merges.txt:3: the pair \"a b\" occurs twice"},
          {"no_pairs", vocabulary_text(good), "#version: 0.2\n", "merges.txt holds no pair"}};
}

class RefusedTokenizer : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTokenizer, names_the_file_and_the_place) {
  const Result<BytePairEncoding> read = parsed(GetParam().vocabulary, GetParam().merges);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find(GetParam().message), std::string::npos) << read.error().message;
}

INSTANTIATE_TEST_SUITE_P(BytePairEncoding, RefusedTokenizer, testing::ValuesIn(refused()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep
