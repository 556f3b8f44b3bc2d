#include "operator/api/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "operator/api/crd.h"
#include "operator/api/trainjob.h"
#include "operator/api/yaml.h"
#include "tests/operator/api/trainjob_cases.h"

namespace lockstep::api {
namespace {

using testing::HasSubstr;

const std::vector<TrainJobCase>& all_cases() {
  static const std::vector<TrainJobCase> cases = [] {
    std::vector<TrainJobCase> all = load_trainjob_cases(LOCKSTEP_API_TESTS);
    std::erase_if(all, [](const TrainJobCase& one) { return one.stored; });  // only the API server checks updates
    return all;
  }();
  return cases;
}

std::multiset<std::string> fields_of(const std::vector<Problem>& problems) {
  std::multiset<std::string> fields;
  for (const Problem& problem : problems) fields.insert(problem.field);
  return fields;
}

std::string shown(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += "\n  " + problem.field + ": " + problem.message;
  return text;
}

std::vector<std::vector<Problem>> problems_of_all() {
  std::vector<std::vector<Problem>> all;
  for (const TrainJobCase& one : all_cases()) all.push_back(validate(one.job));
  return all;
}

class ValidateCase : public testing::TestWithParam<TrainJobCase> {};

TEST_P(ValidateCase, is_accepted_or_refused_for_just_these_fields) {
  const TrainJobCase& one = GetParam();
  const std::vector<Problem> problems = validate(one.job);
  std::multiset<std::string> expected;
  for (const Refusal& refusal : one.refused) expected.insert(refusal.field);
  ASSERT_EQ(fields_of(problems), expected) << shown(problems);
  for (const Refusal& refusal : one.refused) {
    const auto is_about = [&](const Problem& problem) {
      return problem.field == refusal.field && problem.message.find(refusal.says) != std::string::npos &&
             problem.message.find(refusal.ours) != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), is_about)) << shown(problems);
  }
}

TEST_P(ValidateCase, is_read_when_it_is_accepted) {
  if (!GetParam().refused.empty()) return;
  const auto job = trainjob_from_json(GetParam().job);
  EXPECT_TRUE(job.ok()) << job.error().message;
}

