// Checks a pod's fields as Kubernetes would, as far as that is possible without a cluster. Pure.
//
// Role: names, types, words and required fields of spec.trainer.podTemplate, env, resourcesPerNode and
// checkpoint.volume, which the CRD leaves open (an expanded schema would not fit into an annotation of kubectl apply),
// by pod_fields.yaml, which is made from an API server's OpenAPI document. In a cluster such a fault only shows when
// the operator makes the first pod.
#pragma once

#include <string_view>
#include <vector>

#include "operator/api/schema.h"
#include "operator/api/trainjob.h"

namespace lockstep::manifest {

// The file's text, and the version of Kubernetes that it is of.
std::string_view pod_fields_yaml();
inline constexpr std::string_view kPodFieldsVersion = "1.37";

// Empty: as far as it is known here, an API server would accept the pods. A template that is no object is skipped here;
// train/pod_template.h refuses it.
std::vector<api::Problem> check_pod_fields(const api::TrainJobSpec& spec);

}  // namespace lockstep::manifest
