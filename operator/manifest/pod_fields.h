// Checks a pod's fields as Kubernetes would, as far as that is possible without a cluster. Pure.
//
// Role: checks spec.trainer.podTemplate, env, resourcesPerNode and checkpoint.volume against pod_fields.yaml, made from
// an API server's OpenAPI document: names, types, allowed words and required fields. The CRD leaves these fields open,
// because an expanded schema would not fit into an annotation of kubectl apply, so that in a cluster an error shows
// only when the operator makes the first pod.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/schema.h"
#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::manifest {

// The file's text, and the version of Kubernetes that it is of.
std::string_view pod_fields_yaml();
inline constexpr std::string_view kPodFieldsVersion = "1.37";

// Empty: as far as it is known here, an API server would accept the pods. A template that is no object is skipped here;
// train/pod_template.h refuses it.
std::vector<api::Problem> check_pod_fields(const api::TrainJobSpec& spec);

// Calls `visit` for `value`, which is of a type of pod_fields.yaml ("PodSpec"), and for every object below it that is
// of such a type. `value` must have passed check_pod_fields.
using VisitObject = std::function<void(const std::string& type, const Json& value, const std::string& path)>;
void visit_objects(const std::string& type, const Json& value, const std::string& path, const VisitObject& visit);

}  // namespace lockstep::manifest
