#include "operator/api/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::api {
namespace {

using testing::HasSubstr;

Schema schema(const char* json) {
  auto parsed = Schema::parse(Json::parse(json));
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  return *std::move(parsed);
}

TEST(Schema, that_is_not_understood_is_refused) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"[]", "is no object"},
      {R"({"type": "number"})", R"(the schema's type is "number")"},
      {R"({})", R"(the schema's type is "")"},
      {R"({"type": "string", "not": {}})", "the schema's keyword not is not known here"},
      {R"({"type": "object", "properties": {"a": {"type": "string", "oneOf": []}}})", "a: the schema's keyword oneOf"},
      {R"({"type": "array", "items": {"type": "x"}})", "items: the schema's type"},
      {R"({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"})", R"(is "bag")"},
      {R"({"type": "array"})", "the schema's items is missing"},
      {R"({"type": "string", "format": "ipv4"})", R"(the schema's format is "ipv4")"},
      {R"({"type": "string", "maxLength": "long"})", "has another type than it must have"},
      {R"({"type": "string", "pattern": "("})", "is no regular expression"},
      {R"({"type": "string", "x-kubernetes-validations": [{"rule": "true"}]})", "has another type than it must have"},
  };
  for (const auto& [json, message] : bad) {
    const auto parsed = Schema::parse(Json::parse(json));
    ASSERT_FALSE(parsed.ok()) << json;
    EXPECT_THAT(parsed.error().message, HasSubstr(message)) << json;
  }
}

TEST(Schema, sets_defaults_from_the_outside_in) {
  const Schema s = schema(R"({
    "type": "object",
    "properties": {
      "a": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 3}}},
      "c": {"type": "object", "properties": {"d": {"type": "integer", "default": 4}}},
      "list": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "boolean", "default": false}}}},
      "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"f": {"type": "integer", "default": 5}}}}
    }})");
  Json value = Json::parse(R"({"a": null, "list": [{}, {"e": true}, 7], "map": {"x": {}, "y": null}})");
  apply_defaults(s, value);
  EXPECT_EQ(value, Json::parse(R"({"a": {"b": 3}, "list": [{"e": false}, {"e": true}, 7], "map": {"x": {"f": 5}}})"));
  Json none = "x";
  apply_defaults(s, none);
  EXPECT_EQ(none, "x");
}

TEST(Schema, leaves_what_it_preserves_alone) {
  const Schema s = schema(R"({"type": "object", "x-kubernetes-preserve-unknown-fields": true})");
  Json value = Json::parse(R"({"a": null, "b": {"c": [null]}})");
  const Json before = value;
  apply_defaults(s, value);
  EXPECT_EQ(value, before);
  EXPECT_TRUE(check_structure(s, value, "x").empty());
}

TEST(Schema, counts_lengths_in_characters) {
  const Schema s = schema(R"({"type": "string", "maxLength": 3})");
  EXPECT_TRUE(check_structure(s, "éöü", "x").empty());
  EXPECT_EQ(check_structure(s, "éöüa", "x").at(0).message, "has 4 characters, expected at most 3");
}

TEST(Schema, matches_a_pattern_to_the_end_of_the_text) {
  const Schema s = schema(R"({"type": "string", "pattern": "^a+$"})");
  EXPECT_TRUE(check_structure(s, "aaa", "x").empty());
  EXPECT_EQ(check_structure(s, "aaa\n", "x").size(), 1U);
  EXPECT_EQ(check_structure(s, "aaa\nb", "x").size(), 1U);
}

// std::regex recurses once for each character.
TEST(Schema, refuses_texts_too_long_for_a_pattern_without_matching_them) {
  const Schema s = schema(R"({"type": "string", "pattern": "^a+$"})");
  EXPECT_EQ(check_structure(s, std::string(10'000'000, 'a'), "x").size(), 1U);
}

TEST(Schema, knows_the_formats_of_numbers_and_times) {
  const Schema number = schema(R"({"type": "integer", "format": "int32", "minimum": 0})");
  EXPECT_TRUE(check_structure(number, 2147483647, "x").empty());
  EXPECT_EQ(check_structure(number, 2147483648, "x").size(), 1U);
  EXPECT_EQ(check_structure(number, -1, "x").size(), 1U);
  const Schema time = schema(R"({"type": "string", "format": "date-time"})");
  EXPECT_TRUE(check_structure(time, "2026-11-21T10:00:00Z", "x").empty());
  EXPECT_EQ(check_structure(time, "yesterday", "x").size(), 1U);
}

TEST(Schema, takes_floats_for_whole_numbers_where_they_are) {
  const Schema s = schema(R"({"type": "integer"})");
  EXPECT_TRUE(check_structure(s, 2.0, "x").empty());
  for (const Json& value :
       {Json(2.5), Json(1e300), Json(INFINITY), Json(NAN), Json(18446744073709551615U), Json("2")}) {
    EXPECT_EQ(check_structure(s, value, "x").size(), 1U) << value;
  }
}

TEST(Schema, cuts_what_it_shows_between_characters) {
  const Schema s = schema(R"({"type": "boolean"})");
  std::string text = "a";
  for (int i = 0; i < 100; ++i) text += "é";
  const std::string message = check_structure(s, text, "x").at(0).message;
  EXPECT_EQ(Json::parse(Json(message).dump()), message);  // dump() throws on a broken character
}

TEST(Schema, names_fields_as_the_api_server_does) {
  EXPECT_EQ(field_below("", "spec"), "spec");
  EXPECT_EQ(field_below("spec", "trainer"), "spec.trainer");
  EXPECT_EQ(field_below("spec.args", 3), "spec.args[3]");
}

}  // namespace
}  // namespace lockstep::api
