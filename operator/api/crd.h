// The CustomResourceDefinition of TrainJob: manifests/base/crd.yaml, which is compiled into this library. Pure.
#pragma once

#include <string_view>

#include "operator/api/schema.h"

namespace lockstep::api {

// The file's text.
std::string_view crd_yaml();
// Its schema, spec.versions[0].schema.openAPIV3Schema. Parsed at the first call; safe from all threads.
const Schema& trainjob_schema();

}  // namespace lockstep::api
