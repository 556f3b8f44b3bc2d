// Defaults of a TrainJob that comes from a file, by the same schema as the API server's. Pure.
#pragma once

#include "runner/base/json.h"

namespace lockstep::api {

// Drops nulls that stand for absent fields and sets what has a default. What has another type than it must have is left
// as it is: validate.h says so.
void apply_trainjob_defaults(Json& trainjob);

}  // namespace lockstep::api
