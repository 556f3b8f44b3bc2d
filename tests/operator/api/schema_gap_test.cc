#include "operator/api/schema_gap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "operator/api/crd.h"
#include "operator/api/yaml.h"

namespace lockstep::api {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// As the file has it; an OpenAPI document has the same below its components.
Json own_schema() {
  const auto document = parse_yaml(crd_yaml(), "crd.yaml");
  EXPECT_TRUE(document.ok());
  return Json(*document)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
}

Json& fields_of(Json& schema, const char* name) { return schema["properties"][name]["properties"]; }

TEST(SchemaGap, is_none_between_a_crd_and_itself) {
  EXPECT_THAT(schema_gaps(trainjob_schema(), own_schema()), IsEmpty());
}

TEST(SchemaGap, is_none_where_the_cluster_has_more) {
  Json theirs = own_schema();
  fields_of(theirs, "spec")["fromTheFuture"] = {{"type", "string"}};
  EXPECT_THAT(schema_gaps(trainjob_schema(), theirs), IsEmpty());
}

TEST(SchemaGap, names_fields_at_any_depth_and_nothing_below_them) {
  Json theirs = own_schema();
  fields_of(theirs, "spec").erase("elastic");
  fields_of(theirs, "spec")["trainer"]["properties"].erase("launcher");
  fields_of(theirs, "status")["recentFailures"]["items"]["properties"].erase("host");
  EXPECT_THAT(schema_gaps(trainjob_schema(), theirs),
              ElementsAre("spec.elastic", "spec.trainer.launcher", "status.recentFailures[].host"));
}

// An API server answers 422 to a status with a phase that its enum lacks.
TEST(SchemaGap, names_words_that_are_not_allowed) {
  Json theirs = own_schema();
  Json& phases = fields_of(theirs, "status")["phase"]["enum"];
  ASSERT_TRUE(phases.is_array());
  phases.erase(std::find(phases.begin(), phases.end(), "Recovering"));
  phases.push_back("Resting");
  fields_of(theirs, "status")["reason"]["enum"] = {"AllDone"};
  EXPECT_THAT(schema_gaps(trainjob_schema(), theirs),
              ElementsAre("status.phase: Recovering", "status.reason: other words than its own"));
}

TEST(SchemaGap, names_limits_that_are_narrower_and_no_others) {
  struct Row {
    Json theirs;
    std::vector<std::string> gaps;
  };
  const Result<Schema> ours = Schema::parse(Json::parse(R"({"type": "object", "properties": {
    "count": {"type": "integer", "minimum": 1, "maximum": 100}, "list": {"type": "array", "items": {"type": "string"}},
    "name": {"type": "string", "minLength": 1, "maxLength": 63}}})"));
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  const std::vector<Row> table = {
      {{{"count", {{"minimum", 1}, {"maximum", 100}}}, {"name", {{"maxLength", 63}}}, {"list", Json::object()}}, {}},
      {{{"count", {{"minimum", 0}, {"maximum", 1000}}}, {"name", {{"maxLength", 64}}}, {"list", Json::object()}}, {}},
      {{{"count", {{"minimum", 2}, {"maximum", 99}}},
        {"name", {{"minLength", 2}, {"maxLength", 62}}},
        {"list", {{"maxItems", 5}}}},
       {"count: a maximum of 100", "count: a minimum of 1", "list: values beyond its maxItems of 5",
        "name: a maxLength of 63", "name: a minLength of 1"}}};
  for (const Row& row : table) {
    EXPECT_THAT(schema_gaps(*ours, {{"properties", row.theirs}}), testing::ElementsAreArray(row.gaps));
  }
}

TEST(SchemaGap, is_none_where_the_server_keeps_what_it_does_not_know) {
  Json theirs = own_schema();
  theirs["properties"]["status"] = {{"type", "object"}, {"x-kubernetes-preserve-unknown-fields", true}};
  EXPECT_THAT(schema_gaps(trainjob_schema(), theirs), IsEmpty());
}

TEST(SchemaGap, names_everything_when_there_is_no_schema) {
  for (const Json& theirs : {Json(), Json::object(), Json("text"), Json{{"properties", 3}}}) {
    EXPECT_THAT(schema_gaps(trainjob_schema(), theirs), ElementsAre("apiVersion", "kind", "spec", "status"));
  }
}

TEST(SchemaGap, finds_a_kind_by_its_group_and_name) {
  const Json ours = {
      {"x-kubernetes-group-version-kind", {{{"group", "lockstep.dev"}, {"version", "v1"}, {"kind", "TrainJob"}}}},
      {"type", "object"}};
  const Json other = {{"x-kubernetes-group-version-kind", {{{"group", "other.dev"}, {"kind", "TrainJob"}}}}};
  const Json document = {{"components", {{"schemas", {{"a", other}, {"b", ours}, {"c", {{"type", "string"}}}}}}}};
  ASSERT_NE(schema_of_kind(document, "lockstep.dev", "TrainJob"), nullptr);
  EXPECT_EQ(*schema_of_kind(document, "lockstep.dev", "TrainJob"), ours);
  EXPECT_EQ(schema_of_kind(document, "lockstep.dev", "TrainJobList"), nullptr);
  for (const Json& nothing : {Json(), Json::array(), Json{{"components", 1}}, Json{{"components", {{"schemas", 1}}}}}) {
    EXPECT_EQ(schema_of_kind(nothing, "lockstep.dev", "TrainJob"), nullptr);
  }
}

}  // namespace
}  // namespace lockstep::api
