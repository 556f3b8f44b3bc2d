#include "operator/train/pod_group.h"

#include <utility>

#include "operator/train/kueue_workload.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

using api::Gang;

constexpr const char* kDefaultScheduler = "default-scheduler";
constexpr const char* kVolcanoScheduler = "volcano";
// Of scheduler-plugins' chart. It may also be built into a scheduler of another name, so the template may say one.
constexpr const char* kCoschedulingScheduler = "scheduler-plugins-scheduler";

// The first part of a UID has eight digits.
std::string name_prefix(const api::ObjectMeta& job) {
  return job.name + "-" + job.uid.substr(0, job.uid.find('-')) + "-";
}

Json native_spec(const api::TrainJobSpec& spec, const std::string& api_version, int size) {
  Json group{{"schedulingPolicy", {{"gang", {{"minCount", size}}}}}};
  if (!spec.scheduling.topology.empty()) {
    group["schedulingConstraints"]["topology"] = Json::array({{{"key", spec.scheduling.topology}}});
  }
  // Kubernetes 1.36 drops this and the priority class where its feature gate WorkloadAwarePreemption is off.
  if (is_native_alpha(api_version)) {
    group["disruptionMode"] = is_disrupted_whole(spec) ? "PodGroup" : "Pod";
  } else {
    group["disruptionMode"][is_disrupted_whole(spec) ? "all" : "single"] = Json::object();
  }
  if (!spec.scheduling.priority_class_name.empty()) group["priorityClassName"] = spec.scheduling.priority_class_name;
  return group;
}

Json volcano_spec(const api::TrainJobSpec& spec, int size) {
  Json group{{"minMember", size}};
  if (!spec.scheduling.queue.empty()) group["queue"] = spec.scheduling.queue;
  if (!spec.scheduling.priority_class_name.empty()) group["priorityClassName"] = spec.scheduling.priority_class_name;
  return group;
}

Json group_spec(const api::TrainJobSpec& spec, const std::string& api_version, int size) {
  switch (spec.scheduling.gang) {
    case Gang::kNative:
      return native_spec(spec, api_version, size);
    case Gang::kVolcano:
      return volcano_spec(spec, size);
    case Gang::kCoscheduling:
      return {{"minMember", size}};
    case Gang::kNone:
      break;
  }
  return Json::object();
}

std::string in_template(std::string_view path) { return std::string(kTemplatePath) + "." + std::string(path); }

Status check_priority_class(const api::TrainJobSpec& spec) {
  const std::string given = text_field(spec.trainer.pod_template, {"spec", "priorityClassName"});
  const std::string& wanted = spec.scheduling.priority_class_name;
  if (given.empty() || given == wanted || (wanted.empty() && !wants_gang(spec))) return {};
  return invalid(in_template("spec.priorityClassName"),
                 "is \"" + given + "\", but spec.scheduling.priorityClassName is " +
                     (wanted.empty() ? "not set" : "\"" + wanted + "\"") +
                     ", which the gang and its pods have in common; say it there, and remove it here");
}

Status check_scheduler(const api::TrainJobSpec& spec) {
  const std::string given = text_field(spec.trainer.pod_template, {"spec", "schedulerName"});
  const Gang gang = spec.scheduling.gang;
  if (given.empty() || gang == Gang::kNone || gang == Gang::kCoscheduling) return {};
  const std::string wanted = gang == Gang::kVolcano ? kVolcanoScheduler : kDefaultScheduler;
  if (given == wanted) return {};
  return invalid(in_template("spec.schedulerName"), "is \"" + given + "\", but spec.scheduling.gang is " +
                                                        api::to_string(gang) + ", whose scheduler is \"" + wanted +
                                                        "\"; remove it, or choose another gang");
}

Status check_membership(const api::TrainJobSpec& spec) {
  const Json& pod_template = spec.trainer.pod_template;
  const std::string instead = "but the operator writes it for spec.scheduling.gang; remove it";
  if (field(pod_template, {"spec", "schedulingGroup"}) != nullptr) {
    return invalid(in_template("spec.schedulingGroup"), "is set, " + instead);
  }
  if (field(pod_template, {"metadata", "annotations", kVolcanoGroupAnnotation}) != nullptr) {
    return invalid(in_template("metadata.annotations[") + std::string(kVolcanoGroupAnnotation) + "]",
                   "is set, " + instead);
  }
  if (field(pod_template, {"metadata", "labels", kCoschedulingGroupLabel}) != nullptr) {
    return invalid(in_template("metadata.labels[") + std::string(kCoschedulingGroupLabel) + "]", "is set, " + instead);
  }
  return {};
}

}  // namespace

PriorityClassName priority_class_of(const api::TrainJobSpec& spec) {
  const std::string& name = spec.scheduling.priority_class_name;
  if (!name.empty()) return {name, "spec.scheduling.priorityClassName"};
  return {text_field(spec.trainer.pod_template, {"spec", "priorityClassName"}), in_template("spec.priorityClassName")};
}

