#include "operator/train/kueue_reader.h"

#include <utility>

#include "operator/train/kueue.h"
#include "operator/train/pod_group.h"
#include "operator/train/trim.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

WorkloadPriority class_of(std::string_view group, const std::string& name, const Json& object) {
  return {.group = std::string(group), .name = name, .value = number_field(object, {"value"}).value_or(0)};
}

// A class that does not exist, or that we may not read, becomes WorkloadPriority::problem; other errors are retried.
Result<WorkloadPriority> problem_of(const std::string& kind, const std::string& name, const std::string& where,
                                    const Error& error) {
  if (error.code == ErrorCode::kNotFound) return WorkloadPriority{.problem = no_priority_class(kind, name, where)};
  if (error.code == ErrorCode::kForbidden) {
    return WorkloadPriority{.problem = kind + " \"" + name + "\" (" + where + ") cannot be read: " + error.message};
  }
  return error;
}

}  // namespace

Result<std::optional<KueueView>> KueueReader::read(const api::TrainJob& job, KueueMemory& memory,
                                                   api::UnixSeconds now) const {
  KueueView view;
  const std::string_view label = label_of(job.meta, kQueueLabel).empty() ? kPrebuiltWorkloadLabel : kQueueLabel;
  view.why_absent = "the API server has no Workloads of " + std::string(kKueueGroup) + " in " +
                    joined(kube::kKueueWorkloads, " or ", &kube::Resource::version) +
                    "; install Kueue, or remove the label " + std::string(label);
  if (workloads_ == nullptr) return std::optional(std::move(view));
  const control::OptionalInformer::Kind kind = workloads_->wanted();
  if (!kind.trouble.empty()) view.why_absent = "Kueue's Workloads cannot be read: " + kind.trouble;
  // A job with a queue says what the trouble is. Of another one it is not known whether it has a reservation.
  const bool is_unknown = kind.trouble.empty() ? !kind.is_known : !has_queue(job);
  if (is_unknown) return std::optional<KueueView>();
  if (!kind.cache) return std::optional(std::move(view));
  view.version = kind.resource->version;
  for (const control::ObjectPtr& object : kind.cache->find(job_index_value(job.meta.key()))) {
    view.workloads.push_back(workload_from_json(*object));
  }
  const std::string prebuilt = label_of(job.meta, kPrebuiltWorkloadLabel);
  if (!prebuilt.empty() && workload_of(job, view) == nullptr) {  // it does not have our label yet
    Result<Json> found = client_.get(*kind.resource, {.ns = job.meta.ns, .name = prebuilt});
    if (!found.ok() && found.error().code != ErrorCode::kNotFound) return found.error();
    if (found.ok()) view.workloads.push_back(workload_from_json(*std::move(found)));
  }
  const Workload* const workload = workload_of(job, view);
  const bool is_there = workload != nullptr;
  if (is_there && workload->has_admission) TRY(read_flavors(*workload, memory, now, view));
  const bool has_class = is_there && has_its_priority(job, *workload);
  const bool is_made_by_us = prebuilt.empty();
  if (has_queue(job) && !has_class && (is_made_by_us || is_there)) TRY(read_priority(job, memory, now, view));
  return std::optional(std::move(view));
}

Status KueueReader::read_flavors(const Workload& workload, KueueMemory& memory, api::UnixSeconds now,
                                 KueueView& view) const {
  // An evicted job may be admitted again with the same flavours, which may have been edited meanwhile.
  const api::Condition* const admitted = workload.conditions.find("Admitted");
  std::string admission =
      workload.meta.uid + "," + std::to_string(admitted == nullptr ? 0 : admitted->last_transition_time);
  for (const std::string& name : workload.flavors) admission.append(",").append(name);
  if (memory.admission != admission) {
    memory.admission = admission;
    memory.flavors.clear();
    memory.flavors_read_at = now;
  }
  const bool reads_again = memory.flavors_read_at + kReadAgainSeconds <= now;
  for (const std::string& name : workload.flavors) {
    const auto known = memory.flavors.find(name);
    if (known != memory.flavors.end() && (known->second || !reads_again)) continue;
    memory.flavors_read_at = now;
    Result<Json> found = client_.get(kube::kueue_resource_flavors(view.version), {.ns = "", .name = name});
    if (!found.ok() && found.error().code == ErrorCode::kForbidden) {
      view.flavor_problem = "ResourceFlavor \"" + name + "\" cannot be read: " + found.error().message;
      return {};
    }
    if (!found.ok() && found.error().code != ErrorCode::kNotFound) return found.error();
    memory.flavors[name] = found.ok() ? std::optional<Json>(*std::move(found)) : std::nullopt;
  }
  view.flavors = memory.flavors;
  return {};
}

