#include "runner/agent/termination_log.h"

#include <gtest/gtest.h>

#include "runner/base/json.h"

namespace lockstep {
namespace {

TEST(TerminationMessage, holds_the_contracts_fields) {
  const Result<Json> message = parse_json(
      termination_message({.exit_code = 13, .message = "no memory", .rank = 1, .step = 7, .generation = 3}), "message");
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(*message, Json::parse(R"({"exitCode":13,"reason":"OutOfMemory","message":"no memory","rank":1,"step":7,
                                      "generation":3})"));
}

TEST(TerminationMessage, says_when_the_job_is_over_for_all) {
  const std::string message = termination_message({.exit_code = 5, .message = "nan", .job_ended = true});
  EXPECT_EQ(parse_json(message, "message")->at("jobEnded"), true);
}

TEST(TerminationMessage, is_cut_to_4096_bytes_of_valid_utf8) {
  for (const std::string piece : {"a", "\xc3\xa4", "\xe2\x82\xac", "\"", "\n", "\xff", "\x01"}) {
    std::string text = "x";  // shifts the sequences off the power of two
    while (text.size() < 3 * kTerminationMessageBytesMax) text += piece;
    const std::string message = termination_message({.exit_code = 1, .message = text});
    EXPECT_LE(message.size(), kTerminationMessageBytesMax);
    const Result<Json> parsed = parse_json(message, "message");  // nlohmann refuses invalid UTF-8
    ASSERT_TRUE(parsed.ok());
    EXPECT_GT(parsed->at("message").get<std::string>().size(), 500U);
    EXPECT_EQ(parsed->at("message").get<std::string>().find("\xef\xbf\xbd"), piece == "\xff" ? 1U : std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
