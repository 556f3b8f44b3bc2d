// What one schema allows and another does not: is the CRD in a cluster older than the one that this program was built
// with? An API server silently drops the fields of a status that its schema does not have, and refuses a status with a
// word or a number that it does not allow. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/api/schema.h"

namespace lockstep::api {

// What `ours` has and `theirs` lacks, a schema as OpenAPI v3 documents and CRDs write it, in the order of the fields'
// names: fields ("spec.trainer.launcher", "status.recentFailures[].host"), words ("status.phase: Recovering") and wider
// limits ("spec.trainer.numNodes: a maximum of 10000"). What is below a missing field is not listed. Patterns are not
// compared.
std::vector<std::string> schema_gaps(const Schema& ours, const Json& theirs);

// The schema of a kind in the OpenAPI v3 document of its group and version (/openapi/v3/apis/GROUP/VERSION); nullptr
// when it is not in there.
const Json* schema_of_kind(const Json& openapi, std::string_view group, std::string_view kind);

}  // namespace lockstep::api
