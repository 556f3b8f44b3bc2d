// What the API server says of a pod, told in the fields of the TrainJob. The words are those of a real API server.
#include "operator/train/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/train/desired_pod.h"
#include "operator/train/observed.h"

namespace lockstep::train {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

class Refusal {
 public:
  explicit Refusal(const Json& trainer, const Json& more = Json::object()) {
    Json spec = {{"trainer", {{"image", "i"}, {"args", Json::array({"run", "sasrec"})}}}};
    spec["trainer"].update(trainer);
    spec.update(more);
    const Json job = {{"metadata", {{"name", "job"}, {"namespace", "ns"}, {"uid", "u"}}}, {"spec", spec}};
    const Observed observed = observe({.job = api::trainjob_from_json(job).value()}, 1000);
    spec_ = observed.job.spec;
    Result<Json> pod = desired_pod(observed, {});
    EXPECT_TRUE(pod.ok()) << (pod.ok() ? "" : pod.error().message);
    pod_ = *pod;
  }

  [[nodiscard]] std::string told(const std::string& words) const { return in_words_of_the_spec(words, spec_, pod_); }

  // The path of the trainer container's variable of this name in the pod.
  [[nodiscard]] std::string path_of_variable(const std::string& name) const {
    for (const Json& container : pod_["spec"]["containers"]) {
      if (container["name"] != "trainer") continue;
      for (size_t i = 0; i < container["env"].size(); ++i) {
        if (container["env"][i]["name"] == name) return trainer() + ".env[" + std::to_string(i) + "]";
      }
    }
    return "";
  }
  [[nodiscard]] std::string trainer() const {
    const Json& containers = pod_["spec"]["containers"];
    for (size_t i = 0; i < containers.size(); ++i) {
      if (containers[i]["name"] == "trainer") return "spec.containers[" + std::to_string(i) + "]";
    }
    return "";
  }
  [[nodiscard]] const Json& pod() const { return pod_; }

