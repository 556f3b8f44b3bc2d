// YAML as kubectl's users write it: what a scalar means, what is refused and where, and the way back to text.
#include "operator/api/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::api {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

OrderedJson value_of(std::string_view scalar) {
  const Result<OrderedJson> map = parse_yaml(std::string("a: ").append(scalar).append("\n"), "t.yaml");
  EXPECT_TRUE(map.ok()) << scalar << ": " << (map.ok() ? "" : map.error().message);
  return map.ok() ? map->at("a") : OrderedJson();
}

std::string refusal_of(std::string_view text) {
  const Result<OrderedJson> value = parse_yaml(text, "t.yaml");
  if (value.ok()) return "accepted: " + value->dump();
  EXPECT_EQ(value.error().code, ErrorCode::kInvalid);
  return value.error().message;
}

TEST(Yaml, plain_scalars_have_the_types_of_the_core_schema) {
  const std::vector<std::pair<std::string, OrderedJson>> cases = {
      {"", nullptr},
      {"~", nullptr},
      {"null", nullptr},
      {"Null", nullptr},
      {"NULL", nullptr},
      {"nULL", "nULL"},
      {"true", true},
      {"False", false},
      {"TRUE", true},
      {"yes", "yes"},
      {"off", "off"},
      {"y", "y"},
      {"0", 0},
      {"-12", -12},
      {"+7", 7},
      {"012", 12},
      {"0o17", 15},
      {"0x1F", 31},
      {"0x", "0x"},
      {"0o8", "0o8"},
      {"1_000", "1_000"},
      {"1.5", 1.5},
      {"-.5", -0.5},
      {"1.", 1.0},
      {"1e3", 1000.0},
      {"+1.0E-2", 0.01},
      {"1e", "1e"},
      {"1.2.3", "1.2.3"},
      {"12:30:45", "12:30:45"},
      {"2026-11-21", "2026-11-21"},
      {"-", "-"},
      {"9223372036854775807", INT64_MAX},
      {"18446744073709551615", UINT64_MAX},
      {"-9223372036854775808", INT64_MIN},
      {"v1.34.1", "v1.34.1"},
      {"500m", "500m"},
  };
  for (const auto& [text, expected] : cases) {
    if (text == "-") continue;  // a list's mark, not a scalar
    const OrderedJson value = value_of(text);
    EXPECT_EQ(value, expected) << text;
    EXPECT_EQ(value.is_number_float(), expected.is_number_float()) << text;
  }
}

TEST(Yaml, quoted_and_block_scalars_stay_strings) {
  EXPECT_EQ(value_of("\"123\""), "123");
  EXPECT_EQ(value_of("'true'"), "true");
  EXPECT_EQ(value_of("''"), "");
  EXPECT_EQ(value_of("|\n  12\n"), "12\n");
  EXPECT_EQ(value_of(">-\n  1\n  2\n"), "1 2");
  EXPECT_EQ(value_of("!!str 5"), "5");
  EXPECT_EQ(value_of("!!str"), "");
  EXPECT_EQ(value_of("!!int \"5\""), 5);
  EXPECT_EQ(value_of("\"a\\u00e9\\n\""), "a\u00e9\n");
}

TEST(Yaml, a_script_in_a_block_may_hold_tabs) { EXPECT_EQ(value_of("|\n  x:\n  \ty\n"), "x:\n\ty\n"); }

TEST(Yaml, the_order_of_keys_is_kept) {
  const Result<OrderedJson> value = parse_yaml("z: 1\na: {y: [1, two], b: }\n", "t.yaml");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->dump(), R"({"z":1,"a":{"y":[1,"two"],"b":null}})");
}

TEST(Yaml, keys_that_are_numbers_become_strings) {
  EXPECT_EQ(parse_yaml("8080: a\ntrue: b\n", "t.yaml")->dump(), R"({"8080":"a","true":"b"})");
}

TEST(Yaml, aliases_stand_for_what_was_anchored) {
  EXPECT_EQ(parse_yaml("a: &x {b: [1]}\nc: *x\n&k d: e\nf: *k\n", "t.yaml")->dump(),
            R"({"a":{"b":[1]},"c":{"b":[1]},"d":"e","f":"d"})");
}

