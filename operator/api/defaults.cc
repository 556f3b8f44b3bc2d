#include "operator/api/defaults.h"

#include "operator/api/crd.h"

namespace lockstep::api {

void apply_trainjob_defaults(Json& trainjob) { apply_defaults(trainjob_schema(), trainjob); }

}  // namespace lockstep::api
