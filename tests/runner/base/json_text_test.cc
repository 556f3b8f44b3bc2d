#include "runner/base/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "runner/base/json.h"

namespace lockstep {
namespace {

size_t values_of(const Json& json) {
  size_t values = 1;
  if (json.is_structured()) {
    for (const Json& child : json) values += values_of(child);
  }
  return values;
}

size_t depth_of(const Json& json) {
  if (!json.is_structured()) return 0;
  size_t depth = 0;
  for (const Json& child : json) depth = std::max(depth, depth_of(child));
  return depth + 1;
}

const std::vector<std::string> kTexts = {"7",
                                         " null ",
                                         R"("a \" { [ , \\")",
                                         "{}",
                                         "[ ]",
                                         R"({"a" : 1 , "b\"}": [true, {"c": {}}, "x]"], "": -1.5e3})",
                                         R"([[], [[]], {"a": [{}]}, "\\", "\u007b"])"};

TEST(JsonText, counts_at_least_what_the_document_has) {
  for (const std::string& text : kTexts) {
    const Json json = Json::parse(text);
    const JsonSize size = size_of_json(text);
    EXPECT_EQ(size.depth, depth_of(json)) << text;
    EXPECT_GE(size.values, values_of(json)) << text;
    EXPECT_LE(size.values, 2 * values_of(json)) << text;
  }
}

TEST(JsonText, takes_an_object_or_a_list_apart) {
  for (const std::string& text : kTexts) {
    const Json json = Json::parse(text);
    const auto members = members_of_json(text);
    ASSERT_EQ(members.has_value(), json.is_structured()) << text;
    if (!members) continue;
    Json again = json.is_object() ? Json::object() : Json::array();
    for (const JsonMember& member : *members) {
      Json value = Json::parse(member.text);
      if (json.is_object()) {
        again[Json::parse(member.name).get<std::string>()] = std::move(value);
      } else {
        again.push_back(std::move(value));
      }
    }
    EXPECT_EQ(again, json) << text;
  }
}

TEST(JsonText, finds_no_parts_in_what_is_neither_or_is_broken) {
  for (const char* text :
       {"",      " ",       "7",        "\"[]\"",     "{",     "[",    "[1",          "[1,",   "[1,]", "[,1]", "[1 2]",
        "[1] 2", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a", "{\"a\":\"b}", "[\"\\", "[[1]", "{]",   "[}"}) {
    EXPECT_FALSE(members_of_json(text).has_value()) << text;
  }
}

TEST(Json, of_more_than_128_levels_is_refused_before_it_is_made) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(kJsonDepthMax), "x").ok());
  const Result<Json> refused = parse_json(nested(kJsonDepthMax + 1), "the spec");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(refused.error().message, "the spec: is nested 129 levels deep; expected at most 128");
  EXPECT_EQ(parse_json(std::string_view("1\0x", 3), "the spec").error().message,
            "the spec: has a byte with the value 0 at position 1; expected text");
  EXPECT_FALSE(parse_json(std::string(5'000'000, '['), "x").ok());
}

TEST(Json, a_number_above_that_of_64_bits_with_sign_is_none) {
  const Json object = Json::parse(R"({"largest": 9223372036854775807, "above": 9223372036854775808, "small": -1})");
  EXPECT_EQ(number_field(object, {"largest"}), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(number_field(object, {"small"}), -1);
  EXPECT_FALSE(number_field(object, {"above"}).has_value());
}

}  // namespace
}  // namespace lockstep