TEST(Yaml, merge_keys_give_what_the_map_does_not_say) {
  EXPECT_EQ(parse_yaml("x: &x {b: 1, c: 1}\ny: &y {c: 2, d: 2}\nz: {<<: [*x, *y], b: 3}\n", "t.yaml")->at("z").dump(),
            R"({"b":3,"c":1,"d":2})");
  EXPECT_EQ(parse_yaml("'<<': a\n", "t.yaml")->dump(), R"({"<<":"a"})");
  EXPECT_THAT(refusal_of("a: 1\n<<: b\n"), StartsWith("t.yaml:2:5: a merge key (<<)"));
  EXPECT_THAT(refusal_of("<<: [b]\n"), HasSubstr("a merge key (<<)"));
}

TEST(Yaml, refusals_name_the_source_the_line_and_the_column) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a: 1\nb: 2\na: 3\n", "t.yaml:3:1: the key \"a\" is given twice in one map"},
      {"a:\n  'b': 1\n  b: 2\n", "t.yaml:3:3: the key \"b\" is given twice"},
      {"a:\n\tb: 1\n", "t.yaml:2:3: not YAML:"},
      {"a:\n  b: 1\n\tc: 2\n", "t.yaml:3:1: not YAML: illegal tab when looking for indentation"},
      {"a: !!binary aGk=\n", "t.yaml:1:4: the tag \"tag:yaml.org,2002:binary\" is unknown"},
      {"a: !secret x\n", "t.yaml:1:4: the tag \"!secret\" is unknown"},
      {"a: !set {b}\n", "t.yaml:1:4: the tag \"!set\" is unknown"},
      {"a: !!int five\n", "t.yaml:1:4: \"five\" is not of its tag !!int"},
      {R"(a: "x\_")", "t.yaml:1:4: an escape \\_ or \\N, which is not supported"},
      {R"("x\N": a)", "t.yaml:1:1: an escape \\_ or \\N"},
      {"a: .inf\n", "t.yaml:1:4: \".inf\" has no form in JSON"},
      {"a: -.INF\n", "has no form in JSON"},
      {"a: .nan\n", "has no form in JSON"},
      {"a: 18446744073709551616\n", "t.yaml:1:4: \"18446744073709551616\" does not fit into 64 bits"},
      {"a: 1e999\n", "t.yaml:1:4: \"1e999\" is beyond a 64-bit number"},
      {"? [a]\n: b\n", "t.yaml:1:3: a key that is not one plain word"},
      {"? {a: b}\n: b\n", "a key that is not one plain word"},
      {"~: b\n", "t.yaml:1:1: a key that is not one plain word"},
      {"a: &x [1]\n*x : b\n", "t.yaml:2:1: a key that is not one plain word"},
      {"a: &x [*x]\n", "t.yaml:1:8: an alias inside of what it stands for"},
      {"a: *nobody\n", "t.yaml:1:4: not YAML: the referenced anchor is not defined"},
      {"a: [1, 2\n", "t.yaml:2:1: not YAML:"},
      {"a: \"cut off\n", "t.yaml:1:12: not YAML: illegal EOF in scalar"},
      {"a: 'cut off\n\n", "not YAML: illegal EOF in scalar"},
      {"\"a\" 1\n", "t.yaml:1:5: text after the end of the document"},
      {"a: 1\n---\nb: 2\n", "t.yaml:2:1: a second document; expected one"},
      {"", "t.yaml: holds nothing; expected one YAML document"},
      {"---\n# nothing\n", "t.yaml: holds nothing"},
      {std::string("a\0b", 3), "t.yaml: holds a NUL byte"},
      {"a: \xff\n", "t.yaml: is not UTF-8"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(refusal_of(text), HasSubstr(expected)) << text;
}

