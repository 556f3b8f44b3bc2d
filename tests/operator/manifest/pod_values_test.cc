#include "operator/manifest/pod_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "operator/api/label_text.h"
#include "operator/api/quantity.h"
#include "operator/manifest/pod_fields.h"

namespace lockstep::manifest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::vector<std::string> problems(const api::TrainJobSpec& spec) {
  EXPECT_THAT(check_pod_fields(spec), IsEmpty());
  std::vector<std::string> lines;
  for (const api::Problem& problem : check_pod_values(spec)) lines.push_back(problem.field + ": " + problem.message);
  return lines;
}

std::vector<std::string> resource_problems(const char* per_node, const char* of_template = "{}") {
  api::TrainJobSpec spec;
  spec.trainer.resources_per_node = Json::parse(per_node);
  spec.trainer.pod_template = {{"spec", {{"containers", {{{"name", "sidecar"}, {"image", "i"}}}}}}};
  spec.trainer.pod_template["spec"]["containers"].push_back(
      {{"name", "trainer"}, {"resources", Json::parse(of_template)}});
  return problems(spec);
}

TEST(PodValues, a_gpu_is_asked_for_in_whole_numbers_and_by_its_limit) {
  EXPECT_THAT(resource_problems(R"({"limits": {"nvidia.com/gpu": 2}})"), IsEmpty());
  EXPECT_THAT(resource_problems(R"({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2000m"}})"),
              IsEmpty());
  EXPECT_THAT(resource_problems(R"({"limits": {"nvidia.com/gpu": "0.5"}})"),
              ElementsAre("spec.trainer.resourcesPerNode.limits.nvidia.com/gpu: is \"0.5\", expected a whole number: "
                          "nvidia.com/gpu is not divided"));
  EXPECT_THAT(resource_problems(R"({"requests": {"nvidia.com/gpu": 2}})"),
              ElementsAre("spec.trainer.resourcesPerNode.requests.nvidia.com/gpu: has no limit: write limits: "
                          "{nvidia.com/gpu: 2}; the request follows from it"));
  EXPECT_THAT(
      resource_problems(R"({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}})"),
      ElementsAre(StartsWith("spec.trainer.resourcesPerNode.requests.nvidia.com/gpu: is 1, expected 2 as in limits")));
  EXPECT_THAT(resource_problems(R"({"limits": {"gpu": 2}})"), ElementsAre(HasSubstr("did you mean nvidia.com/gpu?")));
}

TEST(PodValues, requests_are_not_above_limits) {
  EXPECT_THAT(resource_problems(R"({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}})"), IsEmpty());
  EXPECT_THAT(resource_problems(R"({"requests": {"cpu": "4"}})"), IsEmpty());
  EXPECT_THAT(
      resource_problems(R"({"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}})"),
      ElementsAre("spec.trainer.resourcesPerNode.requests.memory: is \"1Gi\", above the limit of \"1G\"; lower the "
                  "request or raise the limit"));
}

TEST(PodValues, resources_of_the_field_and_of_the_template_are_looked_at_together) {
  EXPECT_THAT(
      resource_problems(R"({"limits": {"cpu": 2}})", R"({"requests": {"cpu": 4}})"),
      ElementsAre(StartsWith("spec.trainer.podTemplate.spec.containers[1].resources.requests.cpu: is 4, above")));
  EXPECT_THAT(resource_problems(R"({"requests": {"cpu": 1}})", R"({"limits": {"cpu": 1}, "requests": {"cpu": 4}})"),
              IsEmpty());
}

// One rule of each kind; tests/cluster/test_validate.py has all of them, and asks a real API server.
TEST(PodValues, a_rule_is_applied_wherever_its_type_occurs) {
  api::TrainJobSpec spec;
  spec.trainer.env = {
      Json::parse(R"({"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})")};
  spec.checkpoint = api::Checkpoint{.volume = Json::parse(R"({"emptyDir": {}, "hostPath": {"path": "/x"}})")};
  spec.trainer.pod_template = Json::parse(R"({
    "metadata": {"labels": {"experiment": "lr=3e-4,wd=0.1"}},
    "spec": {
      "tolerations": [{"key": "a", "operator": "Exists", "value": "b"}],
      "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b c"}}}]}},
      "initContainers": [{"name": "trainer", "image": "i"}]}})");
  EXPECT_THAT(
      problems(spec),
      ElementsAre(StartsWith("spec.trainer.podTemplate.metadata.labels.experiment: is \"lr=3e-4,wd=0.1\", expected"),
                  StartsWith("spec.trainer.podTemplate.spec.initContainers[0].name: is \"trainer\", the container"),
                  HasSubstr(".labelSelector.matchLabels.a: is \"b c\", expected at most 63"),
                  StartsWith("spec.trainer.podTemplate.spec.tolerations[0].value: is \"b\", and operator Exists"),
                  StartsWith("spec.trainer.env[0].valueFrom: is given beside value"),
                  StartsWith("spec.checkpoint.volume.hostPath: is a second source beside emptyDir")));
}

TEST(Quantity, equal_ones_give_equal_numbers) {
  const std::vector<std::vector<Json>> groups = {
      {"1", 1, 1.0, "1000m", "1e0", "1E0", "1.0", "+1", "1000000u", "0.001k"},
      {"0.1", 0.1, "100m", "1e-1"},
      {"1Gi", "1024Mi", "1073741824", "1048576Ki"},
      {"2E", "2e18", "2000P"},
      {"-1", -1, "-1000m"},
      {"1n", "0.1n", "1e-10"}};
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const Json& one : groups[i]) {
      ASSERT_TRUE(api::nano_units(one).has_value()) << one;
      EXPECT_EQ(*api::nano_units(one), *api::nano_units(groups[i].front())) << one;
      if (i == 0) continue;
      EXPECT_NE(*api::nano_units(one), *api::nano_units(groups[i - 1].front())) << one;
    }
  }
  EXPECT_TRUE(api::nano_units("1e999999999999999999999").has_value());
  EXPECT_FALSE(api::nano_units("1Gb").has_value());
  EXPECT_FALSE(api::nano_units(Json::array()).has_value());
}

TEST(LabelText, is_as_kubernetes_has_it) {
  const std::string longest(63, 'a');
  for (const std::string& value : {std::string(), std::string("a"), std::string("A_b.c-9"), longest}) {
    EXPECT_EQ(api::label_value_expected(value), "") << value;
  }
  for (const std::string& value :
       {longest + "a", std::string("-a"), std::string("a."), std::string("a b"), std::string("é")}) {
    EXPECT_NE(api::label_value_expected(value), "") << value;
  }
  for (const char* name : {"a", "a/b", "a.b-c/D_e.f"}) EXPECT_EQ(api::qualified_name_expected(name), "") << name;
  for (const char* name : {"", "/", "a/", "/a", "A/b", "a/b/c", "a../b", "a b"}) {
    EXPECT_NE(api::qualified_name_expected(name), "") << name;
  }
  EXPECT_EQ(api::annotation_fault("Example.COM/Name"), "");
  EXPECT_THAT(api::annotation_fault("a b"), StartsWith("an annotation's name is"));
  EXPECT_EQ(api::dns_label_expected("a-9"), "");
  for (const char* name : {"", "a.b", "A", "-a", "a-"}) EXPECT_NE(api::dns_label_expected(name), "") << name;
  EXPECT_EQ(api::dns_subdomain_expected("a.b-c"), "");
  EXPECT_NE(api::dns_subdomain_expected("a..b"), "");
}

}  // namespace
}  // namespace lockstep::manifest
