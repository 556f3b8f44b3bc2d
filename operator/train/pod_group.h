// The PodGroup of a gang, as its scheduler wants it, and how a pod says that it is a member. Pure.
//
//   gang          group and its size                                    pod
//   Native        scheduling.k8s.io, schedulingPolicy.gang.minCount     spec.schedulingGroup.podGroupName
//   Volcano       scheduling.volcano.sh, minMember, queue               annotation scheduling.k8s.io/group-name
//   Coscheduling  scheduling.x-k8s.io, minMember                        label scheduling.x-k8s.io/pod-group
//
// Only as many pods as the job needs must find a node together (elastic.minNodes, or all): ranks 0 to that number less
// one, because nothing goes on without node 0. The other ranks join the group when those have their nodes. A group is
// of one run of the gang: a pod that still ends counts as a member, so all pods anew means a group anew, with the next
// number in its name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::string_view kVolcanoGroupAnnotation = "scheduling.k8s.io/group-name";
inline constexpr std::string_view kCoschedulingGroupLabel = "scheduling.x-k8s.io/pod-group";
inline constexpr std::string_view kKueueQueueLabel = "kueue.x-k8s.io/queue-name";  // of a TrainJob

bool wants_gang(const api::TrainJobSpec& spec);
// The CRD name of its gang's PodGroups, "podgroups.scheduling.k8s.io"; empty without a gang.
std::string pod_group_kind(const api::TrainJobSpec& spec);
// The apiVersions that will do, the best first.
std::vector<std::string> pod_group_versions(const api::TrainJobSpec& spec);

// "sasrec-0f6a2c11-2", with the beginning of the job's UID: at most 63 bytes, as a label's value has.
std::string pod_group_name(const api::ObjectMeta& job, int number);
// Nothing: the name is no group's of this job.
std::optional<int> pod_group_number(const api::ObjectMeta& job, std::string_view name);

// Is the gang preempted as a whole, or pod by pod? Single pods can be missed where the others go on without them.
bool is_disrupted_whole(const api::TrainJobSpec& spec);
// `api_version`: one of pod_group_versions; `size`: so many pods must find a node together.
Json desired_pod_group(const api::TrainJob& job, const std::string& api_version, int number, int size);
int pod_group_size(const Json& group);

// Makes the pod a member, and hands it to the gang's scheduler.
void join_pod_group(const api::TrainJob& job, int number, Json& pod);
// The group that a pod is in, whichever scheduler's; empty: none.
std::string pod_group_of(const Json& pod);

// Does the template leave to the operator what scheduling says? kInvalid names the field.
Status check_scheduling(const api::TrainJob& job);

}  // namespace lockstep::train
