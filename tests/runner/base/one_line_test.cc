#include "runner/base/one_line.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(OneLine, leaves_plain_text_as_it_is) {
  EXPECT_EQ(one_line(""), "");
  EXPECT_EQ(one_line("job \"gpt\": 7 µs, Zürich, 東京"), "job \"gpt\": 7 µs, Zürich, 東京");
}

TEST(OneLine, a_text_cannot_begin_a_line_of_its_own) {
  EXPECT_EQ(one_line("x\nlockstep: the job is complete\r\n\ty"), "x lockstep: the job is complete   y");
}

TEST(OneLine, a_text_cannot_command_the_terminal) {
  EXPECT_EQ(one_line("\x1b[2J\a\x7f"), "?[2J??");
  EXPECT_EQ(one_line(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(one_line("\xC2\x9B"
                     "2J"),
            "?2J");                             // CSI in one character
  EXPECT_EQ(one_line("\xC2\xA0"), "\xC2\xA0");  // the first that is no control character
  EXPECT_EQ(one_line("\xC2"), "\xC2");          // cut off
}

}  // namespace
}  // namespace lockstep
