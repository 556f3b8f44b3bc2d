// The PodGroup of a gang, as its scheduler wants it, and how a pod says that it is a member. Pure.
//
//   gang          group and its size                                    pod
//   Native        scheduling.k8s.io, schedulingPolicy.gang.minCount     spec.schedulingGroup.podGroupName
//   Volcano       scheduling.volcano.sh, minMember, queue               annotation scheduling.k8s.io/group-name
//   Coscheduling  scheduling.x-k8s.io, minMember                        label scheduling.x-k8s.io/pod-group
//
// Only as many pods as the job needs must be scheduled together (elastic.minNodes, or all): those of the lowest
// ranks, because nothing goes on without pod 0. The other ranks join the group when these are scheduled. When all
// pods of the gang are replaced, they get a new group, with the next number in its name: a pod that still ends counts
// as a member of the old one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "operator/api/trainjob.h"
#include "operator/kube/resource.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kVolcanoGroupAnnotation = "scheduling.k8s.io/group-name";
inline constexpr std::string_view kCoschedulingGroupLabel = "scheduling.x-k8s.io/pod-group";

// The priority class that the spec gives to the pods and their group, and the field that names it; a pod with a class
// that does not exist is refused by the API server.
struct PriorityClassName {
  std::string name;  // empty: none
  std::string field;
};
PriorityClassName priority_class_of(const api::TrainJobSpec& spec);
// A clause: there is no such class, where it is named, and what to do. `kind`: "PriorityClass", or Kueue's.
std::string no_priority_class(std::string_view kind, const std::string& name, const std::string& where);

bool wants_gang(const api::TrainJobSpec& spec);
// The PodGroups of its gang; empty without a gang.
const kube::Versions& pod_group_versions(const api::TrainJobSpec& spec);
// Is it the apiVersion of Kubernetes 1.36, whose groups never change their size?
bool is_native_alpha(const std::string& api_version);

// "sasrec-0f6a2c11-2", with the beginning of the job's UID: at most 63 bytes, as a label's value has.
std::string pod_group_name(const api::ObjectMeta& job, int number);
// nullopt: it is not the name of a group of this job.
std::optional<int> pod_group_number(const api::ObjectMeta& job, std::string_view name);

// Is the gang preempted as a whole? Otherwise pod by pod, because the others go on without those that are lost.
bool is_disrupted_whole(const api::TrainJobSpec& spec);
// `api_version`: one of pod_group_versions; `size`: so many pods must be scheduled together.
Json desired_pod_group(const api::TrainJob& job, const std::string& api_version, int number, int size);
int pod_group_size(const Json& group);
// Has the API server dropped the topology that the group was made with?
bool has_lost_topology(const api::TrainJob& job, const Json& group);

// Makes the pod a member, and hands it to the gang's scheduler.
void join_pod_group(const api::TrainJob& job, int number, Json& pod);
// The group that a pod is in, whichever scheduler's; empty: none.
std::string pod_group_of(const Json& pod);

// kInvalid: a topology that nothing would use, or a template that sets what spec.scheduling decides; names the field.
Status check_scheduling(const api::TrainJob& job);

}  // namespace lockstep::train
