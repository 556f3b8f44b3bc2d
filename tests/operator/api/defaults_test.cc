#include "operator/api/defaults.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "operator/api/trainjob.h"
#include "operator/api/yaml.h"

namespace lockstep::api {
namespace {

Json read(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_API_TESTS) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  const auto document = parse_yaml(text.str(), name);
  EXPECT_TRUE(document.ok()) << (document.ok() ? "" : document.error().message);
  return document.ok() ? Json(*document) : Json();
}

// tests/cluster/test_crd.py asks a real API server for the same.
TEST(Defaults, are_those_of_the_golden_file) {
  Json job = read("defaults/written.yaml");
  apply_trainjob_defaults(job);
  EXPECT_EQ(job["spec"], read("defaults/stored.yaml")["spec"]);
}

TEST(Defaults, of_the_schema_are_those_of_the_cpp_types) {
  const Json written = read("defaults/written.yaml");
  Json stored = written;
  apply_trainjob_defaults(stored);
  const auto a = trainjob_from_json(written);
  const auto b = trainjob_from_json(stored);
  ASSERT_TRUE(a.ok()) << a.error().message;
  ASSERT_TRUE(b.ok()) << b.error().message;
  EXPECT_TRUE(a->spec == b->spec);
}

TEST(Defaults, are_whole_after_one_pass) {
  Json once = read("defaults/written.yaml");
  apply_trainjob_defaults(once);
  Json twice = once;
  apply_trainjob_defaults(twice);
  EXPECT_EQ(once, twice);
}

TEST(Defaults, leave_what_is_no_trainjob_alone) {
  for (const Json& value : {Json(), Json::array(), Json("x"), Json{{"spec", 7}}, Json{{"spec", {{"trainer", "x"}}}}}) {
    Json same = value;
    apply_trainjob_defaults(same);
    EXPECT_EQ(trainjob_from_json(same).ok(), false);
  }
}

}  // namespace
}  // namespace lockstep::api
