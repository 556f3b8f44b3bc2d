#include "operator/api/crd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "operator/api/trainjob.h"
#include "operator/api/trainjob_rules.h"
#include "operator/api/yaml.h"
#include "tests/operator/api/trainjob_cases.h"

namespace lockstep::api {
namespace {

Json crd() {
  const auto document = parse_yaml(crd_yaml(), "crd.yaml");
  EXPECT_TRUE(document.ok()) << (document.ok() ? "" : document.error().message);
  return Json(*document);
}

Json schema_json() { return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]; }

void each_schema(const Json& schema, const std::string& path,
                 const std::function<void(const Json&, const std::string&)>& visit) {
  visit(schema, path);
  if (schema.contains("properties")) {
    for (const auto& [name, property] : schema["properties"].items())
      each_schema(property, field_below(path, name), visit);
  }
  for (const char* below : {"items", "additionalProperties"}) {
    if (schema.contains(below)) each_schema(schema[below], path + "[]", visit);
  }
}

TEST(Crd, is_of_the_group_and_kind_that_the_operator_asks_for) {
  const Json spec = crd()["spec"];
  EXPECT_EQ(spec["group"], kGroup);
  EXPECT_EQ(spec["names"]["kind"], kKind);
  EXPECT_EQ(std::string(kGroup) + "/" + spec["versions"][0]["name"].get<std::string>(), kApiVersion);
}

TEST(Crd, documents_every_field) {
  each_schema(schema_json(), "", [](const Json& schema, const std::string& path) {
    // Entries of a list are documented by the list; metadata is the API server's.
    if (path.ends_with("[]") && !schema.contains("properties")) return;
    if (path.rfind("metadata", 0) == 0) return;
    const std::string description = schema.value("description", "");
    EXPECT_TRUE(description.ends_with(".")) << path << ": \"" << description << "\"";
  });
}

TEST(Crd, says_in_every_rule_what_to_do) {
  each_schema(schema_json(), "", [](const Json& schema, const std::string& path) {
    for (const Json& rule : schema.value("x-kubernetes-validations", Json::array())) {
      EXPECT_GE(rule.value("message", "").size(), 20U) << path << ": " << rule;
    }
  });
}

TEST(Crd, has_the_rules_that_are_said_again_in_our_code_and_no_others) {
  std::set<std::string> of_crd;
  each_schema(schema_json(), "", [&](const Json& schema, const std::string&) {
    for (const Json& rule : schema.value("x-kubernetes-validations", Json::array())) {
      const auto text = rule["rule"].get<std::string>();
      if (text.find("oldSelf") == std::string::npos) of_crd.insert(text);
    }
  });
  std::set<std::string> ours;
  for (const std::string_view rule : restated_rules()) ours.emplace(rule);
  EXPECT_EQ(of_crd, ours);
}

// Only the API server runs these rules (tests/cluster/test_crd.py).
TEST(Crd, has_a_case_for_every_rule_that_compares_with_the_stored_object) {
  const std::vector<TrainJobCase> cases = load_trainjob_cases(LOCKSTEP_API_TESTS);
  each_schema(schema_json(), "", [&](const Json& schema, const std::string& path) {
    for (const Json& rule : schema.value("x-kubernetes-validations", Json::array())) {
      if (rule["rule"].get<std::string>().find("oldSelf") == std::string::npos) continue;
      std::string field = path + rule.value("fieldPath", "");
      if (path.empty()) field.erase(0, 1);  // ".spec.trainer.image"
      const auto is_about = [&](const Refusal& refusal) {
        return refusal.field == field && rule.value("message", "").find(refusal.says) != std::string::npos;
      };
      EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const TrainJobCase& one) {
        return one.stored && std::any_of(one.refused.begin(), one.refused.end(), is_about);
      })) << field;
    }
  });
}

// A rule on an optional field is not run when the field comes or goes: such fields are compared by their parents.
TEST(Crd, compares_only_fields_that_are_always_there) {
  each_schema(schema_json(), "", [](const Json& schema, const std::string& path) {
    if (!schema.contains("properties")) return;
    for (const auto& [name, property] : schema["properties"].items()) {
      for (const Json& rule : property.value("x-kubernetes-validations", Json::array())) {
        if (rule["rule"] != "self == oldSelf") continue;
        const auto required = schema.value("required", std::vector<std::string>());
        const bool is_required = std::find(required.begin(), required.end(), name) != required.end();
        EXPECT_TRUE(is_required || property.contains("default")) << field_below(path, name);
      }
    }
  });
}

TEST(Crd, has_columns_for_fields_that_exist) {
  const Json version = crd()["spec"]["versions"][0];
  std::vector<std::string> names;
  std::vector<std::string> wide;
  for (const Json& column : version["additionalPrinterColumns"]) {
    (column.value("priority", 0) == 0 ? names : wide).push_back(column["name"].get<std::string>());
    const std::string path = column["jsonPath"].get<std::string>();
    if (path.rfind(".metadata", 0) == 0) continue;
    Json schema = schema_json();
    std::string rest = path;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('.', 1), rest.size());
      const std::string name = rest.substr(1, end - 1);
      ASSERT_TRUE(schema["properties"].contains(name)) << path;
      schema = Json(schema["properties"][name]);
      rest = rest.substr(end);
    }
    EXPECT_EQ(schema["type"], column["type"]) << path;
  }
  EXPECT_THAT(names, testing::ElementsAre("Phase", "Ready", "Step", "Progress", "ETA", "Restarts", "Age"));
  EXPECT_THAT(wide, testing::ElementsAre("Loss", "Reason", "Message"));
}

// A status that the operator writes has no field that the API server would drop.
TEST(Crd, has_every_field_of_the_status) {
  TrainJobStatus status;
  status.phase = JobPhase::kRunning;
  status.reason = status.message = status.selector = "x";
  status.conditions.set({.type = "Running", .reason = "r", .message = "m", .observed_generation = 1}, 1);
  status.start_time = status.completion_time = 1;
  status.attempts = {{1, 2}, {2, 2}};
  status.progress.emplace();
  status.progress->total_steps = 10;
  status.progress->estimated_remaining_seconds = 5;
  status.progress->loss = status.progress->samples_per_second = "1.5";
  status.progress->metrics = {{.name = "n", .value = "v"}};
  status.progress->last_checkpoint_step = 4;
  status.recent_failures = {
      {.node = 1, .rank = 2, .attempt = 3, .host = "h", .exit_code = 4, .reason = "r", .message = "m"}};
  status.bookkeeping = {{"a", {1, 2}}};
  const auto problems = check_structure(trainjob_schema().properties.at("status"), to_json(status), "status");
  for (const Problem& problem : problems) ADD_FAILURE() << problem.field << ": " << problem.message;
}

}  // namespace
}  // namespace lockstep::api
