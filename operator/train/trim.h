// What the caches keep of TrainJobs (JobView) and of objects that have no view, and under which values an object is
// found. Pure.
//
// A user may give an object any number of labels and owners. A Service and a NetworkPolicy keep what is read and
// compared: of their labels the job's, of their owners the one that controls them. Of other kinds trim_whole keeps all
// but what only the API server and kubectl read.
#pragma once

#include <string>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/api/trainjob.h"
#include "operator/train/pod_view.h"
#include "runner/base/json.h"

namespace lockstep::train {

// A TrainJob as it is cached.
struct JobView {
  api::ObjectMeta meta;  // also of one that cannot be read
  Result<api::TrainJob> job;
  Json unreadable;  // the object, when `job` is an error
};
// Of a job of another controller without what makes its pods.
JobView view_of_job(Json job);

Json trim_whole(Json object);  // without managedFields and the annotation of kubectl apply
Json trim_service(Json service);
Json trim_network_policy(Json policy);

// The values under which a cached pod is found: its job, unless it has no node rank, and its Kubernetes node.
std::vector<std::string> pod_index(const PodView& pod);
// The same of other objects: their job alone.
std::vector<std::string> job_index(const Json& object);
std::string job_index_value(const api::ObjectKey& job);
std::string node_index_value(const std::string& node);

// The job whose object this is, by its label; an empty name when it has none.
api::ObjectKey job_of(const Json& object);

}  // namespace lockstep::train
