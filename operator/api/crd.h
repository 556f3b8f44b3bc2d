// The CustomResourceDefinition of TrainJob, manifests/base/crd.yaml, as this library was built with it. Pure.
#pragma once

#include <string_view>

#include "operator/api/schema.h"

namespace lockstep::api {

// The file's text.
std::string_view crd_yaml();
// spec.versions[v1].schema of it. Made at the first call; safe from all threads.
const Schema& trainjob_schema();

}  // namespace lockstep::api