Status KueueReader::read_priority(const api::TrainJob& job, KueueMemory& memory, api::UnixSeconds now,
                                  KueueView& view) const {
  const std::string of = label_of(job.meta, kWorkloadPriorityLabel) + "/" + priority_class_of(job.spec).name;
  if (!memory.priority || memory.priority_class != of || memory.priority_read_at + kReadAgainSeconds <= now) {
    TRY_ASSIGN(memory.priority, priority_of(job, view.version));
    memory.priority_class = of;
    memory.priority_read_at = now;
  }
  view.priority = memory.priority;
  return {};
}

Result<WorkloadPriority> KueueReader::priority_of(const api::TrainJob& job, const std::string& version) const {
  if (const std::string name = label_of(job.meta, kWorkloadPriorityLabel); !name.empty()) {
    const Result<Json> found = client_.get(kube::kueue_priority_classes(version), {.ns = "", .name = name});
    if (found.ok()) return class_of(kKueueGroup, name, *found);
    return problem_of("WorkloadPriorityClass", name, "label " + std::string(kWorkloadPriorityLabel), found.error());
  }
  const std::string group = kube::kPriorityClasses.group;
  if (const auto [name, where] = priority_class_of(job.spec); !name.empty()) {
    const Result<Json> found = client_.get(kube::kPriorityClasses, {.ns = "", .name = name});
    if (found.ok()) return class_of(group, name, *found);
    return problem_of("PriorityClass", name, where, found.error());
  }
  const Result<kube::ObjectList> all = client_.list(kube::kPriorityClasses, {});
  if (!all.ok() && all.error().code == ErrorCode::kForbidden) {
    return WorkloadPriority{.problem = "the cluster's default PriorityClass cannot be read: " + all.error().message};
  }
  if (!all.ok()) return all.error();
  for (const Json& one : all->items) {
    if (bool_field(one, {"globalDefault"})) return class_of(group, api::meta_of(one).name, one);
  }
  return WorkloadPriority{};
}

Result<bool> KueueReader::release_orphans(const api::ObjectKey& job, const std::string& job_uid,
                                          const control::Cache<PodView>& pods, api::UnixSeconds now) const {
  if (workloads_ == nullptr) return false;
  const control::OptionalInformer::Kind kind = workloads_->wanted();
  if (!kind.cache) return false;
  std::vector<Workload> orphans;
  for (const control::ObjectPtr& object : kind.cache->find(job_index_value(job))) {
    if (is_orphan(api::meta_of(*object), job_uid)) orphans.push_back(workload_from_json(*object));
  }
  if (orphans.empty()) return false;  // in almost every pass: its pods, maybe thousands, are not read then
  std::vector<PodView> views;
  for (const auto& pod : pods.find(job_index_value(job))) views.push_back(*pod);
  const std::vector<Action> writes = train::release_orphans(orphans, views, job_uid, now);
  for (const Action& write : writes) {
    const auto& patch = std::get<PatchObject>(write.what);
    const Result<Json> stored = client_.merge_patch(*kind.resource, {.ns = job.ns, .name = patch.name}, patch.patch);
    const bool is_gone = !stored.ok() && stored.error().code == ErrorCode::kNotFound;
    if (!stored.ok() && !is_gone) return stored.error();
    if (stored.ok()) assume(*stored, *kind.cache);
  }
  return writes.size() < orphans.size();
}

void KueueReader::assume(const Json& stored, control::Cache<Json>& cache) {
  const api::ObjectMeta meta = api::meta_of(stored);
  if (meta.deletion_time && meta.finalizers.empty()) {
    cache.assume_deleted(meta.key(), meta.uid);
  } else {
    cache.assume(stored);
  }
}

}  // namespace lockstep::train