INSTANTIATE_TEST_SUITE_P(cases, ValidateCase, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

// Takes one limit or rule out of the schema.
struct Limit {
  std::string name;
  std::function<void(Schema&)> remove;
};

void find_limits(const Schema& schema, const std::string& path, const std::function<Schema&(Schema&)>& reach,
                 std::vector<Limit>& limits) {
  const auto add = [&](const std::string& keyword, const std::function<void(Schema&)>& remove) {
    limits.push_back({path + " " + keyword, [reach, remove](Schema& root) { remove(reach(root)); }});
  };
  if (schema.pattern) add("pattern", [](Schema& s) { s.pattern.reset(); });
  if (schema.length_min) add("minLength", [](Schema& s) { s.length_min.reset(); });
  if (schema.length_max) add("maxLength", [](Schema& s) { s.length_max.reset(); });
  if (schema.items_max) add("maxItems", [](Schema& s) { s.items_max.reset(); });
  if (schema.properties_min) add("minProperties", [](Schema& s) { s.properties_min.reset(); });
  if (schema.properties_max) add("maxProperties", [](Schema& s) { s.properties_max.reset(); });
  if (schema.minimum) add("minimum", [](Schema& s) { s.minimum.reset(); });
  if (schema.maximum) add("maximum", [](Schema& s) { s.maximum.reset(); });
  if (!schema.words.empty()) add("enum", [](Schema& s) { s.words.clear(); });
  if (schema.list_type != Schema::ListType::kAtomic) {
    add("listType", [](Schema& s) { s.list_type = Schema::ListType::kAtomic; });
  }
  if (schema.preserves_unknown) add("preserveUnknown", [](Schema& s) { s.preserves_unknown = false; });
  for (size_t i = 0; i < schema.required.size(); ++i) {
    add("required " + schema.required[i],
        [i](Schema& s) { s.required.erase(s.required.begin() + static_cast<long>(i)); });
  }
  for (size_t i = 0; i < schema.rules.size(); ++i) {
    if (schema.rules[i].compares_with_stored()) continue;  // crd_test
    add("rule " + schema.rules[i].rule, [i](Schema& s) { s.rules.erase(s.rules.begin() + static_cast<long>(i)); });
  }
  for (const auto& [name, property] : schema.properties) {
    if (name == "status") continue;  // only the operator writes it
    const std::string below = field_below(path, name);
    find_limits(
        property, below, [reach, name = name](Schema& s) -> Schema& { return reach(s).properties.at(name); }, limits);
  }
  if (schema.items) {
    find_limits(
        *schema.items, path + "[]", [reach](Schema& s) -> Schema& { return *reach(s).items; }, limits);
  }
  if (schema.additional) {
    find_limits(
        *schema.additional, path + "{}", [reach](Schema& s) -> Schema& { return *reach(s).additional; }, limits);
  }
}

Schema fresh_schema() {
  static const Json json = [] {
    const auto crd = parse_yaml(crd_yaml(), "crd.yaml");
    return Json((*crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
  }();
  return *Schema::parse(json);
}

bool ends_otherwise(const Schema& weaker, const TrainJobCase& one, const std::vector<Problem>& problems) {
  try {
    return validate_by(weaker, one.job) != problems;
  } catch (const Json::exception&) {
    return true;  // a rule looked for a field that is no longer required
  }
}

// Every limit of the CRD decides a case: with one of them taken away, some case ends in another way.
TEST(ValidateCases, need_every_limit_and_rule_of_the_crd) {
  // They bound the cost of rules; the pattern allows one word, which is as long, and only the operator writes the
  // status.
  const std::set<std::string> kOnlyForCost = {"spec.trainer.numProcPerNode maxLength", "status.reason maxLength"};
  const std::vector<std::vector<Problem>> problems = problems_of_all();
  std::vector<Limit> limits;
  find_limits(
      trainjob_schema(), "", [](Schema& s) -> Schema& { return s; }, limits);
  EXPECT_GT(limits.size(), 100U);
  for (const Limit& limit : limits) {
    if (kOnlyForCost.count(limit.name) > 0) continue;
    Schema weaker = fresh_schema();
    limit.remove(weaker);
    bool is_noticed = false;
    for (size_t i = 0; i < problems.size() && !is_noticed; ++i) {
      is_noticed = ends_otherwise(weaker, all_cases()[i], problems[i]);
    }
    EXPECT_TRUE(is_noticed) << limit.name << " has no case";
  }
}

TEST(Validate, accepts_the_example) {
  std::ifstream file(LOCKSTEP_API_TESTS "/../../../manifests/examples/trainjob.yaml");
  std::ostringstream text;
  text << file.rdbuf();
  const auto documents = parse_yaml_documents(text.str(), "trainjob.yaml");
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  ASSERT_EQ(documents->size(), 3U);
  EXPECT_EQ(shown(validate(Json(documents->back()))), "");
}

Json base_job() {
  return Json::parse(R"({"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {"name": "a"},
                         "spec": {"trainer": {"image": "i"}}})");
}

TEST(Validate, refuses_what_is_no_object) {
  for (const Json& value : {Json(), Json::array(), Json("TrainJob"), Json(1)}) {
    const auto problems = validate(value);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_THAT(problems[0].message, HasSubstr("a TrainJob is an object"));
  }
}

TEST(Validate, takes_null_as_absent) {
  Json job = base_job();
  job["spec"]["elastic"] = nullptr;
  job["spec"]["trainer"]["numNodes"] = nullptr;
  EXPECT_EQ(shown(validate(job)), "");
  job["spec"]["trainer"]["args"] = Json::array({nullptr});
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"spec.trainer.args[0]"}));
}

TEST(Validate, accepts_a_generated_name) {
  Json job = base_job();
  job["metadata"] = {{"generateName", "a-"}};
  EXPECT_EQ(shown(validate(job)), "");
}

TEST(Validate, wants_metadata_of_the_right_types) {
  Json job = base_job();
  job["metadata"] = "a";
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata"}));
  job["metadata"] = Json::object();
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata.name"}));
  job["metadata"] = {{"name", nullptr}};
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata.name"}));
  job["metadata"] = {{"name", 5}};
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata.name"}));
  job["metadata"] = {{"name", "a"}, {"labels", {{"x", 1}}}, {"annotations", Json::array()}};
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata.labels.x", "metadata.annotations"}));
  job.erase("metadata");
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadata"}));
}

TEST(Validate, knows_metadata_from_what_only_begins_like_it) {
  Json job = base_job();
  job["metadatas"] = Json::object();
  EXPECT_EQ(fields_of(validate(job)), (std::multiset<std::string>{"metadatas"}));
}

TEST(Validate, shows_no_more_of_a_value_than_a_line) {
  Json job = base_job();
  job["spec"]["trainer"]["launcher"] = std::string(10'000, 'x');
  const auto problems = validate(job);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_LT(problems[0].message.size(), 200U);
}

}  // namespace
}  // namespace lockstep::api