TEST(Yaml, nesting_has_a_limit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_yaml(nested(kYamlDepthMax), "t.yaml").ok());
  EXPECT_THAT(refusal_of(nested(kYamlDepthMax + 1)), HasSubstr("t.yaml:1:65: nested deeper than 64 levels"));
  EXPECT_THAT(refusal_of(nested(200'000)), HasSubstr("nested deeper"));
  // 40 levels behind an alias at level 40.
  const std::string behind_alias = "a: &x " + nested(40) + "\nb: " + std::string(40, '[') + "*x" + std::string(40, ']');
  EXPECT_THAT(refusal_of(behind_alias), HasSubstr("t.yaml:2:44: nested deeper"));
}

TEST(Yaml, the_number_of_values_has_a_limit) {
  std::string list = "[";
  for (size_t i = 0; i + 1 < kYamlNodesMax; ++i) list += "1,";
  EXPECT_TRUE(parse_yaml(list + "]", "t.yaml").ok());
  EXPECT_THAT(refusal_of(list + "1]"), HasSubstr("more than 100000 values"));
}

TEST(Yaml, an_alias_bomb_ends_early) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    const std::string name = "a" + std::to_string(i);
    const std::string alias = "*a" + std::to_string(i - 1);
    bomb += name + ": &" + name + " [";
    for (int k = 0; k < 10; ++k) bomb += alias + ", ";
    bomb += "]\n";
  }
  EXPECT_THAT(refusal_of(bomb), HasSubstr("more than 100000 values, aliases written out"));

  std::string long_words = "a: &a " + std::string(100'000, 'x') + "\nb: [";
  for (int i = 0; i < 1000; ++i) long_words += "*a, ";
  EXPECT_THAT(refusal_of(long_words + "]"), HasSubstr("more than 8388608 bytes, aliases written out"));
}

TEST(Yaml, a_large_file_is_refused_unread) {
  EXPECT_THAT(refusal_of(std::string(kYamlBytesMax + 1, ' ')), HasSubstr("8388609 bytes; expected at most 8388608"));
}

TEST(Yaml, a_byte_order_mark_is_passed_over) {
  EXPECT_EQ(parse_yaml("\xef\xbb\xbf---\na: 1\n", "t.yaml")->dump(), R"({"a":1})");
}

TEST(Yaml, several_documents_are_read_and_empty_ones_left_out) {
  const auto documents = parse_yaml_documents("---\na: 1\n---\n# nothing\n---\n- b\n...\n", "t.yaml");
  ASSERT_TRUE(documents.ok());
  EXPECT_EQ(OrderedJson(*documents).dump(), R"([{"a":1},["b"]])");
  EXPECT_TRUE(parse_yaml_documents("# only words\n", "t.yaml")->empty());
  // Anchors and keys of one document are not those of the next; the limits begin anew.
  EXPECT_THAT(parse_yaml_documents("a: &x 1\n---\nb: *x\n", "t.yaml").error().message, StartsWith("t.yaml:3:4: "));
}

// --- files of Kubernetes objects ---

std::string position_in(const YamlDocument& document, const std::string& field) {
  const YamlPosition position = document.position_of(field);
  return std::to_string(position.line) + ":" + std::to_string(position.column);
}

std::string manifest_refusal(const std::string& text) {
  const auto documents = parse_manifests(text, "t.yaml");
  return documents.ok() ? "" : documents.error().message;
}

TEST(Manifests, every_field_has_its_place) {
  const auto documents =
      parse_manifests("# first\nkind: A\n---\nspec:\n  args: [a, {b: c}]\n  list:\n  - x: 1\n    z: 2\n", "t.yaml");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  ASSERT_EQ(documents->size(), 2U);
  EXPECT_EQ(position_in((*documents)[0], "kind"), "2:1");
  const YamlDocument& second = (*documents)[1];
  const std::vector<std::pair<std::string, std::string>> positions = {{"", "4:1"},
                                                                      {"spec", "4:1"},
                                                                      {"spec.args", "5:3"},
                                                                      {"spec.args[0]", "5:10"},
                                                                      {"spec.args[1].b", "5:14"},
                                                                      {"spec.list[0]", "7:5"},
                                                                      {"spec.list[0].z", "8:5"}};
  for (const auto& [field, position] : positions) EXPECT_EQ(position_in(second, field), position) << field;
}

TEST(Manifests, a_field_that_is_missing_stands_where_it_would_be) {
  const auto documents = parse_manifests("a: 1\nspec:\n  labels: {x.y/z: 1}\n", "t.yaml");
  ASSERT_TRUE(documents.ok());
  const YamlDocument& document = documents->front();
  EXPECT_EQ(position_in(document, "spec.trainer.image"), "2:1");
  EXPECT_EQ(position_in(document, "spec.labels[x.y/z]"), "3:3");
  EXPECT_EQ(position_in(document, "spec.labels.x.y/z"), "3:12");
  EXPECT_EQ(position_in(document, "other"), "1:1");
}

TEST(Manifests, what_comes_through_an_alias_or_a_merge_key_stands_there) {
  const auto documents = parse_manifests("a: &a\n  b: 1\nc: *a\nd:\n  <<: *a\n  e: 2\nf: [*a]\n", "t.yaml");
  ASSERT_TRUE(documents.ok());
  const YamlDocument& document = documents->front();
  EXPECT_EQ(position_in(document, "c.b"), "3:1");
  EXPECT_EQ(position_in(document, "d.b"), "4:1");
  EXPECT_EQ(position_in(document, "d.e"), "6:3");
  EXPECT_EQ(position_in(document, "f[0].b"), "7:5");
}

TEST(Manifests, words_of_yaml_1_1_are_booleans_as_for_kubectl) {
  const auto documents = parse_manifests("[yes, No, ON, off, y, N, 'yes', yES, {on: 1, 'no': 2}]", "t.yaml");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  EXPECT_EQ(documents->front().value.dump(), R"([true,false,true,false,true,false,"yes","yES",{"true":1,"no":2}])");
}

TEST(Manifests, numbers_that_kubectl_reads_otherwise_are_refused) {
  for (const char* text : {"012", "-012", "+01", "0b11", "-0b1", "0B1", "1_000", "1_0.5", "-0x1f", "0X1", "0x1_f",
                           "-0o7", "0O7", "0o1_7"}) {
    EXPECT_THAT(manifest_refusal(std::string("a: ") + text),
                HasSubstr("t.yaml:1:4: \"" + std::string(text) + "\" is another number"))
        << text;
  }
  for (const char* text : {"0", "00", "08", "10", "1.0", "0o17", "0x1f", "1e3", "0b", "0b2", "_1", "1_a", "a_1",
                           "12:30", "'012'", "0.1.2", "0xg"}) {
    EXPECT_EQ(manifest_refusal(std::string("a: ") + text), "") << text;
  }
}

TEST(Manifests, a_key_that_is_given_twice_is_refused_with_both_lines) {
  EXPECT_THAT(manifest_refusal("a: 1\nb: 2\na: 3\n"),
              HasSubstr("t.yaml:3:1: the key \"a\" is given twice in one map, first in line 1"));
  EXPECT_THAT(manifest_refusal("yes: 1\n'true': 2\n"), HasSubstr("t.yaml:2:1: the key \"true\" is given twice"));
}

TEST(Manifests, json_may_be_indented_with_tabs) {
  const auto documents = parse_manifests("{\n\t\"a\": {\n\t\t\"b\": \"c\\\"\\\\\"\n\t}\n}\n", "t.json");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  EXPECT_EQ(documents->front().value.dump(), R"({"a":{"b":"c\"\\"}})");
  EXPECT_EQ(position_in(documents->front(), "a.b"), "3:3");
  EXPECT_THAT(manifest_refusal("a:\n\tb: 1\n"), HasSubstr("t.yaml:2:"));
}

