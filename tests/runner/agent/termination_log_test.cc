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

TEST(TerminationMessage, gives_a_changed_configuration_as_the_reason_even_when_the_words_are_cut) {
  const std::string words = "ConfigurationChanged: " + std::string(2 * kTerminationMessageBytesMax, 'x');
  const std::string message = termination_message({.exit_code = 2, .message = words});
  EXPECT_EQ(parse_json(message, "message")->at("reason"), "ConfigurationChanged");
}

TEST(TerminationMessage, says_when_the_job_is_over_for_all) {
  const std::string message = termination_message({.exit_code = 5, .message = "nan", .job_ended = true});
  EXPECT_EQ(parse_json(message, "message")->at("jobEnded"), true);
}

TEST(TerminationMessage, holds_the_figures_that_fit_the_most_wanted_first) {
  Termination last{.exit_code = 0, .message = "done"};
  last.figures = {{"progress", {{"step", 160}}}, {"restarts", 2}, {"recentFailures", std::string(5000, 'x')}};
  const std::string message = termination_message(last);
  EXPECT_LE(message.size(), kTerminationMessageBytesMax);
  const Result<Json> parsed = parse_json(message, "message");
  EXPECT_EQ(parsed->at("progress").at("step"), 160);
  EXPECT_EQ(parsed->at("restarts"), 2);
  EXPECT_FALSE(parsed->contains("recentFailures"));
  last.message = std::string(5000, 'x');
  EXPECT_FALSE(parse_json(termination_message(last), "message")->contains("progress"));
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
