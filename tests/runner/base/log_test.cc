#include "runner/base/log.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

class Log : public testing::Test {
 protected:
  Logger logger(Logger::Format format, LogLevel lowest = LogLevel::kInfo) {
    return Logger({.format = format,
                   .lowest = lowest,
                   .sink = [this](const std::string& line) { lines_.push_back(line); },
                   .now = [] { return std::string("NOW"); }});
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, is_one_json_object_per_line_whatever_is_said) {
  const Logger log = logger(Logger::Format::kJson).with({{"controller", "trainjob"}});
  log.info("two\nlines \"quoted\"", {{"key", "ns/job"}, {"attempt", 3}, {"bytes", "\xff"}});
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_[0], R"({"ts":"NOW","level":"info","msg":"two\nlines \"quoted\"","controller":"trainjob",)"
                       "\"key\":\"ns/job\",\"attempt\":3,\"bytes\":\"\xEF\xBF\xBD\"}");
}

TEST_F(Log, keeps_its_own_words_when_a_field_has_their_name) {
  logger(Logger::Format::kJson).error("failed", {{"msg", "other"}, {"level", "info"}});
  EXPECT_EQ(lines_.at(0), R"({"ts":"NOW","level":"error","msg":"failed"})");
}

TEST_F(Log, is_text_for_a_terminal) {
  logger(Logger::Format::kText).warning("slow", {{"word", "one"}, {"words", "one two"}, {"empty", ""}, {"n", 1.5}});
  EXPECT_EQ(lines_.at(0), "NOW warning slow word=one words=\"one two\" empty=\"\" n=1.5");
}

TEST_F(Log, leaves_out_what_is_below_its_level) {
  const Logger log = logger(Logger::Format::kText, LogLevel::kWarning);
  log.debug("a");
  log.info("b");
  log.warning("c");
  log.error("d");
  EXPECT_EQ(lines_, (std::vector<std::string>{"NOW warning c", "NOW error d"}));
  Logger::silent().error("nobody hears it");
}

TEST_F(Log, a_copy_has_fields_of_its_own) {
  const Logger log = logger(Logger::Format::kText);
  const Logger other = log.with({{"a", 1}}).with({{"a", 2}, {"b", 3}});
  other.info("x", {{"b", 4}});
  log.info("y");
  EXPECT_EQ(lines_, (std::vector<std::string>{"NOW info x a=2 b=4", "NOW info y"}));
}

}  // namespace
}  // namespace lockstep
