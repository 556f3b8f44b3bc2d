// Defaults of a TrainJob that comes from a file, by the same schema as the API server's. Pure.
#pragma once

#include "runner/base/json.h"

namespace lockstep::api {

// Drops nulls that stand for absent fields and sets the defaults of fields that have one. A field of the wrong type is
// left as it is; validate.h reports it.
void apply_trainjob_defaults(Json& trainjob);

}  // namespace lockstep::api