 private:
  api::TrainJobSpec spec_;
  Json pod_;
};

const Json kSide = {{"name", "side"}, {"image", "s"}};

TEST(Refusal, of_fields_of_the_trainer_names_them) {
  const Refusal job(Json{{"command", Json::array({"c"})}});
  const std::string trainer = job.trainer();
  EXPECT_EQ(job.told(trainer + ".image: Required value"), "spec.trainer.image: Required value");
  EXPECT_EQ(job.told(trainer + ".command[0]: bad"), "spec.trainer.command[0]: bad");
  EXPECT_EQ(job.told(trainer + ".args[1]: bad"), "spec.trainer.args[1]: bad");
  EXPECT_EQ(job.told(trainer + ".resources.limits: Required value: Limit must be set for non overcommitable resources"),
            "spec.trainer.resourcesPerNode.limits: Required value: Limit must be set for non overcommitable resources");
  EXPECT_EQ(job.told("[" + trainer + ".image: a, metadata.name: b]"), "[spec.trainer.image: a, metadata.name: b]");
}

TEST(Refusal, of_a_variable_names_the_list_that_has_it) {
  const Json in_template = {{"name", "trainer"},
                            {"env", Json::array({{{"name", "FIRST"}}, {{"name", "BOTH"}}, {{"name", "LAST"}}})}};
  const Refusal job(Json{{"env", Json::array({{{"name", "BOTH"}}, {{"name", "MINE"}}})},
                         {"podTemplate", {{"spec", {{"containers", Json::array({kSide, in_template})}}}}}});
  const std::string of_template = "spec.trainer.podTemplate.spec.containers[1]";
  EXPECT_EQ(job.told(job.path_of_variable("MINE") + ".valueFrom: bad"), "spec.trainer.env[1].valueFrom: bad");
  EXPECT_EQ(job.told(job.path_of_variable("BOTH") + ".name: bad"), "spec.trainer.env[0].name: bad");
  EXPECT_EQ(job.told(job.path_of_variable("FIRST") + ".name: bad"), of_template + ".env[0].name: bad");
  EXPECT_EQ(job.told(job.path_of_variable("LAST") + ".name: bad"), of_template + ".env[2].name: bad");
  EXPECT_THAT(job.told(job.path_of_variable("LOCKSTEP_TOKEN") + ".value: bad"), HasSubstr("the pod's spec.containers"));
  EXPECT_EQ(job.told(job.trainer() + ".env[99].name: bad"), "the pod's spec.containers[1].env[99].name: bad");
}

TEST(Refusal, of_what_the_template_says_names_its_place) {
  const Json in_template = {{"name", "trainer"},
                            {"resources", {{"limits", {{"memory", "x"}}}}},
                            {"volumeMounts", Json::array({{{"name", "data"}, {"mountPath", "/data"}}})}};
  const Refusal job(
      Json{{"resourcesPerNode", {{"limits", {{"cpu", 1}}}}},
           {"podTemplate",
            {{"spec",
              {{"containers", Json::array({in_template, kSide})}, {"tolerations", Json::array({{{"key", "a"}}})}}}}}});
  const std::string path = "spec.trainer.podTemplate.spec.";
  EXPECT_EQ(job.told("spec.tolerations[0].operator: Unsupported value: \"Sometimes\""),
            path + "tolerations[0].operator: Unsupported value: \"Sometimes\"");
  EXPECT_EQ(job.told("spec.containers[1].image: Required value"), path + "containers[1].image: Required value");
  EXPECT_EQ(job.told("spec.containers[0].volumeMounts[0].name: Not found: \"data\""),
            path + "containers[0].volumeMounts[0].name: Not found: \"data\"");
  EXPECT_EQ(job.told("spec.containers[0].resources.limits[cpu]: bad"),
            "spec.trainer.resourcesPerNode.limits[cpu]: bad");
  EXPECT_EQ(job.told("spec.containers[0].resources.limits[memory]: bad"),
            path + "containers[0].resources.limits[memory]: bad");
  EXPECT_EQ(job.told("strict decoding error: unknown field \"spec.nodeSelektor\""),
            "strict decoding error: unknown field \"" + path + "nodeSelektor\"");
  EXPECT_EQ(job.told("json: cannot unmarshal string into Go struct field "
                     "PodSecurityContext.spec.securityContext.runAsUser of type int64"),
            "json: cannot unmarshal string into field " + path + "securityContext.runAsUser of type int64");
  EXPECT_EQ(job.told("metadata.labels[a/b]: Invalid: a pod.spec.y and inspec.z stay"),
            "spec.trainer.podTemplate.metadata.labels[a/b]: Invalid: a pod.spec.y and inspec.z stay");
  EXPECT_EQ(job.told(""), "");
}

TEST(Refusal, of_what_others_have_added_does_not_name_a_field) {
  const Refusal job(Json::object());
  EXPECT_EQ(job.told("spec.containers[1].image: Required value"), "the pod's spec.containers[1].image: Required value");
  EXPECT_EQ(job.told("spec.initContainers[0].name: bad"), "the pod's spec.initContainers[0].name: bad");
}

TEST(Refusal, of_the_checkpoint_volume_names_spec_checkpoint) {
  const Refusal job(Json::object(), {{"checkpoint", {{"volume", {{"nfs", {{"server", ""}, {"path", "/p"}}}}}}}});
  const Json& volumes = job.pod()["spec"]["volumes"];
  const std::string last = std::to_string(volumes.size() - 1);
  EXPECT_EQ(job.told("spec.volumes[" + last + "].nfs.server: Required value"),
            "spec.checkpoint.volume.nfs.server: Required value");
  const std::string mounts = job.trainer() + ".volumeMounts[" + last + "].mountPath";
  EXPECT_EQ(job.told(mounts + ": must be unique"), "spec.checkpoint.mountPath: must be unique");
}

TEST(Refusal, of_a_priority_names_the_field_that_sets_it) {
  const Refusal job(Json::object(), {{"scheduling", {{"priorityClassName", "high"}}}});
  EXPECT_EQ(job.told("spec.priorityClassName: bad"), "spec.scheduling.priorityClassName: bad");
}

TEST(Refusal, of_a_value_that_was_not_sent_says_who_may_have_set_it) {
  const Refusal job(Json{{"resourcesPerNode", {{"requests", {{"cpu", "0.7"}}}}}});
  const std::string path = job.trainer() + ".resources.requests: Invalid value: \"";
  EXPECT_THAT(
      job.told(path + "700m\": must be less than or equal to cpu limit of 500m"),
      EndsWith("; 500m is not in the TrainJob: a LimitRange of the namespace, or a webhook or policy, has set it"));
  EXPECT_THAT(job.told(path + "800m\": must be less than or equal to cpu limit of 500m"),
              HasSubstr("800m and 500m are not in the TrainJob"));
  EXPECT_THAT(job.told("spec.nodeName: Invalid value: \"i\": bad"), Not(HasSubstr("not in the TrainJob")));
  const Refusal both(Json{{"resourcesPerNode", {{"requests", {{"cpu", 2}}}, {"limits", {{"cpu", "1000m"}}}}}});
  EXPECT_THAT(both.told(path + "2\": must be less than or equal to cpu limit of 1"),
              Not(HasSubstr("not in the TrainJob")));
}

TEST(Refusal, of_shared_memory_says_whose_volume_it_is) {
  const std::string words = ".volumeMounts[1].mountPath: Invalid value: \"/dev/shm\": must be unique";
  const Refusal job(Json::object());
  EXPECT_THAT(job.told(job.trainer() + words), EndsWith("set spec.trainer.sharedMemory: None"));
  const Refusal without(Json{{"sharedMemory", "None"}});
  EXPECT_FALSE(without.pod()["spec"].contains("volumes"));
  EXPECT_THAT(without.told(without.trainer() + words), Not(HasSubstr("spec.trainer.sharedMemory")));
}

TEST(Refusal, of_a_mount_on_shared_memory_with_a_slash_at_its_end_does_not_come_up) {
  const Json in_template = {{"name", "trainer"},
                            {"volumeMounts", Json::array({{{"name", "data"}, {"mountPath", "/dev/shm/"}}})}};
  const Refusal job(Json{{"podTemplate", {{"spec", {{"containers", Json::array({in_template})}}}}}});
  EXPECT_EQ(job.pod()["spec"]["containers"][0]["volumeMounts"].size(), 1U);
}

}  // namespace
}  // namespace lockstep::train
