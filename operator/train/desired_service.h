// The headless Service that names the job's pods. Pure.
#pragma once

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// `publishNotReadyAddresses`: the nodes must find each other before they are ready.
Json desired_service(const api::TrainJob& job);
// Does it differ from `desired` in what the job needs of it? What else somebody wrote into it is theirs.
bool service_differs(const Json& service, const Json& desired);

}  // namespace lockstep::train
