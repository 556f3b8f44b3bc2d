// What the caches keep of each object: only the fields that `observe` and the reconciler read. Pure.
//
// Most of a pod is env, volumes and managedFields, which neither reads. A user may give a pod any number of labels and
// containers, and a node's texts are its kubelet's: texts are cut at 4,096 bytes, as a kubelet cuts a termination
// message, and lists at 256 entries.
#pragma once

#include <string>
#include <vector>

#include "operator/api/object_meta.h"
#include "runner/base/json.h"

namespace lockstep::train {

Json trim_pod(Json pod);
// Without managedFields and the annotation of kubectl apply; of a job of another controller without what makes its
// pods.
Json trim_job(Json job);
Json trim_whole(Json object);  // without managedFields and the annotation of kubectl apply
Json trim_service(Json service);
Json trim_network_policy(Json policy);
Json trim_node(Json node);

// The values under which a cached pod is found: its job, its Kubernetes node.
std::vector<std::string> pod_index(const Json& pod);
// The same of other objects: their job alone.
std::vector<std::string> job_index(const Json& object);
std::string job_index_value(const api::ObjectKey& job);
std::string node_index_value(const std::string& node);

// The job whose object this is, by its label; an empty name when it has none.
api::ObjectKey job_of(const Json& object);

}  // namespace lockstep::train
