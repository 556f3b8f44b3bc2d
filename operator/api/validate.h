// Checks a TrainJob as an API server would, without one. Pure.
//
// Role: `lockstep validate -f`, and files that `lockstep run` reads. It is the CRD that says what is valid
// (manifests/base/crd.yaml, built into this library); a test runs the same cases through this and a real API server.
// What spec.trainer.podTemplate says is not in the schema: train/pod_template.h checks it.
#pragma once

#include <vector>

#include "operator/api/schema.h"
#include "runner/base/json.h"

namespace lockstep::api {

// Nothing: valid. As the API server does, rules over several fields are looked at when each field by itself is right.
// `trainjob` as it was written, without defaults.
std::vector<Problem> validate(const Json& trainjob);

// The same, and what may not change of what is stored already, as `kubectl apply` over it would find. `stored` is valid
// by itself, as what an API server holds is; where it is not, that is the one problem.
std::vector<Problem> validate_update(const Json& trainjob, const Json& stored);

// Both, by another schema. `stored`: nullptr for a new object.
std::vector<Problem> validate_by(const Schema& schema, const Json& trainjob, const Json* stored);

}  // namespace lockstep::api
