// Values in pods that every API server refuses, although their fields and types are right. Pure.
//
// Role: the second half of what `lockstep validate` knows of pods without a cluster. The API's description has names
// and types of fields (pod_fields.h), and none of these rules: limits below requests, labels that are none, two mounts
// at one place. A rule here is of a type of pod_fields.yaml and is applied wherever that type occurs.
// tests/cluster/test_validate.py holds each rule to a real API server, in both directions.
#pragma once

#include <vector>

#include "operator/api/schema.h"
#include "operator/api/trainjob.h"

namespace lockstep::manifest {

// Only for a spec that has passed check_pod_fields and train::check_pod_template.
std::vector<api::Problem> check_pod_values(const api::TrainJobSpec& spec);

}  // namespace lockstep::manifest
