#include "operator/manifest/pod_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::manifest {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> problems(const char* pod_spec) {
  api::TrainJobSpec spec;
  spec.trainer.pod_template = {{"spec", Json::parse(pod_spec)}};
  std::vector<std::string> lines;
  const std::string path = "spec.trainer.podTemplate.spec.";
  for (const api::Problem& problem : check_pod_fields(spec)) {
    EXPECT_EQ(problem.field.substr(0, path.size()), path);
    lines.push_back(problem.field.substr(path.size()) + ": " + problem.message);
  }
  return lines;
}

TEST(PodFields, a_template_as_people_write_it_is_right) {
  EXPECT_THAT(problems(R"({
    "nodeSelector": {"a": "b"}, "priorityClassName": "high", "runtimeClassName": null,
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 30}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
      {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1.5Gi"}}, {"name": "s", "secret": {"defaultMode": 256}}],
    "initContainers": [{"name": "get", "image": "x"}],
    "containers": [
      {"name": "trainer", "ports": [{"containerPort": 80, "protocol": ""}],
       "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5},
       "resources": {"limits": {"cpu": 2, "memory": "1e9", "x/y": "500m"}},
       "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "lockstep-shm", "mountPath": "/x"}]},
      {"name": "sidecar", "image": "x"}]})"),
              IsEmpty());
}

TEST(PodFields, what_is_wrong_is_named_by_its_path) {
  EXPECT_THAT(problems(R"({"nodeSelektor": {}})"),
              ElementsAre("nodeSelektor: is not a field of a PodSpec of Kubernetes 1.37; did you mean nodeSelector?"));
  EXPECT_THAT(
      problems(R"({"nodeSelector": {"a": true}})"),
      ElementsAre("nodeSelector.a: is true, expected a string (in quotes, where it looks like something else)"));
  EXPECT_THAT(problems(R"({"nodeSelector": []})"), ElementsAre("nodeSelector: is a list, expected names with values"));
  EXPECT_THAT(problems(R"({"hostNetwork": "yes"})"), ElementsAre("hostNetwork: is \"yes\", expected true or false"));
  EXPECT_THAT(problems(R"({"priority": 1.5})"), ElementsAre("priority: is 1.5, expected a whole number"));
  EXPECT_THAT(problems(R"({"volumes": {}})"), ElementsAre("volumes: is an object, expected a list"));
  EXPECT_THAT(problems(R"({"volumes": [3]})"), ElementsAre("volumes[0]: is 3, expected an object"));
  EXPECT_THAT(problems(R"({"volumes": [{"emptyDir": {}}]})"),
              ElementsAre("volumes[0].name: is missing, and has no default"));
  EXPECT_THAT(
      problems(R"({"tolerations": [{"operator": "Exist"}]})"),
      ElementsAre(
          "tolerations[0].operator: is \"Exist\", expected one of Equal, Exists, Gt, Lt; did you mean Exists?"));
}

TEST(PodFields, containers_need_an_image_and_volumes_that_are_there) {
  EXPECT_THAT(problems(R"({"containers": [{"name": "sidecar"}], "initContainers": [{"name": "trainer"}]})"),
              ElementsAre("containers[0].image: is missing, and has no default",
                          "initContainers[0].image: is missing, and has no default"));
  EXPECT_THAT(problems(R"({"volumes": [{"name": "data"}], "containers": [{"name": "trainer", "volumeMounts": [
                {"name": "dota", "mountPath": "/x"}]}]})"),
              ElementsAre("containers[0].volumeMounts[0].name: is \"dota\", which is not among the volumes of the "
                          "template; did you mean \"data\"?"));
}

TEST(PodFields, quantities_are_those_of_kubernetes) {
  const auto is_right = [](const Json& quantity) {
    api::TrainJobSpec spec;
    spec.trainer.resources_per_node = {{"limits", {{"cpu", quantity}}}};
    return check_pod_fields(spec).empty();
  };
  for (const char* text :
       {"1", "0.5", ".5", "5.", "100m", "1Gi", "1.5Gi", "1e3", "1E3", "1e-3", "+1", "-1", "1E", "1k", "1n"}) {
    EXPECT_TRUE(is_right(text)) << text;
  }
  for (const char* text : {"", "Gi", "1Gb", "1 Gi", "1gi", "1.5.5", "1K", "e3", "1e", "0x1", ".", "--1", "1e+"}) {
    EXPECT_FALSE(is_right(text)) << text;
  }
  EXPECT_TRUE(is_right(2));
  EXPECT_TRUE(is_right(0.5));
  EXPECT_FALSE(is_right(true));
}

TEST(PodFields, env_resources_and_the_checkpoint_volume_are_looked_at_too) {
  api::TrainJobSpec spec;
  spec.trainer.env = {Json::parse(R"({"name": "A", "valueFrom": {"secretKeyRef": {"nam": "s", "key": "k"}}})")};
  spec.checkpoint = api::Checkpoint{.volume = Json::parse(R"({"persistentVolumeClaim": {"claim": "x"}})")};
  std::vector<std::string> fields;
  for (const api::Problem& problem : check_pod_fields(spec)) fields.push_back(problem.field);
  EXPECT_THAT(fields, ElementsAre("spec.trainer.env[0].valueFrom.secretKeyRef.nam",
                                  "spec.checkpoint.volume.persistentVolumeClaim.claim",
                                  "spec.checkpoint.volume.persistentVolumeClaim.claimName"));
}

TEST(PodFields, a_template_of_another_type_is_left_to_the_operators_check) {
  api::TrainJobSpec spec;
  for (const Json& value : {Json::array(), Json("x"), Json(nullptr)}) {
    spec.trainer.pod_template = value;
    EXPECT_THAT(check_pod_fields(spec), IsEmpty());
  }
}

}  // namespace
}  // namespace lockstep::manifest
