// What Kubernetes says of a pod's fields, as far as it can be said without a cluster. Pure.
//
// Role: names, types, words and required fields of spec.trainer.podTemplate, env, resourcesPerNode and
// checkpoint.volume, which the CRD leaves open (an expanded schema would not fit into an annotation of kubectl apply),
// by pod_fields.yaml, which is made from an API server's OpenAPI document. A cluster says it when the
// operator makes the first pod.
#pragma once

#include <string_view>
#include <vector>

#include "operator/api/schema.h"
#include "operator/api/trainjob.h"

namespace lockstep::manifest {

// The file's text, and the version of Kubernetes that it is of.
std::string_view pod_fields_yaml();
inline constexpr std::string_view kPodFieldsVersion = "1.37";

// Nothing: as far as it is known here, an API server would take the pods. A template that is no object is somebody
// else's to refuse (train/pod_template.h).
std::vector<api::Problem> check_pod_fields(const api::TrainJobSpec& spec);

}  // namespace lockstep::manifest