TEST(Manifests, the_places_of_a_hostile_text_stay_small) {
  // Paths of paths would grow with the square of the text.
  std::string text;
  const std::string key(900, 'k');
  for (int depth = 0; depth < 60; ++depth) text += std::string(static_cast<size_t>(depth), ' ') + key + ":\n";
  const auto documents = parse_manifests(text, "t.yaml");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  EXPECT_LE(documents->front().positions.size(), 3U);
}

TEST(Yaml, json_is_yaml) {
  EXPECT_EQ(parse_yaml(R"({"a": [1, "x", null, {"b": true}]})", "t.yaml")->dump(), R"({"a":[1,"x",null,{"b":true}]})");
}

TEST(Yaml, text_is_written_as_people_write_it) {
  const OrderedJson value = OrderedJson::parse(R"({
    "apiVersion": "lockstep.dev/v1", "numNodes": 2, "image": "a/b:1", "empty": {}, "none": [], "nothing": null,
    "args": ["run", "--epochs", "20", "yes", "a: b", ""], "list": [{"a": 1, "b": {"c": 2}}, [1, 2], []],
    "script": "set -e\necho 'x'\n\necho done\n", "cut": "a\nb", "more": "a\n\n\n", "odd": "a \nb", "12": 1.5})");
  const std::string text = to_yaml(value);
  EXPECT_EQ(text, R"(apiVersion: lockstep.dev/v1
numNodes: 2
image: a/b:1
empty: {}
none: []
nothing: null
args:
  - run
  - "--epochs"
  - "20"
  - "yes"
  - "a: b"
  - ""
list:
  - a: 1
    b:
      c: 2
  -
    - 1
    - 2
  - []
script: |
  set -e
  echo 'x'

  echo done
cut: "a\nb"
more: "a\n\n\n"
odd: "a \nb"
"12": 1.5
)");
  const Result<OrderedJson> back = parse_yaml(text, "back");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->dump(), value.dump());
}

