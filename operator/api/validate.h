// Checks a TrainJob as an API server would when it is created, without one. Pure.
//
// Role: `lockstep validate -f`, and files that `lockstep run` reads. The CRD defines what is valid
// (manifests/base/crd.yaml, compiled into this library); a test runs the same cases through this code and a real API
// server. The schema does not describe spec.trainer.podTemplate: train/pod_template.h checks that.
#pragma once

#include <vector>

#include "operator/api/schema.h"
#include "runner/base/json.h"

namespace lockstep::api {

// Returns the problems; empty: the TrainJob is valid. As in the API server, CEL rules run only when every field by
// itself is valid. `trainjob` is what the user wrote, without defaults.
std::vector<Problem> validate(const Json& trainjob);

// The same with another schema.
std::vector<Problem> validate_by(const Schema& schema, const Json& trainjob);

}  // namespace lockstep::api