std::string no_priority_class(std::string_view kind, const std::string& name, const std::string& where) {
  return "there is no " + std::string(kind) + " \"" + name + "\" (" + where + "); create it, or name another one";
}

bool wants_gang(const api::TrainJobSpec& spec) { return spec.scheduling.gang != Gang::kNone; }

const kube::Versions& pod_group_versions(const api::TrainJobSpec& spec) {
  static const kube::Versions none;
  switch (spec.scheduling.gang) {
    case Gang::kNative:
      return kube::kNativePodGroups;
    case Gang::kVolcano:
      return kube::kVolcanoPodGroups;
    case Gang::kCoscheduling:
      return kube::kCoschedulingPodGroups;
    case Gang::kNone:
      break;
  }
  return none;
}

bool is_native_alpha(const std::string& api_version) {
  return api_version == kube::kNativePodGroups.back().api_version();
}

std::string pod_group_name(const api::ObjectMeta& job, int number) { return name_prefix(job) + std::to_string(number); }

std::optional<int> pod_group_number(const api::ObjectMeta& job, std::string_view name) {
  const std::string prefix = name_prefix(job);
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  const std::optional<int64_t> number = parse_number(name.substr(prefix.size()));
  constexpr int64_t kMost = 1'000'000'000;
  if (!number || *number < 0 || *number > kMost) return std::nullopt;
  return static_cast<int>(*number);
}

bool is_disrupted_whole(const api::TrainJobSpec& spec) {
  return spec.trainer.launcher != api::Launcher::kLockstep || !spec.elastic;
}

Json desired_pod_group(const api::TrainJob& job, const std::string& api_version, int number, int size) {
  Json spec = group_spec(job.spec, api_version, size);
  // Kueue, which comes first, is asked for the topology in its place: two would place the pods against each other.
  if (job.meta.labels.count(std::string(kQueueLabel)) > 0) spec.erase("schedulingConstraints");
  return {{"apiVersion", api_version},
          {"kind", pod_group_versions(job.spec).front().kind},
          {"metadata", owned_metadata(job.meta, pod_group_name(job.meta, number))},
          {"spec", std::move(spec)}};
}

bool has_lost_topology(const api::TrainJob& job, const Json& group) {
  return job.spec.scheduling.gang == Gang::kNative && !job.spec.scheduling.topology.empty() &&
         field(group, {"spec", "schedulingConstraints"}) == nullptr;
}

int pod_group_size(const Json& group) {
  const std::optional<int64_t> native = number_field(group, {"spec", "schedulingPolicy", "gang", "minCount"});
  return static_cast<int>(native.value_or(number_field(group, {"spec", "minMember"}).value_or(0)));
}

void join_pod_group(const api::TrainJob& job, int number, Json& pod) {
  const std::string name = pod_group_name(job.meta, number);
  switch (job.spec.scheduling.gang) {
    case Gang::kNative:
      pod["spec"]["schedulingGroup"] = {{"podGroupName", name}};
      return;
    case Gang::kVolcano:
      pod["metadata"]["annotations"][std::string(kVolcanoGroupAnnotation)] = name;
      pod["spec"]["schedulerName"] = kVolcanoScheduler;
      return;
    case Gang::kCoscheduling:
      pod["metadata"]["labels"][std::string(kCoschedulingGroupLabel)] = name;
      if (!pod["spec"].contains("schedulerName")) pod["spec"]["schedulerName"] = kCoschedulingScheduler;
      return;
    case Gang::kNone:
      return;
  }
}

std::string pod_group_of(const Json& pod) {
  std::string name = text_field(pod, {"spec", "schedulingGroup", "podGroupName"});
  if (name.empty()) name = text_field(pod, {"metadata", "annotations", kVolcanoGroupAnnotation});
  if (name.empty()) name = text_field(pod, {"metadata", "labels", kCoschedulingGroupLabel});
  return name;
}

Status check_scheduling(const api::TrainJob& job) {
  const api::TrainJobSpec& spec = job.spec;
  if (!spec.scheduling.topology.empty() && spec.scheduling.gang == Gang::kNone &&
      job.meta.labels.count(std::string(kQueueLabel)) == 0) {
    return invalid("spec.scheduling.topology",
                   "is \"" + spec.scheduling.topology +
                       "\", but nothing would use it: a topology needs gang Native or a queue of Kueue "
                       "(label " +
                       std::string(kQueueLabel) + "); choose one of the two, or remove it");
  }
  TRY(check_topology_slices(spec));
  TRY(check_priority_class(spec));
  if (!wants_gang(spec)) return {};
  TRY(check_scheduler(spec));
  return check_membership(spec);
}

}  // namespace lockstep::train
