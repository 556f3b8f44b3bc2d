#include "runner/agent/rank_output.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(RankOutput, streams_are_chosen_for_all_ranks_or_by_local_rank) {
  const StreamChoice all = *parse_streams("2");
  EXPECT_FALSE(all.has(0, false));
  EXPECT_TRUE(all.has(7, true));
  const StreamChoice some = *parse_streams("0:3,11:1");
  EXPECT_TRUE(some.has(0, true));
  EXPECT_TRUE(some.has(11, false));
  EXPECT_FALSE(some.has(11, true));
  EXPECT_FALSE(some.has(1, false));
  EXPECT_TRUE(parse_streams("0")->is_none());
}

TEST(RankOutput, streams_that_are_none_are_named) {
  for (const char* text : {"", "4", "12", "x", "0:", "0:4", ":1", "-1:3", "0:3,", "0:3,,1:1", "a:1"}) {
    const Result<StreamChoice> streams = parse_streams(text);
    ASSERT_FALSE(streams.ok()) << text;
    EXPECT_NE(streams.error().message.find("expected 0 (nothing)"), std::string::npos);
  }
}

TEST(RankOutput, a_redirected_stream_is_not_shown_and_a_teed_one_is_both) {
  OutputOptions output;
  output.redirects = *parse_streams("0:3");
  output.tee = *parse_streams("1:2");
  EXPECT_FALSE(output.is_shown(0, false));
  EXPECT_TRUE(output.goes_to_file(0, false));
  EXPECT_TRUE(output.is_shown(1, true));
  EXPECT_TRUE(output.goes_to_file(1, true));
  EXPECT_TRUE(output.is_shown(1, false));
  EXPECT_FALSE(output.goes_to_file(1, false));
  output.shown = {0};
  EXPECT_FALSE(output.is_shown(1, true));
}

TEST(RankOutput, a_log_folder_alone_gets_all_streams) {
  OutputOptions output;
  EXPECT_FALSE(output.goes_to_file(0, false));
  output.log_dir = "logs";
  EXPECT_TRUE(output.goes_to_file(0, false));
  output.tee = *parse_streams("2");
  EXPECT_FALSE(output.goes_to_file(0, false));
}

TEST(RankOutput, filtered_lines_are_those_of_shown_streams_that_go_to_a_file) {
  OutputOptions output;
  output.duplicate_out = {"loss", "lr"};
  EXPECT_FALSE(output.is_duplicated(0, false, "loss 1"));
  output.tee = *parse_streams("1");
  EXPECT_TRUE(output.is_duplicated(0, false, "loss 1"));
  EXPECT_FALSE(output.is_duplicated(0, false, "step 1"));
  EXPECT_FALSE(output.is_duplicated(0, true, "loss 1"));
}

TEST(RankOutput, the_prefix_is_a_template_of_python) {
  EXPECT_EQ(line_prefix("[${role_name}${rank}/$local_rank]:", "default", 12, 4), "[default12/4]:");
  EXPECT_EQ(line_prefix("$$ $x ${rank ${y} $", "default", 1, 1), "$ $x ${rank ${y} $");
  EXPECT_EQ(line_prefix("", "default", 1, 1), "");
}

}  // namespace
}  // namespace lockstep
