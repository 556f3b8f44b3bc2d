#include "runner/loop/start_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(StartTable, leaves_rows_that_fit) {
  EXPECT_THAT(wrapped_rows({{"a", "one two"}, {"label", ""}}, 16),
              ElementsAre(Pair("a", "one two"), Pair("label", "")));
}

TEST(StartTable, goes_on_in_rows_without_a_label) {
  // "  label  " leaves seven columns of sixteen.
  EXPECT_THAT(wrapped_rows({{"label", "one two three"}, {"b", "four"}}, 16),
              ElementsAre(Pair("label", "one two"), Pair("", "three"), Pair("b", "four")));
}

TEST(StartTable, leaves_a_word_whole_that_is_wider_than_the_terminal) {
  EXPECT_THAT(wrapped_rows({{"label", "--a=very/long/word next"}}, 16),
              ElementsAre(Pair("label", "--a=very/long/word"), Pair("", "next")));
  EXPECT_THAT(wrapped_rows({{"label", "--a=very/long/word"}}, 16), ElementsAre(Pair("label", "--a=very/long/word")));
}

TEST(StartTable, leaves_the_state_and_what_holds_a_path_in_one_line) {
  EXPECT_THAT(wrapped_rows({{"state", "weights from a.pth"}, {"label", "found in /data"}}, 16),
              ElementsAre(Pair("state", "weights from a.pth"), Pair("label", "found in /data")));
}

TEST(StartTable, has_room_for_values_beside_long_labels) {
  EXPECT_THAT(wrapped_rows({{"a label that is longer than all columns", "one two three"}}, 16),
              ElementsAre(Pair("a label that is longer than all columns", "one two"), Pair("", "three")));
}

}  // namespace
}  // namespace lockstep
