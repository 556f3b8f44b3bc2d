#include "operator/api/schema_gap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(fields_lacking(trainjob_schema(), own_schema()), IsEmpty());
}

TEST(SchemaGap, is_none_where_the_cluster_has_more) {
  Json theirs = own_schema();
  fields_of(theirs, "spec")["fromTheFuture"] = {{"type", "string"}};
  EXPECT_THAT(fields_lacking(trainjob_schema(), theirs), IsEmpty());
}

TEST(SchemaGap, names_fields_at_any_depth_and_nothing_below_them) {
  Json theirs = own_schema();
  fields_of(theirs, "spec").erase("elastic");
  fields_of(theirs, "spec")["trainer"]["properties"].erase("launcher");
  fields_of(theirs, "status")["recentFailures"]["items"]["properties"].erase("host");
  EXPECT_THAT(fields_lacking(trainjob_schema(), theirs),
              ElementsAre("spec.elastic", "spec.trainer.launcher", "status.recentFailures[].host"));
}

TEST(SchemaGap, is_none_where_the_server_keeps_what_it_does_not_know) {
  Json theirs = own_schema();
  theirs["properties"]["status"] = {{"type", "object"}, {"x-kubernetes-preserve-unknown-fields", true}};
  EXPECT_THAT(fields_lacking(trainjob_schema(), theirs), IsEmpty());
}

TEST(SchemaGap, names_everything_when_there_is_no_schema) {
  for (const Json& theirs : {Json(), Json::object(), Json("text"), Json{{"properties", 3}}}) {
    EXPECT_THAT(fields_lacking(trainjob_schema(), theirs), ElementsAre("apiVersion", "kind", "spec", "status"));
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
