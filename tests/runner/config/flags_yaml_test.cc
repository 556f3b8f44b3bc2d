#include "runner/config/flags_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refused(const std::string& text) {
  const auto flags = parse_flags_yaml(text, "f.yaml");
  EXPECT_FALSE(flags.ok()) << text;
  if (flags.ok()) return "";
  EXPECT_EQ(flags.error().code, ErrorCode::kInvalid);
  return flags.error().message;
}

TEST(FlagsYaml, reads_a_flat_map_with_lines) {
  const auto flags =
      parse_flags_yaml("# comment\nlr: 0.002\nbatch-size: 256\ndataset: \"ml-1m\"\nuse_amp: true\n", "f");
  ASSERT_TRUE(flags.ok()) << flags.error().message;
  ASSERT_EQ(flags->size(), 4U);
  EXPECT_EQ((*flags)[0].name, "lr");
  EXPECT_EQ((*flags)[0].value, "0.002");
  EXPECT_EQ((*flags)[0].line, 2);
  EXPECT_EQ((*flags)[1].name, "batch_size");
  EXPECT_EQ((*flags)[2].value, "ml-1m");
  EXPECT_EQ((*flags)[3].line, 5);
}

TEST(FlagsYaml, reads_an_empty_file_as_no_flags) {
  for (const char* text : {"", "# nothing\n", "\n\n"}) {
    const auto flags = parse_flags_yaml(text, "f");
    ASSERT_TRUE(flags.ok()) << flags.error().message;
    EXPECT_TRUE(flags->empty());
  }
}

TEST(FlagsYaml, refuses_duplicate_keys_naming_both_lines) {
  EXPECT_THAT(refused("lr: 1\nseed: 2\nlr: 3\n"),
              AllOf(StartsWith("f.yaml:3:"), HasSubstr("lr"), HasSubstr("f.yaml:1")));
  EXPECT_THAT(refused("batch_size: 1\nbatch-size: 2\n"), StartsWith("f.yaml:2:"));
}

TEST(FlagsYaml, refuses_nesting) {
  EXPECT_THAT(refused("lr: 1\nmodel:\n  maxlen: 5\n"), AllOf(HasSubstr("model"), HasSubstr("a map")));
  EXPECT_THAT(refused("lr: [1, 2]\n"), AllOf(StartsWith("f.yaml:1:"), HasSubstr("a list")));
  EXPECT_THAT(refused("- lr\n- seed\n"), StartsWith("f.yaml:1:"));
  EXPECT_THAT(refused("just text\n"), StartsWith("f.yaml:1:"));
  EXPECT_THAT(refused("? [a, b]\n: 1\n"), HasSubstr("a list"));
}

TEST(FlagsYaml, refuses_empty_values_and_keys) {
  EXPECT_THAT(refused("lr:\n"), AllOf(StartsWith("f.yaml:1:"), HasSubstr("lr")));
  EXPECT_THAT(refused("lr: ~\n: 3\n"), HasSubstr("f.yaml:"));
}

TEST(FlagsYaml, refuses_anchors_aliases_and_second_documents) {
  EXPECT_THAT(refused("lr: &a 1\nseed: *a\n"), StartsWith("f.yaml:1:"));
  EXPECT_THAT(refused("lr: 1\n---\nseed: 2\n"), HasSubstr("second document"));
}

TEST(FlagsYaml, refuses_broken_text_with_its_line) {
  EXPECT_THAT(refused("lr: 1\nseed: a: b\n"), AllOf(StartsWith("f.yaml:2:"), HasSubstr("not YAML")));
  EXPECT_THAT(refused("lr: 1\n\tseed: 2\n"), StartsWith("f.yaml:"));
}

// "a: &a [x,x] b: &b [*a,*a] …" grows exponentially in a parser that builds a tree.
TEST(FlagsYaml, is_not_harmed_by_an_alias_bomb) {
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 60; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before + ", " + before + "]\n";
  }
  EXPECT_THAT(refused(bomb), StartsWith("f.yaml:1:"));
}

TEST(FlagsYaml, is_not_harmed_by_depth_or_size) {
  EXPECT_THAT(refused(std::string(100'000, '[')), StartsWith("f.yaml:"));
  EXPECT_THAT(refused("lr: " + std::string(100'000, '{')), StartsWith("f.yaml:"));
  EXPECT_THAT(refused(std::string(1'000'000, 'x')), HasSubstr("1000000 bytes"));
}

}  // namespace
}  // namespace lockstep
