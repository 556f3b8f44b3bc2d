// Fields that one schema has and another lacks: is the CRD in a cluster older than the one that this program was built
// with? An API server silently drops the fields of a status that its schema does not have. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/api/schema.h"

namespace lockstep::api {

// The fields of `ours` that are not in `theirs`, a schema as OpenAPI v3 documents and CRDs write it, in the order of
// their names ("spec.trainer.launcher", "status.recentFailures[].host"). What is below a missing field is not listed.
std::vector<std::string> fields_lacking(const Schema& ours, const Json& theirs);

// The schema of a kind in the OpenAPI v3 document of its group and version (/openapi/v3/apis/GROUP/VERSION); nullptr
// when it is not in there.
const Json* schema_of_kind(const Json& openapi, std::string_view group, std::string_view kind);

}  // namespace lockstep::api