TEST(Yaml, every_string_survives_the_way_through_text) {
  const std::vector<std::string> strings = {"",
                                            " ",
                                            "a",
                                            "true",
                                            "Yes",
                                            "~",
                                            "null",
                                            "012",
                                            "1e3",
                                            "-",
                                            "- a",
                                            "a:",
                                            "a: b",
                                            "a #b",
                                            "#a",
                                            "&a",
                                            "*a",
                                            "!a",
                                            "%a",
                                            "@a",
                                            "`a",
                                            "|",
                                            ">",
                                            "?",
                                            "? a",
                                            "{a",
                                            "[a",
                                            "a,b",
                                            "'a'",
                                            "\"a\"",
                                            "a\\b",
                                            "\\",
                                            "\n",
                                            "\n\n",
                                            "a\n",
                                            "a\n\n",
                                            "\na",
                                            " a\nb",
                                            "a\n b\n",
                                            "a\nb ",
                                            "a\tb",
                                            "\ta",
                                            "a\n\tb",
                                            "\x01\x1f\x7f",
                                            "\u00e9\u4e2d\U0001F600",
                                            "a\u2028b",
                                            "a\u0085b",
                                            "\ufeffa",
                                            "---",
                                            "--- a",
                                            "...",
                                            "<<",
                                            "=",
                                            ".5",
                                            "2026-11-21",
                                            "a\r\nb",
                                            "a\rb",
                                            "/x/y",
                                            "_",
                                            "on"};
  for (const std::string& text : strings) {
    for (const OrderedJson& value :
         {OrderedJson(text), OrderedJson({{text, text}}), OrderedJson({{"k", {text, {{"m", text}}}}}),
          OrderedJson::array({text, {text}, {{text, {{text, text}}}}})}) {
      const std::string yaml = to_yaml(value);
      const Result<OrderedJson> back = parse_yaml_documents(yaml, "back").ok()
                                           ? parse_yaml(yaml, "back")
                                           : Result<OrderedJson>(parse_yaml_documents(yaml, "back").error());
      ASSERT_TRUE(back.ok()) << back.error().message << "\n" << yaml;
      EXPECT_EQ(back->dump(), value.dump()) << yaml;
    }
  }
}

TEST(Yaml, long_keys_survive_the_way_through_text) {
  for (const size_t size : {999U, 1000U, 1001U, 5000U}) {
    for (const char c : {'x', ' ', '"'}) {
      const std::string key(size, c);
      const OrderedJson value = {{key, {{key, {1, {{key, "a"}}}}}}, {"z", {{key, nullptr}}}};
      const Result<OrderedJson> back = parse_yaml(to_yaml(value), "back");
      ASSERT_TRUE(back.ok()) << back.error().message;
      EXPECT_EQ(back->dump(), value.dump());
    }
  }
}

TEST(Yaml, numbers_keep_their_value_and_their_type) {
  for (const OrderedJson& value : {OrderedJson(0), OrderedJson(-1), OrderedJson(UINT64_MAX), OrderedJson(INT64_MIN),
                                   OrderedJson(1.0), OrderedJson(-0.25), OrderedJson(1e300), OrderedJson(5e-324)}) {
    const Result<OrderedJson> back = parse_yaml(to_yaml(value), "back");
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, value);
    EXPECT_EQ(back->is_number_float(), value.is_number_float());
  }
}

TEST(Yaml, bytes_that_are_not_utf8_are_replaced_in_text) {
  EXPECT_EQ(*parse_yaml(to_yaml({{"a", "x\xffy"}}), "back"), OrderedJson({{"a", "x\uFFFDy"}}));
}

}  // namespace
}  // namespace lockstep::api
