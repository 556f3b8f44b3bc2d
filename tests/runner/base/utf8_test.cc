#include "runner/base/utf8.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Utf8, knows_what_is_valid) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("Zürich, 東京, 😀"));
  EXPECT_FALSE(is_utf8("Z\xFCrich")) << "Latin-1";
  EXPECT_FALSE(is_utf8("\xC3")) << "cut off";
  EXPECT_FALSE(is_utf8("\xA9")) << "a continuation without a beginning";
  EXPECT_FALSE(is_utf8("\xC0\xAF")) << "overlong, of two bytes";
  EXPECT_FALSE(is_utf8("\xE0\x80\xAF")) << "overlong, of three bytes";
  EXPECT_FALSE(is_utf8("\xED\xA0\x80")) << "a surrogate";
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80")) << "above U+10FFFF";
}

TEST(Utf8, replaces_only_what_is_not_valid) {
  EXPECT_EQ(valid_utf8("Zürich\n\"x\""), "Zürich\n\"x\"");
  EXPECT_EQ(valid_utf8("Z\xFCrich"), "Z\uFFFDrich");
}

TEST(Utf8, counts_characters_and_cuts_between_them) {
  EXPECT_EQ(num_characters("Zürich 東京"), 9U);
  EXPECT_EQ(cut_utf8("Zürich", 6), "Züric");
  EXPECT_EQ(cut_utf8("Zürich", 2), "Z");
  EXPECT_EQ(cut_utf8("Zürich", 7), "Zürich");
  EXPECT_EQ(cut_utf8("東京", 2), "");
  EXPECT_EQ(shortened("Zürich", 7), "Zürich");
  EXPECT_EQ(shortened("Zürich", 2), "Z…");
}

}  // namespace
}  // namespace lockstep
