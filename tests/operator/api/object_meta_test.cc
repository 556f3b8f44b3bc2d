#include "operator/api/object_meta.h"

#include <gtest/gtest.h>

namespace lockstep::api {
namespace {

TEST(ObjectMeta, reads_the_fields_of_metadata) {
  const Json object = Json::parse(R"({
    "metadata": {
      "name": "sasrec", "namespace": "ml", "uid": "u-1", "resourceVersion": "42", "generation": 3,
      "creationTimestamp": "2026-11-21T10:00:00Z", "deletionTimestamp": "2026-11-21T10:00:05Z",
      "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"],
      "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "u-2"},
        {"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "name": "job", "uid": "u-3", "controller": true}]}})");
  const ObjectMeta meta = meta_of(object);
  EXPECT_EQ(meta.key(), (ObjectKey{"ml", "sasrec"}));
  EXPECT_EQ(meta.uid, "u-1");
  EXPECT_EQ(meta.resource_version, "42");
  EXPECT_EQ(meta.generation, 3);
  EXPECT_EQ(format_time(meta.created), "2026-11-21T10:00:00Z");
  EXPECT_EQ(meta.deletion_time, meta.created + 5);
  EXPECT_EQ(meta.labels.at("a"), "b");
  EXPECT_EQ(meta.annotations.at("c"), "d");
  EXPECT_EQ(meta.finalizers, std::vector<std::string>{"x/y"});
  ASSERT_NE(meta.controller(), nullptr);
  EXPECT_EQ(meta.controller()->uid, "u-3");
  EXPECT_EQ(meta.owners.size(), 2U);
}

TEST(ObjectMeta, of_half_an_object_is_half_a_view) {
  EXPECT_EQ(meta_of(Json()).name, "");
  EXPECT_EQ(meta_of(Json{{"metadata", 7}}).name, "");
  const ObjectMeta meta = meta_of(Json::parse(
      R"({"metadata": {"name": 5, "generation": "x", "labels": {"a": 1, "b": "c"}, "finalizers": [1, "f"],
          "ownerReferences": [3, {"name": "n", "controller": "yes"}], "deletionTimestamp": "soon"}})"));
  EXPECT_EQ(meta.name, "");
  EXPECT_EQ(meta.generation, 0);
  EXPECT_EQ(meta.labels, (std::map<std::string, std::string>{{"b", "c"}}));
  EXPECT_EQ(meta.finalizers, std::vector<std::string>{"f"});
  EXPECT_EQ(meta.controller(), nullptr);
  EXPECT_FALSE(meta.deletion_time);
}

TEST(ObjectKey, reads_as_namespace_slash_name) {
  EXPECT_EQ(to_string(ObjectKey{"ml", "sasrec"}), "ml/sasrec");
  EXPECT_EQ(to_string(ObjectKey{"", "node-1"}), "node-1");
  EXPECT_EQ(key_of(Json{{"metadata", {{"name", "a"}, {"namespace", "b"}}}}), (ObjectKey{"b", "a"}));
  EXPECT_EQ(key_of(Json::array()), ObjectKey{});
}

TEST(Time, is_written_as_the_api_writes_it) {
  EXPECT_EQ(format_time(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(format_time(1'795'255'200), "2026-11-21T10:00:00Z");
  EXPECT_EQ(format_time(-1), "1969-12-31T23:59:59Z");
}

TEST(Time, is_read_with_fractions_and_offsets) {
  EXPECT_EQ(parse_time("2026-11-21T10:00:00Z"), 1'795'255'200);
  EXPECT_EQ(parse_time("2026-11-21T10:00:00.123456Z"), 1'795'255'200);
  EXPECT_EQ(parse_time("2026-11-21T12:30:00+02:30"), 1'795'255'200);
  EXPECT_EQ(parse_time("2026-11-21T05:00:00-05:00"), 1'795'255'200);
  EXPECT_EQ(parse_time("2024-02-29T00:00:00Z"), 1'709'164'800);
  EXPECT_EQ(parse_time("2016-12-31T23:59:60Z"), parse_time("2017-01-01T00:00:00Z"));
}

TEST(Time, that_is_none_is_refused) {
  for (const char* text :
       {"", "now", "2026-11-21", "2026-11-21T10:00:00", "2026-13-01T00:00:00Z", "2025-02-29T00:00:00Z",
        "2026-11-21T24:00:00Z", "2026-11-21T10:60:00Z", "2026-11-21T10:00:61Z", "2026-11-21T10:00:00.Z",
        "2026-11-21T10:00:00Zx", "2026-11-21T10:00:00+0200", "2026-11-21T10:00:00+24:00", "26-11-21T10:00:00Z",
        "0000-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"}) {
    EXPECT_FALSE(parse_time(text)) << text;
  }
}

TEST(Duration, shows_its_two_largest_units) {
  EXPECT_EQ(format_duration(-5), "0s");
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59), "59s");
  EXPECT_EQ(format_duration(60), "1m");
  EXPECT_EQ(format_duration(190), "3m10s");
  EXPECT_EQ(format_duration(7'500), "2h5m");
  EXPECT_EQ(format_duration(7'201), "2h");
  EXPECT_EQ(format_duration(3 * 86'400 + 4 * 3'600 + 59), "3d4h");
}

}  // namespace
}  // namespace lockstep::api
